"""A profile asks for the next number of workers while it still measures."""

from __future__ import annotations

import pytest

from edl.launch import profiling, undoing
from edl.launch.profiling import measure
from edl.protocol.profiling import Meter
from tests.unit.test_profiling import STEP_S, PlayedJob, plan, status


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "pause", lambda seconds: None)
    monkeypatch.setattr(undoing, "pause", lambda seconds: None)


@pytest.mark.parametrize("soon", [10, 1])
def test_the_next_number_is_asked_for_while_the_last_steps_are_measured(
    soon: int,
) -> None:
    job, lines = PlayedJob(4, soon=soon, switch_steps=12), list[str]()
    found = measure(job, plan(1, None), progress=lines.append)
    assert [row.workers for row in found.rows] == [4, 3, 2, 1]
    for row in found.rows:
        assert row.step_s == pytest.approx(STEP_S[row.workers])
    asked = lines.index("scaling in to 3 workers")
    measured = next(i for i, line in enumerate(lines) if line.startswith("4 workers: "))
    if soon == 10:
        assert asked < measured
        assert job.asked[:3] == [3, 2, 1]
    assert any("measuring 4 workers anew" in line for line in lines) == (soon == 1)
    assert job.workers == 4
    assert not found.notes


@pytest.mark.parametrize(("switch_steps", "asked_at"), [(2, 19), (6, 15), (1, 20), (0, 21)])
def test_no_sooner_than_that_the_switch_comes_after_the_last_measured_step(
    switch_steps: int, asked_at: int
) -> None:
    """A job that switches at once, two steps later, is asked one step before the end."""
    meter = Meter(2, warm_up=0, steps=20)
    nearly = []
    for step in range(24):
        meter.on_status(
            status(2, step=step, trained_s=step * 0.1, generation=1, switch_steps=switch_steps)
        )
        # The second status ends a warm-up of no steps.
        if meter.nearly:
            nearly.append(step - 1)
    assert nearly[0] == asked_at
