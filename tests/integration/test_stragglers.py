"""Slow workers in real jobs: found in time, removed without a stop, or given less to do.

The short form of bench/stragglers.py. The script waits for others in every step, and in each
worker's time that must not show.
"""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from edl.client import Event, Job
from tests.integration.conftest import Start

BATCH = 48
SINCE = 6  # the first step that is slow
# Of four workers: after 10 slow mini-batches and before 15.
IN_TIME = range(SINCE + 10, SINCE + 15)

Line = tuple[int, int, int, float]  # step, generation, rows, end


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """The job stops when this file is there."""
    return tmp_path / "end"


def begin(start: Start, log: Path, end: Path, policy: str, slow: str, *more: str) -> Job:
    arguments = ("--log", str(log), "--until", str(end), "--slow", slow, "--since", str(SINCE))
    return start("straggling.py", *arguments, *more, workers=4, slots=4, stragglers=policy)


def lines(log: Path, worker: str) -> list[Line]:
    path = log / f"{worker}.jsonl"
    # The last line may be half written.
    return [tuple(json.loads(line)) for line in path.read_text().split("\n")[:-1]]


def await_steps(log: Path, worker: str, count: int) -> None:
    """Until this worker has done so many more."""
    goal = lines(log, worker)[-1][0] + count
    until = time.monotonic() + 60.0
    while lines(log, worker)[-1][0] < goal:
        assert time.monotonic() < until, f"{worker} did not get to step {goal} in 60 s"
        threading.Event().wait(0.05)


def await_told(job: Job, what: str, count: int) -> list[Event]:
    until = time.monotonic() + 60.0
    while True:
        found = [event for event in job.events() if event.what == what]
        if len(found) >= count:
            return found
        assert time.monotonic() < until, [event.what for event in job.events()]
        threading.Event().wait(0.05)


def finished(job: Job, end: Path) -> None:
    """It ends well, and by the audit each sample was used exactly once."""
    end.touch()
    assert job.wait(60).state == "finished"
    audit = job.audit()
    assert audit.exact, audit.fault


# Two that are slow leave two to measure them by, which on a busy machine differ by themselves.
@pytest.mark.parametrize(("slow", "late"), [("w2", "0.333"), ("w1,w2", "0.5")])
def test_stragglers_are_found_in_time_and_leave_without_a_stop(
    start: Start, log: Path, end: Path, slow: str, late: str
) -> None:
    job = begin(start, log, end, "remove", slow, "--late", late, "--warming", "12")
    names = slow.split(",")
    found = await_told(job, "straggler.found", len(names))
    assert {event.fields["worker"] for event in found} == set(names)
    assert [event.step in IN_TIME for event in found] == [True] * len(names), found
    await_told(job, "straggler.removed", len(names))
    await_steps(log, "w0", 6)
    assert {worker.id for worker in job.status().workers} == {"w0", "w1", "w2", "w3"} - set(names)
    check_pace(lines(log, "w0"), left=4 - len(names))
    if len(names) == 1:
        # Another one comes into the free slot. It is slow in its first steps, which says nothing.
        assert job.scale_out(1) is not None
        await_steps(log, "w0", 16)
        assert [event.what for event in job.events()].count("straggler.found") == 1
    finished(job, end)


def check_pace(seen: list[Line], *, left: int) -> None:
    """Throughput is that of the workers that are left, and the change stopped nobody."""
    gaps = {after[0]: after[3] - before[3] for before, after in pairwise(seen)}
    switch = next(step for step, generation, _, _ in seen if generation == 2)
    healthy = median(gaps[step] for step in range(2, SINCE))
    before = median(gaps[step] for step in range(SINCE, switch))
    after = median(gap for step, gap in gaps.items() if step > switch)
    assert healthy * (4 / left) / after >= 0.94
    assert max(gaps[step] for step in range(switch - 1, switch + 2)) < 1.5 * max(before, after)


def test_a_straggler_gets_a_smaller_share_and_the_batch_stays(
    start: Start, log: Path, end: Path
) -> None:
    job = begin(start, log, end, "rebalance", "w2")
    (found,) = await_told(job, "straggler.found", 1)
    assert (found.fields["worker"], found.step in IN_TIME) == ("w2", True), found
    await_told(job, "straggler.weighed", 1)
    await_steps(log, "w0", 8)
    (slow,) = [worker for worker in job.status().workers if worker.straggler]
    assert slow.id == "w2"
    finished(job, end)
    shares = {worker: lines(log, worker) for worker in ("w0", "w1", "w2", "w3")}
    steps = min(map(len, shares.values()))
    assert [sum(seen[step][2] for seen in shares.values()) for step in range(steps)] == (
        [BATCH] * steps
    )
    assert shares["w2"][0][2] == 12
    assert shares["w2"][-1][2] < 11
    assert {seen[-1][2] for worker, seen in shares.items() if worker != "w2"} <= {12, 13, 14}
    # Everybody is done sooner than while the straggler had a full share.
    gaps = [after[3] - before[3] for before, after in pairwise(shares["w0"])]
    assert median(gaps[-5:]) < median(gaps[SINCE : found.step])
