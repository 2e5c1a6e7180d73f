"""Who takes the leader's key, and who leaves it alone."""

from __future__ import annotations

import pytest

from edl.errors import StoreError
from edl.protocol.election import Election, Known, read_leader, write_leader
from edl.types import Address
from tests.seeded.cast import w

HERE = Address("10.0.0.1", 7000)
THERE = Address("10.0.0.2", 7001)


def election(*, may_lead: bool = True) -> Election:
    return Election(me=w(0), address=HERE, may_lead=may_lead)


def test_a_leader_reads_as_it_was_written() -> None:
    found = read_leader(write_leader(w(3), THERE), 9)
    assert found == Known(worker=w(3), address=THERE, token=9)


@pytest.mark.parametrize("value", [b"", b"{}", b"[1]", b'{"worker": "w0", "host": "h"}', b"\xff"])
def test_a_foreign_value_is_the_stores_fault(value: bytes) -> None:
    with pytest.raises(StoreError, match="not an address"):
        read_leader(value, 1)


def test_a_vacant_key_is_contested_once() -> None:
    mine = election()
    assert mine.saw(None, 0, leader_answers=False) == 0
    assert mine.contesting
    assert mine.saw(None, 0, leader_answers=False) is None


def test_a_newcomer_leaves_a_vacant_key_alone() -> None:
    assert election(may_lead=False).saw(None, 0, leader_answers=False) is None


def test_losing_a_lease_is_not_death() -> None:
    assert election().saw(None, 0, leader_answers=True) is None


def test_a_held_key_is_noted() -> None:
    mine = election()
    assert mine.saw(write_leader(w(1), THERE), 4, leader_answers=False) is None
    assert mine.known == Known(worker=w(1), address=THERE, token=4)
    assert not mine.vacant()


def test_the_winner_leads_with_the_revision_as_token() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    assert mine.swapped(done=True, value=mine.value(), revision=7)
    assert mine.known == Known(worker=w(0), address=HERE, token=7)
    assert not mine.contesting


def test_a_swap_whose_answer_was_lost_is_won_when_it_is_asked_again() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    # The store carried out the first attempt; the second one finds its value.
    assert mine.swapped(done=False, value=mine.value(), revision=7)
    assert mine.known == Known(worker=w(0), address=HERE, token=7)
    assert not mine.contesting


def test_a_swap_whose_answer_was_lost_is_not_won_after_the_key_lapsed() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    mine.saw(mine.value(), 7, leader_answers=False)
    mine.saw(None, 0, leader_answers=False)
    assert not mine.swapped(done=False, value=mine.value(), revision=7)
    assert mine.vacant()


def test_the_loser_knows_the_winner() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    assert not mine.swapped(done=False, value=write_leader(w(1), THERE), revision=6)
    assert mine.known == Known(worker=w(1), address=THERE, token=6)


def test_a_key_that_fell_vacant_again_may_be_taken_later() -> None:
    mine = election()
    mine.saw(write_leader(w(1), THERE), 4, leader_answers=True)
    mine.saw(None, 0, leader_answers=True)
    assert mine.vacant()


def test_a_key_that_has_come_and_gone_before_the_answer_is_not_held() -> None:
    mine = election()
    assert mine.saw(None, 0, leader_answers=False) == 0
    mine.saw(mine.value(), 7, leader_answers=False)
    mine.saw(None, 0, leader_answers=False)
    assert not mine.swapped(done=True, value=mine.value(), revision=7)
    assert mine.vacant()


def test_a_rivals_key_that_has_come_and_gone_before_the_answer_leads_nobody() -> None:
    mine = election()
    assert mine.saw(None, 0, leader_answers=False) == 0
    mine.saw(write_leader(w(1), THERE), 7, leader_answers=False)
    mine.saw(None, 0, leader_answers=False)
    assert not mine.swapped(done=False, value=write_leader(w(1), THERE), revision=7)
    assert mine.known is None
    assert mine.vacant()


def test_a_late_answer_does_not_overrule_a_later_notification() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    mine.saw(write_leader(w(1), THERE), 9, leader_answers=False)
    assert not mine.swapped(done=False, value=write_leader(w(2), HERE), revision=6)
    assert mine.known == Known(worker=w(1), address=THERE, token=9)


def test_an_old_notification_does_not_overrule_a_later_answer() -> None:
    mine = election()
    mine.saw(None, 0, leader_answers=False)
    mine.swapped(done=False, value=write_leader(w(1), THERE), revision=9)
    assert mine.is_old(write_leader(w(2), HERE), 6)
    mine.saw(write_leader(w(2), HERE), 6, leader_answers=False)
    assert mine.known == Known(worker=w(1), address=THERE, token=9)


def test_an_answer_from_before_another_worker_led_is_not_won() -> None:
    """The watch was interrupted, so the vacancy in between was never seen."""
    mine = election()
    mine.saw(write_leader(w(1), THERE), 9, leader_answers=True)
    assert not mine.swapped(done=True, value=mine.value(), revision=5)
    assert mine.known == Known(worker=w(1), address=THERE, token=9)


def test_a_late_notification_of_a_vacancy_does_not_make_a_later_answer_void() -> None:
    mine = election()
    mine.saw(write_leader(w(1), THERE), 4, leader_answers=True)
    assert mine.swapped(done=True, value=mine.value(), revision=9)
    # This is the vacancy before revision 9, so the key is still this worker's.
    assert mine.saw(None, 0, leader_answers=False) == 0
    assert mine.swapped(done=False, value=mine.value(), revision=9)
    assert mine.known == Known(worker=w(0), address=HERE, token=9)
