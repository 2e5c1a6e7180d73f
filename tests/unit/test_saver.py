"""When checkpoints are taken, and what happens when one fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from edl.errors import CheckpointError
from edl.runtime.saver import Copied, Saver
from edl.runtime.tensorfile import Tensors


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


class Shelf:
    """A folder that takes its time when told to, and fails when told to."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.error: Exception | None = None
        self.busy = 0
        self.busiest = 0

    def save(self, step: int, tensors: Tensors, extra: Mapping[str, Any]) -> None:
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        self.open.wait(10)
        self.busy -= 1
        if self.error is not None:
            raise self.error
        assert extra == {"step": step}
        self.saved.append(step)


class Job:
    """A training that reaches boundaries, and counts how often it was copied."""

    def __init__(self, **intervals: Any) -> None:
        self.clock = Clock()
        self.shelf = Shelf()
        self.saver = Saver(self.shelf, clock=self.clock, **intervals)
        self.copies: list[int] = []

    def stop(self, step: int) -> None:
        def copy() -> Copied:
            self.copies.append(step)
            return {}, {"step": step}

        self.saver.last(step, copy)
        assert self.saver.close(10)

    def reach(self, step: int) -> None:
        def copy() -> Copied:
            self.copies.append(step)
            return {}, {"step": step}

        self.saver.boundary(step, copy)

    def reach_all(self, steps: range) -> None:
        """Boundaries with time for each write to end."""
        for step in steps:
            self.reach(step)
            self.settle()

    def settle(self) -> None:
        writer = self.saver._writer
        if writer is not None:
            writer.join(10)


def test_a_checkpoint_is_taken_every_so_many_steps() -> None:
    job = Job(every_steps=10, every_s=0)
    job.reach_all(range(1, 35))
    assert job.copies == [10, 20, 30]
    assert job.shelf.saved == [10, 20, 30]


def test_or_every_so_many_seconds_whichever_comes_first() -> None:
    job = Job(every_steps=10, every_s=60.0)
    job.reach_all(range(1, 4))
    job.clock.at += 60.0
    job.reach_all(range(4, 20))
    # The steps count from the one that time brought about.
    assert job.shelf.saved == [4, 14]


def test_the_defaults_are_a_thousand_steps_or_ten_minutes() -> None:
    job = Job()
    job.reach(999)
    assert job.copies == []
    job.clock.at += 599.0
    job.reach(999)
    assert job.copies == []
    job.clock.at += 1.0
    job.reach(999)
    job.reach(1000)
    job.settle()
    job.reach(1998)
    assert job.copies == [999]
    job.reach(1999)
    assert job.copies == [999, 1999]


def test_without_intervals_there_are_none() -> None:
    job = Job(every_steps=0, every_s=0)
    job.clock.at += 1e9
    job.reach_all(range(1, 3000))
    assert job.copies == []


def test_a_resumed_job_counts_from_its_checkpoint() -> None:
    job = Job(every_steps=10, every_s=0, resumed=500)
    standing = job.saver.standing()
    assert (standing.step, standing.age_s) == (500, 0.0)
    job.reach_all(range(501, 512))
    assert job.shelf.saved == [510]


def test_the_same_step_is_not_taken_twice() -> None:
    job = Job(every_steps=0, every_s=60.0, resumed=7)
    job.clock.at += 600.0
    job.reach(7)
    assert job.copies == []


def test_a_copy_waits_for_the_next_boundary_to_be_written() -> None:
    job = Job(every_steps=10, every_s=0)
    job.reach(10)
    assert job.copies == [10]
    assert job.saver.standing().writing is None
    job.reach(11)
    job.settle()
    assert job.shelf.saved == [10]


def test_the_last_copy_is_written_when_the_end_has_proved_it() -> None:
    job = Job(every_steps=10, every_s=0)
    job.reach(10)
    job.saver.stable()
    assert job.saver.close(10.0)
    assert job.shelf.saved == [10]


def test_a_copy_that_was_never_proved_is_dropped() -> None:
    job = Job(every_steps=10, every_s=0)
    job.reach(10)
    assert job.saver.close(10.0)
    job.saver.stable()
    assert job.shelf.saved == []


def test_a_slow_write_is_not_joined_by_a_second_one() -> None:
    job = Job(every_steps=10, every_s=0)
    job.shelf.open.clear()
    for step in range(1, 48):
        job.reach(step)
    assert job.copies == [10]
    assert job.saver.standing().writing == 10
    job.shelf.open.set()
    job.settle()
    # Nothing was queued: the next boundary takes its own.
    job.reach_all(range(48, 59))
    assert job.copies == [10, 48, 58]
    assert job.shelf.saved == [10, 48]
    assert job.shelf.busiest == 1


def test_closing_waits_for_the_write_under_way_but_not_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job(every_steps=10, every_s=0)
    assert job.saver.close(0.0)
    job.shelf.open.clear()
    job.reach(10)
    job.saver.stable()
    with caplog.at_level(logging.WARNING, "edl.checkpoint"):
        assert not job.saver.close(0.01)
    (told,) = caplog.records
    assert told.getMessage().startswith("checkpoint.unfinished step=10: still being written")
    job.shelf.open.set()
    assert job.saver.close(10.0)
    assert job.shelf.saved == [10]


def test_a_failure_is_told_once_and_tried_again_in_due_course(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job(every_steps=10, every_s=0)
    job.reach_all(range(1, 12))
    job.shelf.error = CheckpointError("the disk is full")
    with caplog.at_level(logging.WARNING, "edl.checkpoint"):
        job.reach_all(range(12, 30))
    assert [r.getMessage() for r in caplog.records] == [
        "checkpoint.failed step=20, training goes on: the disk is full"
    ]
    job.clock.at += 5.0
    standing = job.saver.standing()
    assert (standing.step, standing.age_s, standing.error) == (10, 5.0, "the disk is full")
    job.shelf.error = None
    job.reach_all(range(30, 32))
    standing = job.saver.standing()
    assert (standing.step, standing.age_s, standing.error) == (30, 0.0, "")


def test_a_copy_that_cannot_be_made_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    job = Job(every_steps=10, every_s=0)

    def copy() -> Copied:
        raise MemoryError("no room for a copy")

    with caplog.at_level(logging.WARNING, "edl.checkpoint"):
        job.saver.boundary(10, copy)
    assert "no room for a copy" in job.saver.standing().error
    (told,) = caplog.records
    assert told.getMessage().startswith("checkpoint.failed step=10, training goes on: MemoryError")
    assert told.exc_info
    job.reach_all(range(11, 22))
    assert job.shelf.saved == [20]


def test_a_job_that_stops_keeps_its_last_step() -> None:
    job = Job(every_steps=10)
    for step in range(1, 6):
        job.reach(step)
    job.stop(5)
    assert job.shelf.saved == [5]
    # Once is enough.
    job.stop(5)
    assert job.shelf.saved == [5]


def test_a_job_that_stops_writes_what_was_copied_at_that_step() -> None:
    job = Job(every_steps=5)
    for step in range(1, 6):
        job.reach(step)
    job.stop(5)
    assert (job.shelf.saved, job.copies) == ([5], [5])


def test_a_job_that_stops_waits_for_one_write_and_not_for_two() -> None:
    job = Job(every_steps=2)
    job.shelf.open.clear()
    for step in range(1, 4):
        job.reach(step)
    threading.Timer(0.05, job.shelf.open.set).start()
    job.stop(3)
    assert job.shelf.saved == [2]
