"""Those who stay for one step: when they go, who counts on them, and who leads after them."""

from __future__ import annotations

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.effects import Dismiss, LetGo, MayGo, StoreSwap
from edl.protocol.events import (
    Heard,
    Parted,
    Settled,
    StateSeen,
    Swapped,
    SwitchDecided,
    Through,
)
from edl.protocol.handover import reopened
from edl.protocol.leader import Leader
from edl.protocol.node import Node
from edl.protocol.recorded import read_recorded, write_recorded
from edl.protocol.recovery import Stage
from edl.protocol.standing import Knows
from edl.protocol.topology import draw_next
from edl.protocol.worker import State
from tests.seeded.cast import SETTINGS, first, member, names, sent, w
from tests.unit.test_migration import entered, found, told


def moving_leader() -> Leader:
    made = Leader(me=w(0), token=3, settings=Settings(), founders=2, peer=0)
    made.voice.peers = {w(0): 0, w(1): 11, w(2): 12, w(7): 17}
    inside = entered(0, 1, 2, leavers=(0, 2))
    made.conductor.enter(inside.generation or first(0))
    made.conductor.adjustment = inside.adjustment
    return made


def goodbye(worker: int) -> m.Leaving:
    return m.Leaving(generation=2, worker=w(worker))


def test_a_leader_that_moves_hands_over_when_all_who_go_are_gone() -> None:
    made = moving_leader()
    effects = made.parting.on_through(2, 5.0)
    assert told(effects) == ["adjust.parted"]
    assert made.conductor.leaves
    assert made.recovery.owing == {w(0), w(2)}
    assert not sent(made.on_message(0, goodbye(0), 5.1), m.Handover)
    effects = made.on_message(12, goodbye(2), 5.2)
    ((peer, past),) = sent(effects, m.Handover)
    assert peer == 11
    assert isinstance(past, m.Handover)
    # The others still listen to the old leader.
    assert sent(effects, m.Succeeded) == [(17, m.Succeeded(generation=2, worker=w(1)))]
    again = reopened(past, SETTINGS, 8.0)
    assert again is not None
    # They have trained by now: a failure must not take them for newcomers.
    assert (again.expected, again.joined, again.moving) == ({}, names(7), names(0, 2))
    assert again.waiting == {w(1), w(7)}
    assert again.report(9.0).size == 2


def test_the_last_switched_of_a_migration_may_come_while_survivors_build() -> None:
    """The store is slow: the survivors' group stands before it has answered anything."""
    made = Leader(me=w(0), token=3, settings=Settings(), founders=2, peer=0)
    made.voice.peers = {w(0): 0, w(1): 11, w(2): 12, w(7): 17}
    inside = entered(0, 1, 2, leavers=(2,))
    made.conductor.enter(inside.generation or first(0))
    made.conductor.adjustment, made.conductor.last_number = inside.adjustment, 2
    made.on_message(12, goodbye(2), 5.0)
    for peer, number in ((0, 0), (17, 7)):
        made.on_message(peer, has_switched(number), 5.1)
    made.on_worker_gone(w(7), "signal 9", 5.2, ended=True)
    assert made.recovery.stage is Stage.BUILDING
    # w1 was in its optimizer step and commits; only then does it say that it has switched.
    effects = made.on_message(11, has_switched(1), 5.3)
    effects += made.on_tick(5.4)
    assert not [effect for effect in effects if isinstance(effect, StoreSwap)]
    effects = made.on_message(0, has_built(0), 5.5)
    effects += made.on_message(11, has_built(1), 5.5)
    (swap,) = [effect for effect in effects if isinstance(effect, StoreSwap)]
    assert swap.value is not None
    assert read_recorded(swap.value).generation.workers() == names(0, 1)
    assert [(d.joined, d.left, d.undone) for d in read_recorded(swap.value).deeds] == [
        (names(7), names(2), "")
    ]
    answer = Swapped(purpose="generation", done=True, value=swap.value, revision=9)
    assert "adjust.complete" in told(made.on_swapped(answer, 5.6))
    assert made.conductor.adjustment is None


def has_switched(number: int) -> m.Switched:
    return m.Switched(
        generation=2,
        worker=w(number),
        step=9,
        transfer_s=0.0,
        transfer_bytes=0,
        stop_s=0.0,
    )


