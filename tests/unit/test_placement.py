"""Where GPUs lie: packed, gathered, grown, shrunk, and room made by moving others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.policy.decisions import Where
from edl.policy.placement import gather, grow, machines_for, make_room, pack, shrink

M = 4
some = settings(max_examples=50, deadline=None)
free = st.lists(st.integers(0, M), min_size=1, max_size=6)


def total(where: Where) -> int:
    return sum(count for _, count in where)


@pytest.mark.parametrize(
    ("free_on", "gpus", "where"),
    [
        # Up to a machine: on one, where the fewest are left.
        ([4, 3, 2], 2, ((2, 2),)),
        ([4, 3, 2], 3, ((1, 3),)),
        ([4, 3, 4], 4, ((0, 4),)),
        ([3, 2, 3], 4, None),
        ([2, 2], 2, ((0, 2),)),
        # More: idle machines, and one for the rest.
        ([1, 4, 3, 4], 8, ((1, 4), (3, 4))),
        ([1, 4, 3, 4], 9, ((0, 1), (1, 4), (3, 4))),
        ([1, 4, 3, 4], 10, ((1, 4), (2, 2), (3, 4))),
        ([0, 4, 0, 4], 6, ((1, 4), (3, 2))),
        ([3, 3, 3, 3], 6, None),
        ([4, 1, 1, 1], 6, None),
        ([4, 4], 9, None),
    ],
)
def test_packed(free_on: list[int], gpus: int, where: Where | None) -> None:
    assert pack(free_on, gpus, M) == where


@pytest.mark.parametrize(
    ("free_on", "gpus", "machines", "where"),
    [
        ([3, 3, 3], 6, 2, ((0, 3), (1, 3))),
        ([3, 1, 2], 5, 2, ((0, 3), (2, 2))),
        # The last part where it fits best.
        ([4, 3, 1], 5, 2, ((0, 4), (2, 1))),
        ([3, 1, 1], 5, 2, None),
        ([3, 1, 1], 5, 3, ((0, 3), (1, 1), (2, 1))),
        ([1, 0, 0], 2, 3, None),
        ([4], 1, 0, None),
    ],
)
def test_gathered(free_on: list[int], gpus: int, machines: int, where: Where | None) -> None:
    assert gather(free_on, gpus, machines) == where


@pytest.mark.parametrize(
    ("free_on", "before", "more", "after"),
    [
        # On its own machine first, though another fits better.
        ([2, 1], ((0, 2),), 1, ((0, 3),)),
        # Where it has more already.
        ([1, 1, 0], ((0, 1), (1, 3)), 1, ((0, 1), (1, 4))),
        # 6 need two machines, so there may be a second one.
        ([1, 3, 4], ((0, 3),), 3, ((0, 4), (1, 2))),
        # 4 need one, so there may not.
        ([1, 4], ((0, 2),), 2, None),
        ([0, 1, 1], ((0, 4),), 2, None),
    ],
)
def test_grown(free_on: list[int], before: Where, more: int, after: Where | None) -> None:
    assert grow(free_on, before, more, M) == after


def test_grown_over_more_machines_only_if_that_is_wanted() -> None:
    assert grow([0, 1, 1], ((0, 4),), 2, M) is None
    assert grow([0, 1, 1], ((0, 4),), 2, M, spread=True) == ((0, 4), (1, 1), (2, 1))
    assert grow([0, 1, 0], ((0, 4),), 2, M, spread=True) is None


@pytest.mark.parametrize(
    ("before", "fewer", "after"),
    [
        (((0, 4), (1, 2)), 1, ((0, 4), (1, 1))),
        (((0, 4), (1, 2)), 2, ((0, 4),)),
        (((0, 4), (1, 2)), 3, ((0, 3),)),
        (((0, 2), (1, 2)), 1, ((0, 2), (1, 1))),
        (((0, 2),), 2, ()),
    ],
)
def test_shrunk(before: Where, fewer: int, after: Where) -> None:
    assert shrink(before, fewer) == after


def test_room_is_made_by_the_smallest_that_is_enough() -> None:
    there: dict[int, Where] = {0: ((0, 1),), 1: ((0, 2),), 2: ((1, 3),)}
    # Machine 0 has one idle GPU: the smaller is enough for 2, the larger for 3, both for 4.
    assert make_room([1, 1, 0], 2, M, there) == [(0, ((1, 1),))]
    assert make_room([1, 0, 2], 3, M, {1: ((0, 2),), 0: ((0, 1),)}) == [(1, ((2, 2),))]
    assert make_room([1, 0, 3], 4, M, {0: ((0, 1),), 1: ((0, 2),)}) == [
        (1, ((2, 2),)),
        (0, ((2, 1),)),
    ]


def test_no_room_is_made_by_more_moves_than_are_allowed() -> None:
    there: dict[int, Where] = {0: ((0, 1),), 1: ((0, 2),)}
    assert make_room([1, 0, 3], 4, M, there, moves=1) is None
    assert make_room([1, 0, 3], 4, M, {0: ((0, 3),)}, moves=1) == [(0, ((2, 3),))]


def test_jobs_on_several_machines_stay() -> None:
    assert make_room([2, 3], 4, M, {0: ((0, 2), (1, 1))}) is None


def test_whole_machines_are_cleared_for_what_needs_them() -> None:
    there: dict[int, Where] = {0: ((0, 1),), 1: ((1, 1),), 2: ((2, 2),)}
    assert make_room([3, 3, 2], 8, M, there) == [(0, ((2, 1),)), (1, ((2, 1),))]
    assert make_room([3, 3, 2], 8, M, there, moves=1) is None
    # Somebody is there who cannot move.
    assert make_room([3, 3, 2], 8, M, {0: ((0, 1),)}) is None
    assert make_room([4, 4, 2], 9, M, {}) is None


@given(free_on=free, gpus=st.integers(1, 24))
@some
def test_what_is_packed_fits_and_lies_on_as_few_machines_as_can_be(
    free_on: list[int], gpus: int
) -> None:
    found = pack(free_on, gpus, M)
    if found is None:
        # Nor could one more.
        assert pack(free_on, gpus + 1, M) is None
        return
    assert total(found) == gpus
    assert len(found) == machines_for(gpus, M)
    assert all(0 < count <= free_on[node] for node, count in found)
    assert found == tuple(sorted(found))
    assert gather(free_on, gpus, len(found)) is not None


@given(free_on=free, gpus=st.integers(1, 24), machines=st.integers(0, 6))
@some
def test_what_is_gathered_is_found_whenever_it_is_there(
    free_on: list[int], gpus: int, machines: int
) -> None:
    found = gather(free_on, gpus, machines)
    there = sum(sorted(free_on, reverse=True)[:machines]) >= gpus
    assert (found is not None) == there
    if found is not None:
        assert total(found) == gpus
        assert len(found) <= machines
        assert all(0 < count <= free_on[node] for node, count in found)


@given(free_on=free, first=st.integers(1, 8), more=st.integers(1, 8), spread=st.booleans())
@some
def test_growing_takes_idle_gpus_and_shrinking_gives_them_back(
    free_on: list[int], first: int, more: int, spread: bool
) -> None:
    where = pack(free_on, first, M)
    if where is None:
        return
    left = list(free_on)
    for node, count in where:
        left[node] -= count
    grown = grow(left, where, more, M, spread=spread)
    if grown is None:
        assert not spread or sum(left) < more
        return
    assert total(grown) == first + more
    for node, count in grown:
        assert dict(where).get(node, 0) <= count <= dict(where).get(node, 0) + left[node]
    if not spread:
        assert len(grown) <= machines_for(first + more, M)
    back = shrink(grown, more)
    assert total(back) == first
    assert all(count <= dict(grown)[node] for node, count in back)
    assert len(back) <= len(grown)


@given(data=st.data(), gpus=st.integers(1, 10))
@some
def test_after_the_moves_there_is_room(data: st.DataObject, gpus: int) -> None:
    nodes = 4
    sizes = [data.draw(st.lists(st.integers(1, 3), max_size=3)) for _ in range(nodes)]
    free_on = [M] * nodes
    jobs: dict[int, Where] = {}
    for node, counts in enumerate(sizes):
        for count in counts:
            if count <= free_on[node]:
                free_on[node] -= count
                jobs[len(jobs)] = ((node, count),)
    if pack(free_on, gpus, M) is not None:
        return
    moves = make_room(free_on, gpus, M, jobs)
    if moves is None:
        return
    assert 1 <= len(moves) <= 2
    for key, where in moves:
        for node, count in jobs[key]:
            free_on[node] += count
        for node, count in where:
            free_on[node] -= count
            assert free_on[node] >= 0
    assert pack(free_on, gpus, M) is not None
