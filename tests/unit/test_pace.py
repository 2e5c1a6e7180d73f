"""How fast the job goes, and how far ahead a switch is announced."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol.pace import Pace
from tests.seeded.cast import committed, first, member, record, w

LATER = Settings(switch_allowance_s=0.5, switch_at_once=0)
AT_ONCE = Settings(switch_allowance_s=0.5, switch_at_once=1)


def paced(*durations: float, ahead: int = 0) -> Pace:
    pace = Pace()
    for step, duration_s in enumerate(durations, start=1):
        pace.on_committed(committed(step, record(ahead=ahead), duration_s=duration_s))
    return pace


def test_nothing_is_known_before_the_first_step() -> None:
    assert (Pace().step, Pace().step_s(), Pace().throughput()) == (0, 0.0, 0.0)


def test_before_the_first_step_a_switch_is_for_the_next_one() -> None:
    assert Pace().switch_step(LATER) == 0


def test_the_median_ignores_one_slow_step() -> None:
    assert paced(0.1, 0.1, 9.0).step_s() == 0.1


@pytest.mark.parametrize(
    ("step_s", "allowance_s", "steps"), [(0.1, 0.5, 5), (0.3, 0.5, 2), (2.0, 0.5, 1), (0.1, 0.0, 1)]
)
def test_a_switch_is_announced_an_allowance_ahead(
    step_s: float, allowance_s: float, steps: int
) -> None:
    assert paced(step_s).switch_step(replace(LATER, switch_allowance_s=allowance_s)) == 2 + steps


def test_a_switch_is_announced_beyond_what_the_loaders_have_fetched() -> None:
    assert paced(2.0, ahead=4).switch_step(LATER) == 6


def test_where_nothing_is_fetched_ahead_a_switch_need_not_wait() -> None:
    assert paced(0.1, 0.1).switch_step(AT_ONCE) == 4
    assert paced(0.1, 0.1, ahead=1).switch_step(AT_ONCE) == 8


def test_tiny_steps_do_not_put_a_switch_off_for_ever() -> None:
    assert paced(1e-6).switch_step(LATER) == 1002


def test_throughput_is_samples_over_time() -> None:
    assert paced(0.5, 0.5).throughput() == 16.0


def test_throughput_is_of_the_present_number_of_workers_alone() -> None:
    pace = paced(*[4.0] * 25)
    for step in (26, 27):
        two = committed(step, record(), record(), duration_s=0.5)
        pace.on_committed(two)
    assert pace.throughput() == two.samples / 0.5
    pace.on_committed(committed(28, record(), duration_s=2.0))
    assert pace.throughput() == 4.0
    pace.on_committed(committed(29, record(), duration_s=2.0))
    status = pace.status(
        request_id="s", state="training", leader=w(0), generation=None, arriving=(),
        adjustment=None, adjustments=0, settings=Settings(),
    )  # fmt: skip
    assert (status.step_s, status.pace_steps) == (2.0, 2), "and so is a step's time"


def test_only_recent_steps_count() -> None:
    assert paced(*[5.0] * 20, *[0.1] * 20).step_s() == 0.1


def test_status_shows_members_by_rank_then_whoever_arrives() -> None:
    pace = Pace()
    pace.on_committed(committed(3, record(samples=5), record(samples=3)))
    status = pace.status(
        request_id="s",
        state="training",
        leader=w(0),
        generation=first(0, 1),
        arriving=[member(2), member(1)],
        adjustment=None,
        settings=AT_ONCE,
        adjustments=4,
    )
    shown = [(s.id, s.rank, s.state, s.samples, s.leader) for s in status.workers]
    assert shown == [
        (w(0), 0, "training", 5, True),
        (w(1), 1, "training", 3, False),
        (w(2), -1, "joining", 0, False),
    ]
    assert (status.step, status.generation, status.adjustments) == (3, 1, 4)
    assert status.switch_steps == 2


def test_status_before_the_first_generation_has_no_members() -> None:
    status = Pace().status(
        request_id="s",
        state="starting",
        leader=w(0),
        generation=None,
        arriving=[member(0)],
        adjustment=None,
        settings=AT_ONCE,
        adjustments=0,
    )
    assert [s.state for s in status.workers] == ["joining"]
    assert (status.generation, status.switch_steps) == (0, 0)
