"""A long series of adjustments on one real job: exactly once, equal replicas, no leak."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import psutil
import pytest

from edl.client import Job
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_requests import await_event

pytestmark = pytest.mark.paired

SAMPLES, BATCH = 1003, 50


class Footprint:
    """What one process holds."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self.descriptors = process.num_fds()
        self.threads = process.num_threads()
        self.sockets = len(process.net_connections(kind="tcp"))
        self.memory = process.memory_info().rss
        self.children = len(process.children())


def await_settled(pid: int, old: Footprint, *, workers: int) -> None:
    """No leak, once old groups are dropped, which happens in the background.

    A worker may by right hold more than it did: it may lead now, with a connection to each of the
    `workers`. The launcher (0) may not. 34 adjustments lie between the two looks, so one of
    anything an adjustment would show.
    """
    limits = (4 + workers, 4 + workers, 3)
    until = time.monotonic() + 15.0
    while True:
        new = Footprint(pid)
        grown = (
            new.descriptors - old.descriptors,
            new.sockets - old.sockets,
            new.threads - old.threads,
        )
        if all(growth <= limit for growth, limit in zip(grown, limits, strict=True)):
            break
        assert time.monotonic() < until, (
            f"{pid}: descriptors, sockets, threads grown by {grown}, limits {limits}"
        )
        threading.Event().wait(0.2)
    assert new.memory <= old.memory * 1.25 + (20 << 20), f"process {pid}: memory"


def pids(job: Job) -> dict[str, int]:
    return {worker.id: worker.pid for worker in job.status().workers}


def launcher_pid(job: Job) -> int:
    return int(psutil.Process(next(iter(pids(job).values()))).ppid())


def test_twenty_scale_outs_and_twenty_scale_ins(start: Start, log: Path, tmp_path: Path) -> None:
    rng = random.Random(20)
    end = tmp_path / "end"
    job = start(
        "journal.py",
        *("--log", str(log), "--epochs", "100000", "--model", "batchnorm"),
        *("--optimizer", "adam", "--pause", "0.1", "--until", str(end), "--unseeded"),
        workers=2,
    )
    await_event(job, "job.started")
    todo = ["out"] * 20 + ["in"] * 20
    steady = ""
    before: dict[int, Footprint] = {}
    switches = 0
    while todo:
        workers = pids(job)
        kind = "out" if len(workers) == 2 else "in" if len(workers) == 4 else rng.choice(todo)
        kind = kind if kind in todo else todo[0]
        todo.remove(kind)
        if kind == "out":
            record = job.scale_out(1)
        else:
            # Anyone but the one whose footprint is watched; the leader is among them.
            steady = steady or sorted(workers)[0]
            record = job.scale_in([rng.choice(sorted(set(workers) - {steady}))])
        assert record is not None
        switches += 1
        if switches == 6:
            # Past the first adjustments: lazily made threads and caches are there.
            steady = steady or sorted(pids(job))[0]
            before = {pid: Footprint(pid) for pid in (pids(job)[steady], launcher_pid(job))}
            size_before = len(pids(job))
    while len(pids(job)) > size_before:
        assert job.scale_in([max(set(pids(job)) - {steady})]) is not None
        switches += 1
    while len(pids(job)) < size_before:
        assert job.scale_out(1) is not None
        switches += 1
    for pid, old in before.items():
        await_settled(pid, old, workers=size_before if pid == pids(job)[steady] else 0)
    # The workers, and the template that they are forked off.
    assert Footprint(launcher_pid(job)).children == size_before + 1
    end.touch()
    assert job.wait(120).state == "finished"

    journal = read_journal(log)
    complete = max(journal.used())
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(complete + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    assert journal.check_buffers_after_switches() == switches
