"""A worker's network is cut: the others go on without it, and it does no harm when it is back."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import Journal, read_journal
from tests.integration.networks import Namespace, OpenEtcd, outside

SAMPLES, BATCH = 400, 40
PATIENCE_S = 60.0
SILENCE_S = 2.5
TUNED = {"EDL_SILENCE_S": str(SILENCE_S)}


def endless(log: Path, end: Path) -> tuple[str, ...]:
    size = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", "100000")
    pace = ("--pause", "0.1", "--pause-until", str(end))
    model = ("--model", "batchnorm", "--optimizer", "adam")
    return ("--log", str(log), *size, *model, "--until", str(end), *pace)


def members(job: Job) -> dict[str, bool]:
    """Who is in the job, and whether it leads; nothing while nobody can tell."""
    with contextlib.suppress(EdlError):
        return {worker.id: worker.leader for worker in job.status().workers if worker.rank >= 0}
    return {}


def train(job: Job, steps: int) -> None:
    """Until so many more steps are done."""
    seen: list[int] = []

    def further() -> bool:
        with contextlib.suppress(EdlError):
            status = job.status()
            if status.state == "training":
                seen.append(status.step)
                return status.step >= seen[0] + steps
        return False

    until(further, f"{steps} more steps", PATIENCE_S)


@contextmanager
def far_worker(
    job: Job, store: str, network: Namespace, arguments: tuple[str, ...]
) -> Iterator[subprocess.Popen[str]]:
    """A member of the job in the other network."""
    process = subprocess.Popen(
        network.command(sys.executable, str(SCRIPTS / "journal.py"), *arguments),
        env=outside(job, store, network.there, EDL_WORKER="far", EDL_SLOT="node2:0", **TUNED),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: process.poll() is not None or "far" in members(job), "it to join", PATIENCE_S)
        assert process.poll() is None, process.communicate()[0]
        yield process
    finally:
        process.kill()
        process.wait()


def comes_back(process: subprocess.Popen[str], network: Namespace) -> None:
    """Cut off it cannot know; with its link back it learns that it is out, and goes in peace."""
    assert process.poll() is None
    network.restore()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out


def judge(job: Job, log: Path, end: Path) -> Journal:
    end.touch()
    result = job.wait(120)
    assert (result.state, result.failures) == ("finished", ())
    journal = read_journal(log)
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    journal.check_end(steps=max(journal.counted()) + 1)
    # Whoever was cut off has committed nothing that the others have not.
    assert journal.lines["far"][-1]["what"] != "end"
    return journal


def test_a_worker_that_is_cut_off_is_lost_and_learns_it_when_it_is_back(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace, open_etcd: OpenEtcd
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, store=open_etcd.url, host=elsewhere.here, env=TUNED)
    with far_worker(job, open_etcd.url, elsewhere, arguments) as far:
        train(job, 5)
        # Shorter than the silence that counts: everybody waits, and nobody is lost.
        elsewhere.cut()
        time.sleep(SILENCE_S / 5)
        elsewhere.restore()
        train(job, 5)
        assert set(members(job)) == {"w0", "w1", "far"}
        assert not any(event.what == "worker.lost" for event in job.events())
        elsewhere.cut()
        until(lambda: set(members(job)) == {"w0", "w1"}, "the others to go on", PATIENCE_S)
        train(job, 10)
        comes_back(far, elsewhere)
    train(job, 5)
    (lost,) = [event for event in job.events() if event.what == "worker.lost"]
    assert lost.fields["worker"] == "far"
    assert "no heartbeat for" in str(lost.fields["why"])
    assert judge(job, log, end).sizes()[-1] == 2


@pytest.mark.slow
def test_a_leader_that_is_cut_off_is_replaced_and_learns_it_when_it_is_back(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace, open_etcd: OpenEtcd
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start(
        "journal.py", *arguments, workers=1, store=open_etcd.url, host=elsewhere.here, env=TUNED
    )
    with far_worker(job, open_etcd.url, elsewhere, arguments) as far:
        assert job.scale_in(["w0"]) is not None
        until(lambda: members(job) == {"far": True}, "it to lead", PATIENCE_S)
        assert job.scale_out(2) is not None
        train(job, 5)
        elsewhere.cut()
        until(lambda: set(members(job)) == {"w1", "w2"}, "the others to go on", PATIENCE_S)
        train(job, 10)
        comes_back(far, elsewhere)
    train(job, 5)
    events = [event.what for event in job.events()]
    assert events.count("leader.changed") == 2
    assert judge(job, log, end).sizes()[-1] == 2
