"""Whole batches of an epoch's order are what its positions are, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.order import Drawn
from edl.protocol.permutation import Permutation
from tests.seeded.cast import drawn


@drawn
@given(
    size=st.one_of(st.integers(20, 300), st.integers(2**31, 2**40)),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
    batch=st.integers(1, 100),
    data=st.data(),
)
def test_both_forms_say_the_same(
    size: int, seed: int, epoch: int, batch: int, data: st.DataObject
) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    samples = Drawn(order, batch=batch)
    for _ in range(3):
        count = data.draw(st.integers(0, min(64, size)))
        start = data.draw(st.integers(0, size - count))
        for at in range(start, min(start + 3 * batch, size - count) + 1, batch):
            assert samples.take(at, count) == order.take(range(at, at + count))


def test_a_step_that_is_done_again_has_the_same_samples() -> None:
    samples = Drawn(Permutation(1000, seed=0, epoch=0), batch=10)
    first = [samples.take(at, 5) for at in range(0, 100, 10)]
    assert [samples.take(at, 5) for at in range(0, 100, 10)] == first


def test_samples_drawn_in_vain_are_not_kept() -> None:
    samples = Drawn(Permutation(100_000, seed=0, epoch=0), batch=100)
    for at in range(0, 90_000, 100):
        # As if the membership changed at every step.
        samples.take(at, 1 + at // 100 % 90)
    assert sum(len(each) for each in samples._coming.values()) < 100 * 8192


def test_an_order_that_is_not_shuffled() -> None:
    assert Drawn(range(100), batch=5).take(95, 5) == [95, 96, 97, 98, 99]


@pytest.mark.parametrize("order", [Permutation(100, seed=0, epoch=0), range(100)])
def test_nothing_lies_beyond_the_epoch(order: Permutation | range) -> None:
    with pytest.raises(IndexError, match="outside 100"):
        Drawn(order, batch=20).take(90, 20)
