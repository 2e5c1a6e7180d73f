"""The groups of a generation that some stay in for its first step only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from edl.errors import GroupBroken
from edl.protocol.topology import Generation
from edl.runtime.framework import Group
from edl.types import WorkerId
from tests.integration.rings import build_members, generation_of, in_threads, members


def moving(elders: int, *leaving: int) -> Generation:
    """One comes, and these of the elders go after its first step."""
    made = generation_of(members(elders + 1), newcomers=1)
    return replace(
        made,
        leaving=tuple(WorkerId(f"w{number}") for number in leaving),
        came=(WorkerId(f"w{elders}"),),
    )


def summed(group: Group, value: float) -> float:
    tensor = torch.tensor([value])
    group.all_reduce(tensor).wait()
    return tensor.item()


def part(group: Group, through: Callable[[], None] = lambda: None) -> None:
    group.part(through).wait()


@pytest.mark.parametrize(("elders", "leaving"), [(3, (0, 2)), (2, (1,)), (2, (0, 1)), (1, (0,))])
def test_those_who_stay_go_on_in_groups_of_their_own(elders: int, leaving: tuple[int, ...]) -> None:
    generation = moving(elders, *leaving)
    groups = build_members(generation)
    assert [group.size for group in groups] == [elders + 1] * (elders + 1)
    in_threads([partial(part, group) for group in groups])
    stayers = [groups[i] for i in range(elders + 1) if i not in leaving]
    for group in stayers:
        group.settle()
    # Leavers are gone with all they had.
    for number in leaving:
        groups[number].drop()
    ranks = [(group.rank, group.size) for group in stayers]
    assert ranks == [(rank, len(stayers)) for rank in range(len(stayers))]
    sums = in_threads([partial(summed, group, float(1 + i)) for i, group in enumerate(stayers)])
    assert set(sums) == {sum(1.0 + i for i in range(len(stayers)))}
    rows = in_threads([partial(lambda g: g.exchange([g.rank]).result(), g) for g in stayers])
    assert rows == [[[rank] for rank in range(len(stayers))]] * len(stayers)
    for group in stayers:
        group.drop_state()
        group.drop()


def test_nobody_parts_before_a_leaver_agrees() -> None:
    groups = build_members(moving(2, 0))
    agreed = threading.Event()
    heard: list[int] = []

    def agree() -> None:
        heard.append(0)
        assert agreed.wait(20)

    tasks = [groups[0].part(agree), *(g.part(lambda: heard.append(1)) for g in groups[1:])]
    waiting = [threading.Thread(target=task.wait) for task in tasks]
    for thread in waiting:
        thread.start()
    while len(heard) < 3:
        threading.Event().wait(0.01)
    # Everybody is through, and those who stay cannot go on yet.
    waiting[1].join(0.2)
    assert all(thread.is_alive() for thread in waiting)
    agreed.set()
    for thread in waiting:
        thread.join(20)
        assert not thread.is_alive()
    for group in groups:
        group.drop()


def test_a_group_of_one_that_others_have_left_can_still_be_broken() -> None:
    groups = build_members(moving(1, 0))
    in_threads([partial(part, group) for group in groups])
    last = groups[1]
    last.settle()
    assert last.exchange([7]).result() == [[7]]
    assert summed(last, 3.0) == 3.0
    last.break_("the job went on without this worker")
    with pytest.raises(GroupBroken, match="went on"):
        last.exchange([8])
    for group in groups:
        group.drop()


def test_a_leaver_that_is_lost_before_it_parts_is_noticed() -> None:
    groups = build_members(moving(2, 1))
    tasks = [groups[0].part(lambda: None), groups[2].part(lambda: None)]
    groups[1].break_("its process has ended")
    for task in tasks:
        with pytest.raises(GroupBroken):
            task.wait()
    for group in groups:
        group.drop()