def has_built(number: int) -> m.GroupBuilt:
    return m.GroupBuilt(generation=3, worker=w(number), build_s=0.0)


def test_where_a_leaver_is_lost_the_successor_has_to_act() -> None:
    made = moving_leader()
    made.parting.on_through(2, 5.0)
    made.on_message(0, goodbye(0), 5.1)
    effects = made.on_worker_gone(w(2), "signal 9", 5.2, ended=True)
    assert told(effects) == ["worker.lost"]
    ((_, past),) = sent(made.on_tick(5.3), m.Handover)
    assert isinstance(past, m.Handover)
    assert past.open_switch is not None
    assert past.open_switch.parting == names(2)


def test_a_leaver_that_has_let_the_others_go_on_never_leads() -> None:
    node = member_node(1)
    node.step(SwitchDecided(generation=2, step=9), 4.0)
    node.step(Settled(generation=2), 4.1)
    assert node.step(Through(generation=2), 4.2) == [LetGo(generation=2)]
    assert not node.election.may_lead
    won = Swapped(purpose="leader", done=True, value=node.election.value(), revision=9)
    assert any(isinstance(effect, Dismiss) for effect in node.step(won, 4.3))


@pytest.mark.parametrize("early", [True, False])
def test_a_leader_that_has_parted_awaits_no_successor_once_the_job_is_over(early: bool) -> None:
    node = member_node(1)
    node.step(SwitchDecided(generation=2, step=9), 4.0)
    node.step(Settled(generation=2), 4.1)
    node.leader = Leader(me=w(1), token=3, settings=Settings(), founders=3, peer=0)
    over, parted = StateSeen(value=b"finished"), Parted(generation=2)
    if early:
        assert node.step(over, 4.2) == []
    assert node.step(Through(generation=2), 4.3) == [LetGo(generation=2)]
    assert node.step(parted, 4.4) == ([MayGo()] if early else [])
    assert node.step(over, 4.5) == ([] if early else [MayGo()])


def test_a_leaver_stays_if_the_generation_fell_before_it_could_go() -> None:
    node = member_node(1)
    node.step(SwitchDecided(generation=2, step=9), 4.0)
    node.step(Heard(peer=-1, message=m.Fell(generation=2, why="w7 is lost")), 4.1)
    assert node.step(Through(generation=2), 4.2) == []
    assert node.worker.state is State.TRAINING


def test_a_stayer_knows_when_everybody_is_through() -> None:
    node = member_node(0)
    node.step(SwitchDecided(generation=2, step=9), 4.0)
    target = node.worker.generation
    assert target is not None
    assert node.standing.knows(target) == Knows(entered=True)
    node.step(Settled(generation=2), 4.1)
    assert node.standing.knows(target) == Knows(entered=True, settled=True)
    assert node.step(Through(generation=2), 4.2) == []
    assert node.standing.knows(target) == Knows(entered=True, settled=True, through=True)


def member_node(number: int) -> Node:
    """A founder that follows w2, before a switch with which w1 goes and w7 comes."""
    made = Node(me=member(number), request_id="", founders=3, settings=Settings())
    made.worker.generation = first(0, 1, 2)
    made.worker.state = State.TRAINING
    target = draw_next(
        first(0, 1, 2),
        number=2,
        joiners=(member(7),),
        leavers=(),
        leaving=names(1),
        token=3,
        request_id="r",
    )
    made.worker.prepared[2] = target
    made.following, made._link = w(2), -1
    made.standing.take_note(write_recorded(target, []), 6)
    return made


@pytest.mark.parametrize("through", [True, False])
def test_a_leader_that_was_past_the_step_calls_no_leaver_lost(through: bool) -> None:
    heir = Leader(me=w(1), token=8, settings=Settings(), founders=2, peer=0)
    knows = Knows(entered=True, settled=True, through=through)
    heir.inherit(found(0), revision=6, last=2, knows=knows, lost=None, now=1.0)
    assert heir.recovery.target is not None
    assert (w(0) in heir.recovery.target) != through
    assert "worker.lost" not in told(heir.on_worker_gone(w(0), "it ended", 1.5, ended=True))
    assert heir.recovery.target.workers() == names(1, 7)
