"""Whole batches of an epoch's order are what its positions are, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.order import indexes
from edl.protocol.permutation import Permutation
from tests.seeded.cast import drawn


@drawn
@given(
    size=st.one_of(st.integers(20, 300), st.integers(2**31, 2**40)),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
    data=st.data(),
)
def test_both_forms_say_the_same(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    count = data.draw(st.integers(0, min(64, size)))
    start = data.draw(st.integers(0, size - count))
    assert indexes(order, start, count) == order.take(range(start, start + count))


def test_an_order_that_is_not_shuffled() -> None:
    assert indexes(range(100), 95, 5) == [95, 96, 97, 98, 99]


def test_nothing_lies_beyond_the_epoch() -> None:
    with pytest.raises(IndexError, match="outside 100"):
        indexes(Permutation(100, seed=0, epoch=0), 90, 20)
