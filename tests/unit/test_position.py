"""The most advanced survivor is the truth; the others need its state, or one result of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.position import Comparison, Position, compare
from tests.seeded.cast import drawn


def at(step: int, *, state: int = 1, calls: int = 0, acts: int = 0) -> Position:
    return Position(state=state, step=step, calls=calls, acts=acts)


def test_equals_need_nothing_of_each_other() -> None:
    assert compare([at(7), at(7), at(7)]) == Comparison(source=0, behind=(), late=())


def test_one_committed_step_ahead_is_the_truth() -> None:
    found = compare([at(7), at(8), at(7)])
    assert found == Comparison(source=1, behind=(0, 2), late=(0, 2))


def test_a_changed_model_is_ahead_of_one_that_is_not() -> None:
    assert compare([at(7), at(7, calls=1)]) == Comparison(source=1, behind=(0,), late=())


def test_whoever_lacks_a_result_alone_keeps_its_state() -> None:
    found = compare([at(7, acts=1), at(7, acts=2)])
    assert found == Comparison(source=1, behind=(), late=(0,))


def test_founders_that_never_began_take_the_state_of_the_first_of_them() -> None:
    found = compare([at(0, state=0), at(0, state=0)])
    assert found == Comparison(source=0, behind=(1,), late=())


def test_a_founder_without_the_first_leaders_state_is_behind_one_that_has_it() -> None:
    assert compare([at(0, state=0), at(0)]) == Comparison(source=1, behind=(0,), late=())


positions = st.builds(
    Position,
    state=st.just(1),
    step=st.integers(0, 3),
    calls=st.integers(0, 1),
    acts=st.integers(0, 2),
)


@drawn
@given(st.lists(positions, min_size=1, max_size=6))
def test_nobody_is_ahead_of_the_source(found: list[Position]) -> None:
    truth = compare(found)
    assert truth.source not in truth.behind
    assert truth.source not in truth.late
    assert all(found[truth.source] >= position for position in found)


@drawn
@given(positions)
def test_a_position_travels_as_integers(position: Position) -> None:
    assert Position.unpack(position.pack()) == position
