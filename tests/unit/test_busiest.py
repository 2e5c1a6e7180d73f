"""The part of a trace that is shown more closely is the one in which most is wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.simulator.busiest import LEAST_S, _demand, busiest
from edl.simulator.engine import Arrival
from edl.simulator.generate import generate
from edl.simulator.jobs import Trace
from edl.simulator.run import simulate
from edl.simulator.setting import Setting
from tests.unit.clusters import arrival


def crowd(begin_s: float, jobs: int, *, every_s: float, seconds: float) -> list[Arrival]:
    return [arrival(begin_s + n * every_s, 1, seconds) for n in range(jobs)]


def test_a_job_of_months_in_an_idle_cluster_is_not_busy() -> None:
    quiet = crowd(0.0, 500, every_s=60.0, seconds=30.0)
    quiet[3] = replace(quiet[3], size_gpu_s=1e8)
    busy = crowd(40_000.0, 500, every_s=10.0, seconds=600.0)
    begin, end = busiest([*quiet, *busy], 64)
    # Not where the one job comes, though it is larger than all others together.
    assert 40_000.0 < begin < end < 45_600.0


def test_a_queue_that_grew_counts_and_not_only_what_comes() -> None:
    """4 GPUs: a rush of 400 jobs, which then wait for 8 hours, and others that come day and night;
    when they are alone there are two of them."""
    rush = crowd(0.0, 400, every_s=1.0, seconds=300.0)
    later = crowd(400.0, 1000, every_s=100.0, seconds=200.0)
    begin, end = busiest([*rush, *later], 4)
    assert end < 80_000.0
    assert begin < 40_000.0


def test_of_few_jobs_nearly_all_is_shown() -> None:
    jobs = [arrival(0.0, 4, 5000.0), arrival(100.0, 4, 5000.0)]
    # Shared alike they take 10,000 s together, and so does the chart, though both come at once.
    assert busiest(jobs, 4) == pytest.approx((0.0, 10_000.0))


def test_the_last_one_of_many_does_not_make_the_chart_long() -> None:
    jobs = [*crowd(0.0, 99, every_s=10.0, seconds=60.0), arrival(990.0, 1, 1e7)]
    begin, end = busiest(jobs, 8)
    assert end - begin == LEAST_S


def test_shared_alike_worked_by_hand() -> None:
    """2 GPUs. Two jobs of 2 GPUs and 10 s: the first has 5 s alone; then both at half speed: it is
    over at 15 s, and the other one, which then has 5 s left, at 20 s."""
    demand = _demand([arrival(0.0, 2, 10.0), arrival(5.0, 2, 10.0)], 2)
    assert demand.ends == [15.0, 20.0]
    assert list(zip(demand.times, demand.gpus, strict=True)) == [(0, 2), (5, 4), (15, 2), (20, 0)]
    assert demand.until(15.0) == 2 * 5 + 4 * 10
    assert demand.until(10.0) - demand.until(5.0) == 20


@given(
    gaps=st.lists(st.sampled_from([0.0, 1.0, 500.0, 4000.0]), min_size=1, max_size=25),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_no_other_window_of_that_length_is_busier(gaps: list[float], data: st.DataObject) -> None:
    now, jobs = 0.0, []
    for gap in gaps:
        now += gap
        seconds = data.draw(st.sampled_from([1.0, 300.0, 9000.0]))
        jobs.append(arrival(now, data.draw(st.sampled_from([1, 2, 8])), seconds))
    begin, end = busiest(jobs, 8)
    demand = _demand(jobs, 8)
    found = demand.until(end) - demand.until(begin)
    last = demand.times[-1]
    for part in range(200):
        other = last * part / 200
        assert demand.until(other + end - begin) - demand.until(other) <= found + 0.01


def test_in_a_simulation_the_window_is_fuller_than_the_rest() -> None:
    capacity = 64
    made = generate(2000, capacity=capacity, load=0.7, seed=3)
    trace = Trace(name="made", jobs=made.jobs)
    outcome = simulate(trace, "tiresias", Setting(nodes=8, gpus_per_node=8))
    begin, end = outcome.window_s
    line = outcome.timeline
    wanted = [
        (used + waiting, begin <= at * line.bin_s < end)
        for at, (used, waiting) in enumerate(zip(line.used, line.waiting, strict=True))
    ]
    inside = [value for value, within in wanted if within]
    assert inside
    assert sum(inside) / len(inside) > 1.5 * sum(value for value, _ in wanted) / len(wanted)
