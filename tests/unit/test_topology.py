"""Generations: order, newcomers, and shares that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.topology import (
    FULL,
    draw_again,
    draw_first,
    draw_next,
    part_of,
    split,
    split_among,
    weighed,
)
from tests.seeded.cast import drawn, first, member, names, w


def test_founders_are_ranked_by_name_and_take_the_leaders_state() -> None:
    made = draw_first([member(i) for i in (10, 2, 1)], number=1, leader=w(2), token=5)
    assert made.workers() == names(1, 2, 10)
    assert made.source == made.leader == w(2)
    assert made.newcomers == names(1, 10)
    assert made.founding
    assert made.token == 5


def test_founders_carry_their_share_at_once() -> None:
    assert first(0, 1, 2).carriers(entering=True) == names(0, 1, 2)


def test_newcomers_come_last_and_enter_without_a_share() -> None:
    new = draw_next(
        first(0, 1),
        number=2,
        joiners=[member(10), member(9)],
        leavers=(),
        token=3,
        request_id="r",
    )
    assert new.workers() == names(0, 1, 9, 10)
    assert new.newcomers == names(9, 10)
    assert new.carriers(entering=True) == names(0, 1)
    assert new.carriers(entering=False) == names(0, 1, 9, 10)
    assert (new.source, new.leader, new.founding) == (w(0), w(0), False)


def test_elders_are_those_who_were_there_before_if_others_are_new() -> None:
    founded = first(0, 1, 2)
    assert founded.elders() == ()
    joined = draw_next(
        founded, number=2, joiners=[member(3)], leavers=names(0), token=3, request_id="r"
    )
    assert joined.elders() == names(1, 2)
    left = draw_next(joined, number=3, joiners=(), leavers=names(2), token=3, request_id="r")
    assert left.elders() == ()


def test_the_first_stayer_leads_when_the_leader_leaves() -> None:
    new = draw_next(first(0, 1, 2), number=2, joiners=(), leavers=names(0), token=3, request_id="r")
    assert new.workers() == names(1, 2)
    assert new.leader == new.source == w(1)


def test_a_generation_cannot_be_empty() -> None:
    with pytest.raises(ValueError, match="at least one worker"):
        draw_next(first(0), number=2, joiners=(), leavers=names(0), token=1, request_id="r")


def test_rank_and_member_agree() -> None:
    generation = first(0, 1, 2)
    assert [generation.rank(worker) for worker in generation.workers()] == [0, 1, 2]
    assert generation.member(w(2)) == member(2)
    assert w(2) in generation
    assert w(3) not in generation
    assert generation.size == 3


@drawn
@given(total=st.integers(0, 5000), parts=st.integers(1, 300))
def test_shares_add_up_and_are_as_even_as_can_be(total: int, parts: int) -> None:
    shares = split(total, parts)
    assert len(shares) == parts
    assert sum(shares) == total
    assert sorted(shares, reverse=True) == list(shares)
    carrying = [share for share in shares if share]
    assert not carrying or max(carrying) - min(carrying) <= 1


@drawn
@given(total=st.integers(2, 5000), parts=st.integers(1, 300))
def test_nobody_gets_a_single_sample_where_two_can_be_had(total: int, parts: int) -> None:
    assert 1 not in split(total, parts)


@drawn
@given(total=st.integers(0, 500), parts=st.integers(1, 60))
def test_one_part_is_where_the_split_puts_it(total: int, parts: int) -> None:
    shares = split(total, parts)
    for index, share in enumerate(shares):
        start, count = part_of(total, parts, index)
        assert count == share
        assert not count or start == sum(shares[:index])


def test_what_is_left_of_a_generation_keeps_its_order_and_everybody_carries_a_share() -> None:
    base = draw_next(
        first(0, 1, 2), number=2, joiners=[member(3)], leavers=(), token=1, request_id="r"
    )
    again = draw_again(base, number=5, dead=names(0, 2), leader=w(3), token=7)
    assert again.workers() == names(1, 3)
    assert (again.number, again.token, again.leader, again.request_id) == (5, 7, w(3), "r")
    assert again.mended
    assert not again.founding
    assert again.newcomers == ()
    assert again.carriers(entering=True) == names(1, 3)


def test_nothing_can_be_made_of_nobody() -> None:
    with pytest.raises(ValueError, match="nobody is left"):
        draw_again(first(0, 1), number=2, dead=names(0, 1), leader=w(0), token=1)


# -- shares by weight ------------------------------------------------------------------------


def test_without_weights_shares_are_as_even_as_ever() -> None:
    assert split_among(10, names(0, 1, 2), ()) == split(10, 3) == (4, 3, 3)


def test_a_worker_of_half_weight_has_half_a_share() -> None:
    assert split_among(100, names(0, 1, 2), ((w(1), 500),)) == (40, 20, 40)


@drawn
@given(
    total=st.integers(0, 500),
    weights=st.lists(st.integers(1, FULL), min_size=1, max_size=9),
)
def test_weighed_shares_add_up_and_nobody_has_a_single_sample(
    total: int, weights: list[int]
) -> None:
    carriers = names(*range(len(weights)))
    shares = split_among(total, carriers, tuple(zip(carriers, weights, strict=True)))
    assert sum(shares) == total
    assert len(shares) == len(carriers)
    assert min(shares) >= 0
    assert total == 1 or 1 not in shares


def test_a_full_weight_is_not_listed() -> None:
    assert weighed((), w(1), 500) == ((w(1), 500),)
    assert weighed(((w(1), 500),), w(1), FULL) == ()
