"""Workers that were lent leave for a profile, and come back for the rest of their time."""

from __future__ import annotations

import pytest

from edl.launch import profiling, undoing
from edl.launch.profiling import measure
from edl.types import WorkerId
from tests.unit.test_profiling import PlayedJob, plan


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "pause", lambda seconds: None)
    monkeypatch.setattr(undoing, "pause", lambda seconds: None)


def test_who_was_lent_comes_back_for_the_time_that_is_left() -> None:
    job = PlayedJob(3, lent={WorkerId("w2"): 90.0})
    found = measure(job, plan(1, 3))
    assert found.restored
    assert sorted(job.members.values()) == ["localhost:0", "localhost:1", "localhost:2"]
    ((slots, for_s),) = job.lent_again
    assert slots == ["localhost:2"]
    assert 60.0 < for_s < 90.0


def test_who_was_lent_does_not_come_back_when_its_time_is_over() -> None:
    job = PlayedJob(3, lent={WorkerId("w2"): 0.0})
    found = measure(job, plan(1, 3))
    assert job.lent_again == []
    assert sorted(job.members.values()) == ["localhost:0", "localhost:1"]
    assert found.notes == ("the job has 2 workers and had 3: w2 went meanwhile, not by this",)


def test_who_was_lent_comes_back_to_its_own_slot_or_not_at_all() -> None:
    job = PlayedJob(3, lent={WorkerId("w2"): 90.0})

    def take() -> None:
        job.come("localhost:2")
        job.generation += 1

    job.meanwhile[2] = take
    measure(job, plan(1, 3))
    assert job.lent_again == []
    assert sorted(job.members.values()) == ["localhost:0", "localhost:1", "localhost:2"]
