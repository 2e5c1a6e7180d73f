"""An interrupted profile puts the job back; it takes two interruptions to keep it from that."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.launch import profiling, undoing
from edl.launch.profiling import measure
from tests.unit.test_profiling import PlayedJob, plan


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "pause", lambda seconds: None)
    monkeypatch.setattr(undoing, "pause", lambda seconds: None)


def test_a_second_interruption_gives_up_and_says_so() -> None:
    job, lines = PlayedJob(3), list[str]()
    job.fails[1] = (KeyboardInterrupt(), False)
    with pytest.raises(KeyboardInterrupt):
        measure(job, plan(1, 2), progress=lines.append)
    assert lines[-3:] == [
        "interrupted; once more, and it is left as it is",
        "back to 3 workers",
        "the job has 3 workers as before",
    ]
    job.fails[1] = (KeyboardInterrupt(), False)
    job.fails[3] = (KeyboardInterrupt(), False)
    with pytest.raises(KeyboardInterrupt):
        measure(job, plan(1, 2), progress=lines.append)
    assert job.workers == 2
    assert "the job is not put back to 3 workers: interrupted again" in lines[-1]


def test_one_interruption_while_it_is_put_back_does_not_stop_that() -> None:
    job, lines = PlayedJob(3), list[str]()
    job.fails[3] = (KeyboardInterrupt(), False)
    with pytest.raises(KeyboardInterrupt):
        measure(job, plan(1, 2), progress=lines.append)
    assert job.workers == 3
    assert lines[-4:] == [
        "back to 3 workers",
        "interrupted; once more, and it is left as it is",
        "back to 3 workers",
        "the job has 3 workers as before",
    ]


def test_more_workers_than_are_ever_started_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="up to 1000000 workers; 1024 at most"):
        measure(PlayedJob(1), plan(1, 1_000_000))
