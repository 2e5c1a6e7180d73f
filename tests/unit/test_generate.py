"""Traces that are made: like Philly's, the same everywhere, and as heavy as asked."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.simulator.generate import generate, offered_load, with_load
from edl.simulator.jobs import Trace, TraceJob

DAY_S = 86400.0


@pytest.fixture(scope="module")
def many() -> Trace:
    return generate(5_000, capacity=2304, seed=3)


def sizes(trace: Trace) -> list[float]:
    return sorted(job.gpus * job.duration_s for job in trace.jobs)


def test_sizes_are_those_of_the_published_percentiles(many: Trace) -> None:
    found = sizes(many)
    assert found[len(found) // 5] == pytest.approx(85, rel=0.1)
    assert found[len(found) * 9 // 10] == pytest.approx(58_330, rel=0.25)
    # Of all the work, most is that of a few.
    assert sum(found[-len(found) // 50 :]) > 0.5 * sum(found)


def test_most_jobs_ask_for_one_gpu_and_long_ones_for_more(many: Trace) -> None:
    counts = Counter(job.gpus for job in many.jobs)
    assert set(counts) <= {1, 2, 4, 8, 16, 32, 64}
    assert 0.8 < counts[1] / len(many.jobs) < 0.9
    long = [job.gpus for job in many.jobs if job.gpus * job.duration_s > 1e6]
    assert long.count(1) < 0.4 * len(long)
    assert max(job.duration_s for job in many.jobs) <= 60 * DAY_S


def test_days_are_busier_than_nights_and_weekdays_than_weekends() -> None:
    trace = generate(5_000, capacity=64, days=70)
    hours = Counter(int(job.submit_s / 3600) % 24 for job in trace.jobs)
    days = Counter(int(job.submit_s / DAY_S) % 7 for job in trace.jobs)
    assert sum(hours[hour] for hour in range(10, 18)) > 1.8 * sum(hours[hour] for hour in range(8))
    assert min(days[day] for day in range(5)) > 1.4 * max(days[5], days[6])


def test_users_submit_bursts_of_like_jobs(many: Trace) -> None:
    def alike(one: TraceJob, other: TraceJob) -> bool:
        near = 0.5 < one.duration_s / other.duration_s < 2
        return near and (one.user, one.gpus) == (other.user, other.gpus)

    followed = sum(
        any(alike(job, later) for later in many.jobs[place + 1 : place + 20])
        for place, job in enumerate(many.jobs)
    )
    assert followed > 0.4 * len(many.jobs)
    # Some users are far busier than others.
    [(_, most), *_] = Counter(job.user for job in many.jobs).most_common()
    assert most > 0.1 * len(many.jobs)


def test_the_same_seed_is_the_same_trace_on_every_machine() -> None:
    trace = generate(40, capacity=16, seed=7)
    assert trace == generate(40, capacity=16, seed=7)
    assert trace.name == "generated-40-seed-7"
    assert trace.jobs != generate(40, capacity=16, seed=8).jobs
    assert trace.jobs[1] == TraceJob(
        id="1", submit_s=198.602, gpus=1, duration_s=81.0, user="user1"
    )
    assert trace.jobs[20] == TraceJob(
        id="20", submit_s=25436.06, gpus=1, duration_s=3456.0, user="user2"
    )
    assert sizes(trace)[-3:] == [71842, 112260, 397632]


@settings(max_examples=40, deadline=None)
@given(
    jobs=st.integers(2, 60),
    capacity=st.integers(1, 3000),
    load=st.floats(0.01, 20),
    seed=st.integers(0, 2**32),
)
def test_any_trace_is_whole_and_offers_its_load(
    jobs: int, capacity: int, load: float, seed: int
) -> None:
    trace = generate(jobs, capacity=capacity, load=load, seed=seed)
    assert [job.id for job in trace.jobs] == [str(n) for n in range(jobs)]
    assert trace.jobs[0].submit_s == 0
    assert all(one.submit_s <= other.submit_s for one, other in pairwise(trace.jobs))
    assert all(1 <= job.gpus <= capacity and job.duration_s >= 1 for job in trace.jobs)
    assert offered_load(trace, capacity) == pytest.approx(load, rel=1e-12)


def test_days_decide_instead_of_the_load() -> None:
    trace = generate(100, capacity=64, days=2.5)
    assert trace.jobs[-1].submit_s == 2.5 * DAY_S
    told = offered_load(trace, 64)
    assert trace.notes == (
        f"generated like Philly, seed 0: an offered load of {told:.3g} on 64 GPUs",
    )


def test_one_job_has_no_load() -> None:
    trace = generate(1, capacity=8)
    assert [job.submit_s for job in trace.jobs] == [0.0]
    assert offered_load(trace, 8) == inf


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "0 jobs are asked for; at least 1 is needed"),
        ({"capacity": 0}, "the capacity is 0 GPUs; at least 1 is needed"),
        ({"load": 0}, "the load is 0; expected a number above 0"),
        ({"load": nan}, "the load is nan; expected a number above 0"),
        ({"load": inf}, "the load is inf; expected a number above 0"),
        ({"days": 0}, "days is 0; expected a number above 0"),
        ({"days": nan}, "days is nan; expected a number above 0"),
    ],
)
def test_what_cannot_be_made(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        generate(**{"jobs": 10, "capacity": 8} | options)


# -- load --------------------------------------------------------------------------------------


def trace_of(*jobs: tuple[float, int, float]) -> Trace:
    return Trace(
        name="t",
        jobs=tuple(
            TraceJob(id=str(n), submit_s=submit_s, gpus=gpus, duration_s=duration_s)
            for n, (submit_s, gpus, duration_s) in enumerate(jobs)
        ),
        notes=("one",),
    )


def test_load_is_what_is_asked_over_what_there_is_while_jobs_arrive() -> None:
    trace = trace_of((0, 2, 30), (5, 1, 20), (10, 4, 5))
    assert offered_load(trace, 8) == 100 / 80
    with pytest.raises(UsageError, match="the capacity is 0 GPUs"):
        offered_load(trace, 0)


def test_another_load_moves_submissions_and_nothing_else() -> None:
    trace = with_load(trace_of((0, 2, 30), (5, 1, 20), (10, 4, 5)), 8, 0.5)
    assert [(job.submit_s, job.gpus, job.duration_s) for job in trace.jobs] == [
        (0, 2, 30),
        (12.5, 1, 20),
        (25, 4, 5),
    ]
    assert offered_load(trace, 8) == 0.5
    assert trace.notes == ("one", "submissions stretched by 2.5, to a load of 0.5 on 8 GPUs")


def test_jobs_that_come_at_once_cannot_be_stretched() -> None:
    with pytest.raises(UsageError, match=r"trace t cannot be stretched to a load of 0\.5: all its"):
        with_load(trace_of((0, 2, 30), (0, 1, 20)), 8, 0.5)
    with pytest.raises(UsageError, match=r"the load is -1; expected a number above 0"):
        with_load(trace_of((0, 2, 30), (5, 1, 20)), 8, -1)
