"""Two workers that cannot connect to each other, while both reach everybody else."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import read_journal
from tests.integration.networks import Namespace, OpenEtcd, cut_pair, outside, two_networks

pytestmark = pytest.mark.paired

SAMPLES, BATCH = 400, 40
PATIENCE_S = 120.0
# Each build of a group with both of them takes this long to fail.
TUNED = {"EDL_BUILD_TIMEOUT_S": "3"}

Pair = tuple[Namespace, Namespace]


@pytest.fixture
def apart() -> Iterator[Pair]:
    with two_networks() as made:
        yield made


@pytest.fixture
def etcd(tmp_path: Path, apart: Pair) -> Iterator[OpenEtcd]:
    made = OpenEtcd(tmp_path / "etcd")
    made.host = apart[0].here
    with made:
        yield made


def endless(log: Path, end: Path) -> tuple[str, ...]:
    size = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", "100000")
    pace = ("--pause", "0.1", "--pause-until", str(end))
    model = ("--model", "batchnorm", "--optimizer", "adam")
    return ("--log", str(log), *size, *model, "--until", str(end), *pace)


def members(job: Job) -> set[str]:
    with contextlib.suppress(EdlError):
        status = job.status()
        if status.state == "training":
            return {worker.id for worker in status.workers if worker.rank >= 0}
    return set()


def has_joined(job: Job, name: str) -> bool:
    return name in members(job)


def train(job: Job, steps: int) -> None:
    """Until so many more steps are done: newcomers have then committed one."""
    begin = job.status().step
    until(lambda: job.status().step >= begin + steps, f"{steps} more steps", PATIENCE_S)


def join(
    job: Job, store: str, network: Namespace, name: str, arguments: tuple[str, ...]
) -> subprocess.Popen[str]:
    more = {"EDL_WORKER": name, "EDL_SLOT": f"{name}:0", **TUNED}
    return subprocess.Popen(
        network.command(sys.executable, str(SCRIPTS / "journal.py"), *arguments),
        env=outside(job, store, network.there, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_recovery_goes_on_without_one_of_a_pair_that_cannot_connect(
    start: Start, log: Path, tmp_path: Path, apart: Pair, etcd: OpenEtcd
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, workers=2, store=etcd.url, host=apart[0].here, env=TUNED)
    far: dict[str, subprocess.Popen[str]] = {}
    try:
        for name, network in zip(("fa", "fb"), apart, strict=True):
            far[name] = join(job, etcd.url, network, name, arguments)
            until(partial(has_joined, job, name), f"{name} to join", PATIENCE_S)
        train(job, 5)
        cut_pair(*apart)
        # Whoever does not lead: its death makes the others build a new group.
        (victim,) = [
            worker.pid for worker in job.status().workers if worker.id == "w1" and not worker.leader
        ]
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(members(job)) == 2, "the others to go on without one of them", PATIENCE_S)
        (left_out,) = far.keys() - members(job)
        assert members(job) == {"w0", *far} - {left_out}
        assert far[left_out].wait(PATIENCE_S) == 0
        events = [event for event in job.events() if event.what == "worker.lost"]
        lost = {event.fields["worker"]: event.fields["why"] for event in events}
        assert lost.keys() == {"w1", left_out}
        assert f"{left_out} cannot connect to " in str(lost[left_out])
        assert "left out after 3 failed builds" in str(lost[left_out])
        end.touch()
        result = job.wait(120)
        assert result.state == "finished"
        (stayed,) = far.keys() - {left_out}
        assert far[stayed].wait(PATIENCE_S) == 0
    finally:
        for process in far.values():
            process.kill()
            print(process.communicate()[0])
    journal = read_journal(log)
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
