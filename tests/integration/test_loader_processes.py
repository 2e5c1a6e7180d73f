"""Loader processes end with their trainer, so that nobody takes a dead worker for a living one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from edl.client import Job
from edl.runtime.lifeline import die_with_parent, die_with_process
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.test_failures import wait_step
from tests.integration.test_template import launcher_of

# torch itself lets a loader process look for its parent every 5 s.
AT_ONCE_S = 3.0


def reading(start: Start, log: Path, context: str) -> Job:
    return start(
        "reading.py",
        *("--log", str(log), "--until", str(log / "until"), "--kind", "map"),
        *("--num-workers", "2", "--context", context),
        workers=3,
    )


@pytest.mark.parametrize("leader", [False, True], ids=["follower", "leader"])
def test_a_killed_trainer_takes_its_loader_processes_along(
    start: Start, log: Path, *, leader: bool
) -> None:
    job = reading(start, log, "fork")
    wait_step(job, 5)
    doomed = next(worker for worker in job.status().workers if worker.leader is leader)
    children = psutil.Process(doomed.pid).children()
    assert len(children) == 2
    killed = time.monotonic()
    os.kill(doomed.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=AT_ONCE_S)
    assert not alive
    wait_step(job, job.status().step + 3)
    assert time.monotonic() - killed < AT_ONCE_S
    (log / "until").touch()
    result = job.wait(90)
    assert result.state == "finished", result.why
    assert job.audit().exact


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_nothing_is_left_of_a_job_whose_launcher_was_killed(
    start: Start, log: Path, context: str
) -> None:
    """Nobody is there who would kill the processes that trainers leave behind."""
    job = reading(start, log, context)
    wait_step(job, 5)
    launcher = launcher_of(job)
    trainers = {worker.pid for worker in job.status().workers}
    family = [each for pid in trainers for each in psutil.Process(pid).children(recursive=True)]
    assert len(family) >= 2 * len(trainers)
    launcher.kill()
    _, alive = psutil.wait_procs(family, timeout=AT_ONCE_S)
    assert not alive


def start_child(tie: str) -> None:
    """In a process of its own: a child that is tied to it, then a long wait."""
    trainer = os.getpid()

    def child() -> None:
        {"parent": die_with_parent, "process": die_with_process}[tie](trainer)
        print(os.getpid(), flush=True)
        threading.Event().wait()

    def begin() -> None:
        multiprocessing.get_context("fork").Process(target=child).start()

    if tie == "parent":
        begin()
    else:
        # The thread that started the child is over; the child must not be.
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    threading.Event().wait()


@pytest.mark.parametrize("tie", ["parent", "process"])
def test_a_tied_process_ends_with_the_other_one_and_not_before(tie: str) -> None:
    here = "tests.integration.test_loader_processes"
    command = f"from {here} import start_child; start_child({tie!r})"
    trainer = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    with trainer:
        assert trainer.stdout is not None
        child = psutil.Process(int(trainer.stdout.readline()))
        assert psutil.Process(trainer.pid).num_threads() == 1
        assert child.is_running()
        trainer.kill()
    until(lambda: not child.is_running(), "its end")


def test_whoever_is_tied_to_nobody_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for tie in (die_with_parent, die_with_process):
        process = multiprocessing.get_context("fork").Process(target=tie, args=(gone.pid,))
        process.start()
        process.join(10)
        assert process.exitcode == 1
