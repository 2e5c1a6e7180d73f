"""The bound of bench/lower_bound.py is below everything that a schedule can do, and near to it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from bench._bound import Prices, Request, gather, guessed, raise_prices, under

LINE = ((0.0, 0.0), (1.0, 1.0))
CURVE = ((0.0, 0.0), (1.0, 1.0), (2.0, 1.8), (4.0, 3.0), (8.0, 4.2))
# Half of what it asked for is its least: from nothing to there it is a straight line.
STIFF = ((0.0, 0.0), (4.0, 3.0))
FAR_S = 10_000.0


def prices(levels: list[float], *, width_s: float = 10.0, capacity: int = 1) -> Prices:
    edges = [number * width_s for number in range(len(levels) + 1)]
    return Prices(np.array([*edges, FAR_S]), np.array([*levels, 0.0]), capacity)


def request(work: float, hull: tuple[tuple[float, float], ...], begin_s: float = 0.0) -> Request:
    return Request(begin_s, begin_s, work, hull)


def least_by_hand(job: Request, levels: list[float], width_s: float) -> float:
    """Its best schedule in slots of a hundredth of a bucket, found by trying every end.

    Until an end, work is bought where it is cheapest: pieces of the hull, by price for their speed.
    """
    slot_s, best = width_s / 100, np.inf
    slots = [level for level in [*levels, *[0.0] * 10] for _ in range(100)]
    pieces = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in zip(job.hull, job.hull[1:], strict=False)
    ]
    first = int(job.begin_s / slot_s)
    for end in range(first + 1, len(slots), 10):
        offers = sorted(
            (level * gpus / speed, speed * slot_s)
            for level in slots[first:end]
            for gpus, speed in pieces
        )
        left, cost = job.work, 0.0
        for each, work in offers:
            taken = min(left, work)
            cost, left = cost + each * taken, left - taken
        if left <= 1e-9:
            best = min(best, end * slot_s - job.begin_s + cost)
    return best


def test_a_job_alone_takes_as_long_as_on_all_that_it_can_use() -> None:
    found = under(prices([0.0], capacity=8), gather([request(84.0, CURVE)]))
    assert found.bound == pytest.approx(84.0 / 4.2, rel=1e-9)


def test_seconds_before_the_first_step_count_and_delay() -> None:
    job = Request(5.0, 25.0, 42.0, CURVE)
    assert under(prices([0.0], capacity=8), gather([job])).bound == pytest.approx(30.0, rel=1e-9)


@pytest.mark.parametrize("hull", [LINE, CURVE, STIFF])
@pytest.mark.parametrize("seed", range(6))
def test_a_jobs_own_minimum_is_found(hull: tuple[tuple[float, float], ...], seed: int) -> None:
    rng = Random(seed)
    levels = [rng.choice([0.0, 0.1, 0.5, 2.0]) * rng.uniform(0.5, 1.0) for _ in range(5)]
    job = request(rng.uniform(3.0, 60.0), hull, begin_s=10.0 * rng.randrange(3) + rng.randrange(10))
    at = prices(levels)
    found = under(at, gather([job]), fine=True).bound + at.total()
    by_hand = least_by_hand(job, levels, 10.0)
    # By hand it ends at a tenth of a bucket, which may be a second late.
    assert by_hand - 1.1 <= found <= by_hand * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_no_prices_give_more_than_the_best_schedule(seed: int) -> None:
    """Three jobs on one GPU: shortest first is the best, 10 + 30 + 60 seconds."""
    rng = Random(seed)
    jobs = gather([request(work, LINE) for work in (10.0, 20.0, 30.0)])
    for _ in range(20):
        levels = [rng.uniform(0.0, 4.0) for _ in range(8)]
        assert under(prices(levels), jobs).bound <= 100.0 * (1 + 1e-9)


def test_prices_rise_until_the_bound_is_near_the_best_schedule() -> None:
    jobs = gather([request(work, LINE) for work in (10.0, 20.0, 30.0)])
    begin = prices([1.0] * 8)
    found = raise_prices(begin, jobs, rounds=300)
    before, after = (under(each, jobs, fine=True).bound for each in (begin, found))
    assert before < after <= 100.0 * (1 + 1e-9)
    assert after >= 95.0


def test_guessed_prices_are_those_of_the_jobs_there() -> None:
    jobs = [request(10.0, LINE), request(20.0, LINE, 10.0)]
    found = guessed(jobs, [10.0, 30.0], capacity=2, buckets=5)
    assert found.edges[:6] == pytest.approx([0.0, 2.0, 4.0, 6.0, 8.0, 10.0])
    assert found.price[:6] == pytest.approx(0.25)
    assert found.price[-1] == 0
    assert found.edges[-2] >= 30.0


def test_what_jobs_use_is_what_their_work_needs() -> None:
    """Waiting for what is free would cost more than these prices: each works until it is done."""
    jobs = gather([request(12.0, LINE, 3.0), request(45.0, STIFF)])
    found = under(prices([0.1, 0.2]), jobs)
    assert found.used == pytest.approx([7.0 + 40.0, 5.0 + 20.0, 0.0])
