"""The water's surface is where sorting every piece would have put it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.policy.throughput import Curve
from edl.policy.view import Job
from edl.policy.water import Shape, Water

WIDTH = 0.05
CURVES = [
    Curve([0.0, 1.0, 1.8, 2.4, 2.8, 3.0], label="falling"),
    Curve([float(p) for p in range(9)], label="linear"),
    Curve([0.0, 10.0, 12.0, 11.0, 20.0], label="dented"),
]


def shape(curve: Curve, floor: int = 1, asked: int = 2, turn: float = -30.0) -> Shape:
    return Shape.of(
        curve,
        floor=floor,
        asked=asked,
        most=curve.limit,
        width=WIDTH,
        first=1.0,
        own=2.0,
        turn=turn,
    )


def job(key: int, curve: Curve) -> Job:
    return Job(key, f"j{key}", gpus=2, curve=curve, submitted_s=0.0)


def test_pieces_are_those_of_the_hull_and_a_dent_is_one_piece() -> None:
    assert shape(CURVES[0]).ends == (1, 2, 3, 4, 5)
    assert shape(CURVES[0], floor=3).ends == (3, 4, 5)
    # From 2 to 4 GPUs at once, for with 3 it is slower than with 2.
    assert shape(CURVES[2]).ends == (1, 4)


def test_the_first_piece_counts_by_efficiency_and_others_by_what_they_add() -> None:
    (_, first), (_, second), (_, third), *_ = shape(CURVES[0]).steps
    assert first == round((0.0 + 1.0) / WIDTH)
    # log(0.8 / 1) + 2, for the user asked for it; log(0.6 / 1.8) beyond that.
    assert second == round((-0.22314 + 2.0) / WIDTH)
    assert third == round(-1.09861 / WIDTH)


def test_nobody_gets_the_second_piece_without_the_first() -> None:
    water = Water(capacity=3, width=WIDTH)
    water.place(job(0, CURVES[0]), shape(CURVES[0]), first=-400, more=0)
    bins = water.wishes[0].bins
    assert bins == sorted(bins, reverse=True)
    assert bins[0] == bins[1], "pulled down to the first one"


def test_the_first_piece_never_sinks_below_its_turn() -> None:
    water = Water(capacity=3, width=WIDTH)
    for key, weight in enumerate((-50, -400)):
        water.place(job(key, CURVES[0]), shape(CURVES[0], floor=2, turn=-1.0), weight, -400)
    usual, huge = (water.wishes[key].bins for key in (0, 1))
    # A second each second for two GPUs, times 1/e.
    assert huge[0] == round((-1.0 - 0.69315) / WIDTH) - water.base
    assert usual[0] > huge[0] > huge[1], "of what comes after it, sizes decide as ever"


def test_what_is_left_goes_to_whoever_can_use_it_and_those_who_have_it_keep_it() -> None:
    water = Water(capacity=3, width=WIDTH)
    inelastic = Curve([0.0, 1.0, 2.0], label="two")
    jobs = [job(key, inelastic) for key in range(3)]
    two = shape(inelastic, floor=2)
    for each in jobs:
        water.place(each, two, 0, 0)
    water.settle()
    assert (water.above, water.spill(12)) == (0, {0: 2})
    jobs[2].held = 2
    assert water.spill(12) == {2: 2}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.integers(-60, 60)), max_size=40))
def test_the_surface_is_where_sorting_puts_it(moves: list[tuple[int, int, int]]) -> None:
    """Jobs come, change their weight and go; then everything is sorted once."""
    water = Water(capacity=7, width=WIDTH)
    here: dict[int, Job] = {}
    for key, kind, weight in moves:
        if key in here and weight % 3 == 0:
            water.remove(here.pop(key))
        else:
            mine = here.setdefault(key, job(key, CURVES[kind]))
            water.place(mine, shape(mine.curve), weight, weight // 4)
        water.settle()
        pieces = sorted(
            (
                (where, gpus)
                for wish in water.wishes.values()
                for where, (gpus, _) in zip(wish.bins, wish.shape.steps, strict=True)
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
