"""The step record: what travels in a round, and which announcement counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.record import FIELDS, STOP, WITHDRAWN, Announcement, StepRecord, loudest
from edl.protocol.record import pack as packed
from edl.protocol.record import unpack as unpacked
from tests.seeded.cast import drawn, record


@drawn
@given(st.lists(st.integers(0, 2**62), min_size=len(FIELDS), max_size=len(FIELDS)))
def test_a_record_survives_the_way_through_integers(values: list[int]) -> None:
    assert packed(unpacked(values)) == values


def test_the_order_on_the_wire_is_the_order_of_the_fields() -> None:
    said = record(step=7, samples=3, says=(2, 9, 4))
    assert packed(said) == [1, 7, 3, 0, 0, 1000, 0, 0, 2, 9, 4, 0, 0, 0, 0, 0]
    assert FIELDS[0] == "kind"
    assert FIELDS[-1] == "check"


def test_too_few_integers_are_no_record() -> None:
    with pytest.raises(ValueError, match="shorter"):
        unpacked([1, 2, 3])


def test_nobody_announces_anything() -> None:
    assert loudest([record(), record()]) is None


def test_the_highest_token_wins() -> None:
    records = [record(says=(2, 9, 4)), record(), record(says=(3, 8, 6))]
    assert loudest(records) == Announcement(generation=3, switch_step=8, token=6)


def test_a_silent_record_with_a_high_token_does_not_win() -> None:
    records = [record(says=(2, 9, 4)), record(says=(0, 0, 99))]
    assert loudest(records) == Announcement(generation=2, switch_step=9, token=4)


def test_a_stop_is_an_announcement() -> None:
    assert loudest([record(says=(STOP, 5, 1))]) == Announcement(
        generation=STOP, switch_step=5, token=1
    )


def test_a_withdrawal_announces_nothing() -> None:
    assert loudest([record(says=(WITHDRAWN, 2, 4))]) is None


def test_every_field_is_a_plain_integer() -> None:
    assert all(field.type == "int" for field in StepRecord.__dataclass_fields__.values())
