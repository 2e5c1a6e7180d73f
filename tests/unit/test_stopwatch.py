"""How long a worker computes in a step, without waiting for others."""

from __future__ import annotations

from edl.runtime.stopwatch import Stopwatch


class Clock:
    """Time passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wait(watch: Stopwatch, clock: Clock, seconds: float) -> None:
    with watch.waiting():
        clock.now += seconds


def opened(*, own_loop: bool = False) -> tuple[Stopwatch, Clock]:
    """One second after a step ended, another one opens."""
    clock = Clock()
    watch = Stopwatch(clock)
    watch.freed()
    clock.now += 1.0
    watch.opened(own_loop=own_loop)
    return watch, clock


def test_reading_and_computing_count_and_waiting_does_not() -> None:
    watch, clock = opened()
    clock.now += 2.0
    wait(watch, clock, 40.0)
    clock.now += 3.0
    watch.computed()
    assert watch.compute_s == 5.0


def test_what_is_waited_for_after_the_last_backward_does_not_count() -> None:
    watch, clock = opened()
    clock.now += 2.0
    watch.computed()
    wait(watch, clock, 40.0)
    assert watch.compute_s == 2.0


def test_a_second_backward_counts_with_what_was_computed_in_between() -> None:
    watch, clock = opened()
    clock.now += 2.0
    watch.computed()
    wait(watch, clock, 40.0)
    clock.now += 3.0
    watch.computed()
    assert watch.compute_s == 5.0


def test_between_two_steps_nothing_counts() -> None:
    watch, clock = opened()
    clock.now += 2.0
    watch.computed()
    assert watch.compute_s == 2.0


def test_a_loop_of_the_scripts_own_computes_before_its_step_opens() -> None:
    watch, clock = opened(own_loop=True)
    clock.now += 2.0
    watch.computed()
    assert watch.compute_s == 3.0


def test_such_a_loop_may_wait_before_its_step_opens() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    watch.freed()
    clock.now += 1.0
    wait(watch, clock, 40.0)
    watch.opened(own_loop=True)
    watch.computed()
    assert watch.compute_s == 1.0


def test_a_step_without_backward_says_nothing() -> None:
    watch, clock = opened()
    clock.now += 2.0
    watch.computed()
    watch.freed()
    watch.opened(own_loop=False)
    clock.now += 2.0
    assert watch.compute_s == 0.0
