"""Loader processes end with their trainer, so that nobody takes a dead worker for a living one."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from edl.client import Job
from edl.plugin.ahead import Ahead, ByThreads, Request
from edl.runtime.descriptors import raise_descriptor_limit
from edl.runtime.lifeline import die_with_parent, die_with_process
from edl.torch.ahead import ByProcesses
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.test_failures import wait_step
from tests.integration.test_readers import await_lost
from tests.integration.test_template import launcher_of

pytestmark = pytest.mark.paired

PATIENCE_S = 60.0


def loaders(pid: int) -> list[psutil.Process]:
    """The loader processes of a worker, without its watchdog."""
    children = psutil.Process(pid).children()
    return [child for child in children if "edl.runtime.watchdog" not in child.cmdline()]


def reading(start: Start, log: Path, context: str) -> Job:
    return start(
        "reading.py",
        *("--log", str(log), "--until", str(log / "until"), "--kind", "map"),
        *("--num-workers", "2", "--context", context),
        workers=3,
        # Nobody but the kernel tells in this test's time that a process has ended: neither torch,
        # whose loader processes look for their parent now and then, nor a worker's silence.
        env={"EDL_TEST_LOOKS_S": "3600", "EDL_SILENCE_S": "3600"},
    )


@pytest.mark.parametrize("leader", [False, True], ids=["follower", "leader"])
def test_a_killed_trainer_takes_its_loader_processes_along(
    start: Start, log: Path, *, leader: bool
) -> None:
    job = reading(start, log, "fork")
    wait_step(job, 5)
    doomed = next(worker for worker in job.status().workers if worker.leader is leader)
    children = psutil.Process(doomed.pid).children()
    assert len(loaders(doomed.pid)) == 2
    assert len(children) == 3  # and its watchdog
    os.kill(doomed.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert not alive
    wait_step(job, job.status().step + 3)
    (log / "until").touch()
    result = job.wait(90)
    assert result.state == "finished", result.why
    assert job.audit().exact


def test_a_killed_loader_process_costs_the_job_its_worker(start: Start, log: Path) -> None:
    job = reading(start, log, "fork")
    wait_step(job, 5)
    hurt = job.status().workers[1]
    loaders(hurt.pid)[0].kill()
    await_lost(job, hurt.id)
    (log / "until").touch()
    result = job.wait(90)
    assert result.state == "finished", result.why
    (failure,) = result.failures
    assert "DataLoader worker (pid" in failure.traceback
    assert job.audit().exact


@pytest.mark.parametrize(
    "context", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)]
)
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
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert not alive


class Squares(torch.utils.data.Dataset[int]):
    begun = -1

    def __getitem__(self, index: int) -> int:
        assert self.begun >= 0
        return index * index


def begin(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, Squares)
    info.dataset.begun = number


@pytest.mark.parametrize("pulled", ["processes", "threads"])
def test_a_batch_is_said_to_have_come_before_it_is_asked_for(pulled: str) -> None:
    def foresee() -> Iterator[Request]:
        return (Request(step, step, [step]) for step in range(4))

    ahead: Ahead
    if pulled == "processes":
        ahead = ByProcesses(foresee, dataset=Squares(), num_workers=2, worker_init_fn=begin)
    else:
        ahead = ByThreads(foresee, lambda samples: torch.tensor([samples[0] ** 2]))
    assert ahead.next_come() is None
    for step in range(4):
        assert ahead.get(step).item() == step * step
        if step < 3:
            until(lambda: ahead.next_come() is not None, "the next batch")
            assert ahead.next_come() == (step + 1, step + 1)
    assert ahead.next_come() is None


class Odd(torch.utils.data.Dataset[int]):
    """The first sample is not read before it may be; the second cannot be."""

    def __init__(self) -> None:
        self.may = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: int) -> int:
        if index == 0:
            self.may.wait()
        if index == 1:
            raise RuntimeError("sample 1 is a banana")
        return index


def test_after_a_timeout_no_batch_is_taken_for_another() -> None:
    """The second is asked for; the first, on which torch gave up, would have come in its place."""
    dataset = Odd()
    foreseen = [Request(0, 0, [0]), Request(2, 2, [2])]
    ahead = ByProcesses(
        lambda: iter(foreseen), dataset=dataset, num_workers=1, timeout=0.1, collate_fn=list
    )
    with pytest.raises(RuntimeError, match=r"timed out after 0\.1 seconds"):
        ahead.get(2)
    dataset.may.set()


def test_a_sample_that_cannot_be_read_does_not_matter_in_another_step() -> None:
    foreseen = [Request(1, 1, [1]), Request(2, 2, [2])]
    ahead = ByProcesses(lambda: iter(foreseen), dataset=Odd(), num_workers=1, collate_fn=list)
    assert ahead.get(2) == [2]
    with pytest.raises(RuntimeError, match="sample 1 is a banana"):
        ahead.get(1)


@pytest.mark.parametrize("tie", ["parent", "process"])
def test_a_tied_process_ends_with_the_other_one_and_not_before(tie: str) -> None:
    command = [sys.executable, str(SCRIPTS / "tied.py"), tie]
    trainer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    with trainer:
        try:
            assert trainer.stdout is not None
            child = psutil.Process(int(trainer.stdout.readline()))
            threads = psutil.Process(trainer.pid).num_threads
            until(lambda: threads() == 1, "the end of the thread that started it")
            assert child.is_running()
        finally:
            trainer.kill()
    until(lambda: not child.is_running(), "its end")


def test_a_process_with_many_descriptors_can_be_tied() -> None:
    """`select` cannot wait for descriptors from 1,024 on, and a trainer may well have more."""
    if raise_descriptor_limit() < 1500:
        pytest.skip("this machine's hard limit allows too few descriptors")
    trainer = subprocess.Popen(["sleep", "600"])

    def tied() -> None:
        die_with_process(trainer.pid)
        threading.Event().wait()

    with contextlib.ExitStack() as stack:
        stack.callback(trainer.wait)
        stack.callback(trainer.kill)
        while stack.enter_context(open(os.devnull)).fileno() < 1100:
            continue
        process = multiprocessing.get_context("fork").Process(target=tied, daemon=True)
        process.start()
    process.join(60)
    assert process.exitcode == 1


def test_whoever_is_tied_to_nobody_ends_at_once() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for tie in (die_with_parent, die_with_process):
        process = multiprocessing.get_context("fork").Process(target=tie, args=(gone.pid,))
        process.start()
        process.join(10)
        assert process.exitcode == 1
