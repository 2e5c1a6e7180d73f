"""The water's surface is where sorting every piece would have put it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.policy.throughput import Curve
from edl.policy.view import Job
from edl.policy.water import LEVELS, WIDTH, Shape, Water, price_of

CURVES = [
    Curve([0.0, 1.0, 1.8, 2.4, 2.8, 3.0], label="falling"),
    Curve([float(p) for p in range(9)], label="linear"),
    Curve([0.0, 10.0, 12.0, 11.0, 20.0], label="dented"),
]


def shape(curve: Curve, floor: int = 1, hold: float = 0.5) -> Shape:
    return Shape.of(curve, floor=floor, most=curve.limit, hold=hold, keep=4 * WIDTH)


def prices(curve: Curve, level: int, *, floor: int = 1, hold: float = 0.5) -> list[float]:
    """Up to which price each piece is worth having."""
    return [price_of(at) for at in shape(curve, floor, hold).bins[level]]


SHAPES = [shape(curve) for curve in CURVES]


def job(key: int, curve: Curve) -> Job:
    return Job(key, f"j{key}", gpus=2, curve=curve, submitted_s=0.0)


def test_pieces_are_those_of_the_hull_and_a_dent_is_one_piece() -> None:
    assert shape(CURVES[0]).ends == (1, 2, 3, 4, 5)
    assert shape(CURVES[0], floor=3).ends == (3, 4, 5)
    # From 2 to 4 GPUs at once, for with 3 it is slower than with 2.
    assert shape(CURVES[2]).ends == (1, 4)


def near(price: float) -> object:
    return pytest.approx(price, rel=0.03)  # bins are a twentieth wide


def test_a_job_that_waits_for_the_price_to_fall_pays_so_much_to_run_at_all() -> None:
    # At half the price later, a unit of work is cheapest on three GPUs: (1 + 3 / 2 * price) / 2.4.
    # On one GPU now it costs the price: no more than that while price <= 1 / (2.4 - 1.5).
    assert prices(CURVES[0], level=0)[0] == near(1 / 0.9)
    # On two now it costs price / 0.9.
    assert prices(CURVES[0], level=0, floor=2)[0] == near(0.9 / (2.4 - 3 * 0.45))
    # If it falls to nothing, it will run on all five, and its time alone counts.
    assert prices(CURVES[0], level=0, floor=2, hold=0.0)[0] == near(0.9 / 3.0)


def test_a_job_that_sees_no_better_time_runs_at_any_price() -> None:
    first, second, *_ = prices(CURVES[0], level=LEVELS)
    assert first > 1e4
    # 0.8 / (1 - 1 * 0.8): on one GPU, what the second saves is worth so much.
    assert second == near(4.0)


def test_each_further_gpu_pays_up_to_what_it_saves() -> None:
    _, _, third, fourth, fifth = prices(CURVES[0], level=LEVELS)
    # slope / (speed - gpus * slope), the least over all numbers of GPUs.
    assert third == near(0.6 / (1.8 - 2 * 0.6))
    assert fourth == near(0.4 / (2.4 - 3 * 0.4))
    assert fifth == near(0.2 / (2.8 - 4 * 0.2))


def test_nobody_gets_the_second_piece_without_the_first() -> None:
    for curve in CURVES:
        for bins in (*shape(curve).bins, *shape(curve).kept):
            assert list(bins) == sorted(bins, reverse=True)


def test_whoever_yields_more_pays_less_for_every_piece() -> None:
    for curve in CURVES:
        for lower, higher in pairwise(shape(curve).bins):
            assert all(low <= high for low, high in zip(lower, higher, strict=True))


def test_whoever_runs_is_a_little_ahead() -> None:
    found = shape(CURVES[0])
    assert found.kept[0] == (found.bins[0][0] + 4, *found.bins[0][1:])


def test_what_is_left_goes_to_whoever_can_use_it_and_those_who_have_it_keep_it() -> None:
    water = Water(capacity=3)
    inelastic = Curve([0.0, 1.0, 2.0], label="two")
    jobs = [job(key, inelastic) for key in range(3)]
    two = shape(inelastic, floor=2)
    for each in jobs:
        water.place(each, two, 0, kept=False)
    water.settle()
    assert (water.above, water.spill()) == (0, {0: 2})
    jobs[2].held = 2
    assert water.spill() == {2: 2}


def test_on_a_small_cluster_everybody_is_looked_at_for_what_is_left() -> None:
    """More than a dozen bins of those who cannot use it lie above whoever can."""
    water = Water(capacity=5)
    four = Curve([0.0, 1.0, 2.0, 3.0, 4.0], label="four")
    for key in range(LEVELS + 1):
        water.place(job(key, four), shape(four, floor=4), key, kept=False)
    last = job(99, CURVES[0])
    water.place(last, shape(CURVES[0], hold=0.0), 0, kept=False)
    water.settle()
    assert water.spill()[99] == 1


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(0, LEVELS)), max_size=40)
)
def test_the_surface_is_where_sorting_puts_it(moves: list[tuple[int, int, int]]) -> None:
    """Jobs come, change their level and go; then everything is sorted once."""
    water = Water(capacity=7)
    here: dict[int, Job] = {}
    for key, kind, level in moves:
        if key in here and level % 3 == 0:
            water.remove(here.pop(key))
        else:
            mine = here.setdefault(key, job(key, CURVES[kind]))
            shapes = SHAPES[CURVES.index(mine.curve)]
            water.place(mine, shapes, level, kept=level % 2 == 0)
        water.settle()
        pieces = sorted(
            (
                (where, gpus)
                for wish in water.wishes.values()
                for where, gpus in zip(wish.bins, wish.shape.gpus, strict=True)
            ),
            reverse=True,
        )
        above = sum(gpus for where, gpus in pieces if where > water.surface)
        here_too = sum(gpus for where, gpus in pieces if where >= water.surface)
        assert water.above == above <= 7
        assert here_too > 7 or water.surface == 0
        assert sum(water.demand) == sum(gpus for _, gpus in pieces)
        granted = sum(wish.granted(water.surface) for wish in water.wishes.values())
        assert granted == above
