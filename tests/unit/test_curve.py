"""Speeds and what policies derive from them."""

from __future__ import annotations

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.policy.throughput import Curve, Piece, StepModel
from tests.unit.clusters import FALLING

MODEL = StepModel(a=0.1, b=0.01, c=0.02, d=0.03, e=0.05)


def test_a_step_is_computation_and_what_working_together_costs() -> None:
    assert MODEL.step_s(64, 1, 1) == pytest.approx(0.1 + 0.64)
    assert MODEL.step_s(64, 2, 1) == pytest.approx(0.1 + 0.32 + 0.02 + 0.03)
    assert MODEL.step_s(64, 8, 2) == pytest.approx(0.1 + 0.08 + 0.02 + 0.03 * log2(8) + 0.05)


def test_worth_is_gpus_times_efficiency() -> None:
    # 10 a second for each GPU at best, which is one alone.
    assert FALLING.worth[:5] == pytest.approx((0, 1, 1.8, 2.5, 3.1))
    assert FALLING.efficiency[:3] == pytest.approx((0, 1, 0.9))
    assert all(FALLING.worth[p] == pytest.approx(p * FALLING.efficiency[p]) for p in range(1, 9))


def test_efficiency_is_relative_to_the_best_number_which_may_be_above_one() -> None:
    curve = Curve([0.0, 10, 30, 36])
    assert curve.efficiency == pytest.approx((0, 10 / 15, 1, 12 / 15))
    assert curve.worth[2] == 2


def test_nobody_is_to_be_given_more_than_makes_it_fastest() -> None:
    rates = [0.0, 10, 18, 18, 12]
    assert (Curve(rates).limit, Curve(rates).best) == (2, 2)
    assert (Curve(rates, peak=False).limit, Curve(rates, peak=False).best) == (4, 2)


@pytest.mark.parametrize("rates", [[], [0.0], [1.0, 2.0], [0.0, 0.0], [0.0, 1.0, -1.0]])
def test_speeds_that_are_none_are_refused(rates: list[float]) -> None:
    with pytest.raises(UsageError, match="speeds of a job"):
        Curve(rates)


def test_a_fitted_curve_goes_as_far_as_it_gets_faster() -> None:
    curve = Curve.fitted(MODEL, 64, gpus_per_node=4, least=2, most=64)
    assert curve.rate[4] == pytest.approx(64 / MODEL.step_s(64, 4, 1))
    assert curve.rate[5] == pytest.approx(64 / MODEL.step_s(64, 5, 2))
    assert len(curve.rate) == curve.best + 1
    assert curve.rate[-1] == max(curve.rate)
    # But to what the user asked for in any case, though never beyond `most` or the batch.
    assert len(Curve.fitted(MODEL, 64, gpus_per_node=4, least=40, most=64).rate) == 41
    assert len(Curve.fitted(MODEL, 64, gpus_per_node=64, least=1, most=3).rate) == 4
    assert len(Curve.fitted(MODEL, 2, gpus_per_node=4, least=1, most=64).rate) <= 3


def test_apart_it_is_slower() -> None:
    curve = Curve.fitted(MODEL, 64, gpus_per_node=4, least=4, most=8)
    assert curve.rate_on(4, 1) == curve.rate[4]
    assert curve.rate_on(4, 2) == pytest.approx(64 / MODEL.step_s(64, 4, 2))
    assert curve.rate_on(4, 2) < curve.rate[4]
    assert curve.rate_on(0, 0) == 0
    # Nobody measured that.
    assert FALLING.rate_on(4, 2) == FALLING.rate[4]


def test_between_measured_numbers_lies_a_straight_line() -> None:
    curve = Curve.measured({2: 20.0, 4: 30.0, 8: 32.0}, least=2, most=64)
    assert curve.rate == pytest.approx((0, 10, 20, 25, 30, 30.5, 31, 31.5, 32))


def test_beyond_what_was_measured_nothing_gets_faster() -> None:
    curve = Curve.measured({2: 20.0}, least=4, most=8)
    assert list(curve.rate) == [0, 10, 20, 20, 20]
    assert curve.limit == 2
    with pytest.raises(UsageError, match="no speed of resnet is known"):
        Curve.measured({}, least=1, most=8, label="resnet")


def test_the_hull_of_falling_gains_is_the_curve_itself() -> None:
    pieces = FALLING.hull(0, 1, 4)
    assert [(piece.begin, piece.end) for piece in pieces] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [piece.slope for piece in pieces] == pytest.approx([1, 0.8, 0.7, 0.6])


def test_the_hull_bridges_a_dip() -> None:
    # Worth 0, 1, 1.1, 2, 2.2.
    curve = Curve([0.0, 10, 11, 20, 22])
    pieces = curve.hull(0, 1, 4)
    assert [(piece.begin, piece.end) for piece in pieces] == [(0, 1), (1, 3), (3, 4)]
    assert [piece.slope for piece in pieces] == pytest.approx([1, 0.5, 0.2])


def test_the_hull_never_ends_between_nothing_and_the_least() -> None:
    pieces = FALLING.hull(0, 3, 8)
    assert pieces[0] == Piece(0, 3, FALLING.worth[3] / 3)
    assert [piece.end for piece in pieces] == [3, 4, 5, 6, 7, 8]
    assert FALLING.hull(4, 5, 4) == ()


@given(steps=st.lists(st.floats(-3, 10), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_slopes_only_fall_and_no_speed_lies_above_the_hull(steps: list[float]) -> None:
    rates = [0.0]
    for step in steps:
        rates.append(max(0.5, rates[-1] + step))
    curve = Curve(rates, peak=False)
    most = len(rates) - 1
    pieces = curve.hull(0, 1, most)
    assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == most
    slopes = [piece.slope for piece in pieces]
    assert all(later <= slope + 1e-8 for slope, later in pairwise(slopes))
    for piece in pieces:
        for p in range(piece.begin, piece.end + 1):
            line = curve.worth[piece.begin] + piece.slope * (p - piece.begin)
            assert curve.worth[p] <= line + 1e-7
