"""The order of an epoch: a bijection that needs no memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.permutation import Permutation
from tests.seeded.cast import drawn

SEEDS = st.integers(0, 2**40)


@drawn
@given(size=st.integers(0, 400), seed=SEEDS, epoch=st.integers(0, 10**6))
def test_every_sample_comes_exactly_once(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    assert sorted(order.take(range(size))) == list(range(size))


@drawn
@given(size=st.integers(1, 10**12), seed=SEEDS, data=st.data())
def test_two_positions_never_meet_however_large_the_dataset(
    size: int, seed: int, data: st.DataObject
) -> None:
    order = Permutation(size, seed=seed, epoch=0)
    positions = data.draw(st.sets(st.integers(0, size - 1), max_size=30))
    samples = order.take(positions)
    assert len(set(samples)) == len(positions)
    assert all(0 <= sample < size for sample in samples)


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return Permutation(100, seed=seed, epoch=epoch).take(range(100))

    assert order(1, 2) == order(1, 2)
    assert len({tuple(order(seed, epoch)) for seed in range(5) for epoch in range(5)}) == 25


def test_the_order_never_changes_between_versions() -> None:
    # A checkpoint holds a cursor, not the order: another order would use samples twice.
    assert Permutation(10, seed=0, epoch=0).take(range(10)) == [3, 5, 0, 1, 4, 8, 7, 2, 9, 6]


def test_neighbours_are_mixed() -> None:
    order = Permutation(10_000, seed=3, epoch=1)
    steps = [abs(order[i] - order[i + 1]) for i in range(500)]
    assert sum(steps) / len(steps) > 2_000


@pytest.mark.parametrize("position", [-1, 10, 11])
def test_a_position_outside_the_epoch_is_refused(position: int) -> None:
    with pytest.raises(IndexError, match="outside an epoch of 10"):
        Permutation(10, seed=0, epoch=0)[position]


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 items"):
        Permutation(-1, seed=0, epoch=0)
