"""Jobs whose last members run on another machine: the launcher waits, and never guesses success."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import read_journal
from tests.integration.networks import Namespace, outside

pytestmark = pytest.mark.paired

SAMPLES = 400
PATIENCE_S = 90.0


def endless(log: Path, end: Path) -> tuple[str, ...]:
    size = ("--samples", str(SAMPLES), "--batch", "40", "--epochs", "100000")
    pace = ("--pause", "0.1", "--pause-until", str(end))
    return ("--log", str(log), *size, "--until", str(end), *pace)


def members(job: Job) -> set[str]:
    """Who is in the job; nobody while there is no answer."""
    with contextlib.suppress(EdlError):
        return {str(worker.id) for worker in job.status().workers if worker.rank >= 0}
    return set()


def step(job: Job) -> int:
    with contextlib.suppress(EdlError):
        status = job.status()
        return status.step if status.state == "training" else -1
    return -1


def train(job: Job, steps: int) -> None:
    """Until so many more steps are done."""
    until(lambda: step(job) >= 0, "the job to train", PATIENCE_S)
    first = step(job)
    until(lambda: step(job) >= max(first, 0) + steps, f"{steps} more steps", PATIENCE_S)


@contextlib.contextmanager
def only_far_is_left(
    job: Job, network: Namespace, arguments: tuple[str, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    """The job trains in the other network alone: its own workers were scaled in."""
    train(job, 6)
    store = str(json.loads((job.folder / "job.json").read_text())["store"])
    output = job.folder / "far.txt"
    with output.open("wb") as file:
        process = subprocess.Popen(
            network.command(sys.executable, str(SCRIPTS / "journal.py"), *arguments),
            env=outside(job, store, network.there, EDL_WORKER="far", EDL_SLOT="node2:0"),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: process.poll() is not None or "far" in members(job), "it to join", PATIENCE_S)
        assert process.poll() is None, output.read_text()
        job.scale_in(["w0"])
        until(lambda: members(job) == {"far"}, "only the far worker to be left", PATIENCE_S)
        train(job, 3)
        yield process
    finally:
        process.kill()
        process.wait()


def happened(job: Job, what: str) -> bool:
    return any(event.what == what for event in job.events())


@pytest.mark.parametrize(
    "cut_s", [14.0, pytest.param(30.0, marks=pytest.mark.slow)], ids=["14s", "30s"]
)
def test_job_goes_on_after_the_link_to_its_last_member_was_cut(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace, cut_s: float
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, workers=1, name="away", host=elsewhere.here)
    with only_far_is_left(job, elsewhere, arguments) as far:
        elsewhere.cut()
        time.sleep(cut_s)  # the length of the cut is what is tried
        until(lambda: not job.running() or happened(job, "job.waiting"), "the event", PATIENCE_S)
        assert job.running(), job.result()
        assert "far at " in job.waiting(), job.waiting()
        elsewhere.restore()
        train(job, 5)
        assert job.waiting() == ""
        end.touch()
        result = job.wait(PATIENCE_S)
        assert far.wait(PATIENCE_S) == 0
    assert (result.state, result.exit_status, result.restarts) == ("finished", 0, 0)
    journal = read_journal(log)
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))


def test_job_whose_last_member_died_elsewhere_has_failed(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace
) -> None:
    arguments = endless(log, tmp_path / "end")
    job = start("journal.py", *arguments, workers=1, name="dead", host=elsewhere.here)
    with only_far_is_left(job, elsewhere, arguments) as far:
        far.kill()
        result = job.wait(PATIENCE_S)
    assert (result.state, result.exit_status) == ("failed", 1)
    assert "far" in result.why, result.why


def test_job_whose_last_member_died_elsewhere_restarts_from_its_checkpoint(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start(
        "journal.py",
        *arguments,
        workers=1,
        name="again",
        host=elsewhere.here,
        checkpoint=str(tmp_path / "checkpoints"),
        env={"EDL_CHECKPOINT_STEPS": "3"},
    )
    with only_far_is_left(job, elsewhere, arguments) as far:
        far.kill()
        until(lambda: happened(job, "job.resumed"), "the job to be resumed", PATIENCE_S)
        end.touch()
        result = job.wait(PATIENCE_S)
    assert (result.state, result.exit_status, result.restarts) == ("finished", 0, 1)


def test_job_whose_last_member_never_answers_fails_and_is_not_restarted(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace
) -> None:
    arguments = endless(log, tmp_path / "end")
    job = start(
        "journal.py",
        *arguments,
        workers=1,
        name="silent",
        host=elsewhere.here,
        checkpoint=str(tmp_path / "checkpoints"),
        env={"EDL_CHECKPOINT_STEPS": "3", "EDL_ELSEWHERE_S": "12"},
    )
    with only_far_is_left(job, elsewhere, arguments) as far:
        elsewhere.cut()
        result = job.wait(PATIENCE_S)
        assert far.poll() is None
    assert (result.state, result.exit_status, result.restarts) == ("failed", 1, 0)
    assert f"far at {elsewhere.there}:" in result.why, result.why
    assert "may still train" in result.why, result.why
