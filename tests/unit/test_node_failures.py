"""One worker's machines when others fail: who takes the lease, who goes, who is only slow."""

from __future__ import annotations

from edl.protocol import messages as m
from edl.protocol.effects import (
    Announce,
    Begin,
    BreakGroup,
    BuildGroup,
    Close,
    Dial,
    Dismiss,
    Effect,
    Publish,
    Send,
    StoreSwap,
)
from edl.protocol.election import write_leader
from edl.protocol.events import (
    Broke,
    ContextReady,
    Event,
    GenerationSeen,
    GroupStands,
    Heard,
    LeaderSeen,
    PeerClosed,
    PeerOpened,
    StateSeen,
    Swapped,
    SwitchDecided,
    Tick,
)
from edl.protocol.node import Node
from edl.protocol.recorded import read_recorded, write_recorded
from edl.protocol.topology import Generation, draw_again, draw_next
from tests.seeded.cast import SETTINGS, first, member, names, sent, w

VACANT = LeaderSeen(value=None, revision=0)
LOST = PeerClosed(peer=-1, why="reset")
OUT = "the job went on without this worker"


def steps(machine: Node, *events: Event) -> list[Effect]:
    return [effect for event in events for effect in machine.step(event, 1.0)]


def following(*before: Event, request_id: str = "") -> Node:
    """w1, which trains with w0 and w2 in generation 1 and follows w0 over the connection -1."""
    machine = Node(me=member(1), request_id=request_id, founders=3, settings=SETTINGS)
    steps(machine, *before)
    leader = LeaderSeen(value=write_leader(w(0), member(0).address), revision=1)
    steps(machine, leader, PeerOpened(peer=-1), ContextReady(context_s=1.0))
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=first(0, 1, 2))))
    steps(machine, GroupStands(number=1, build_s=0.0))
    steps(machine, Heard(peer=-1, message=m.Founded(generation=1)), recorded(first(0, 1, 2), 2))
    return machine


def recorded(generation: Generation, revision: int) -> GenerationSeen:
    return GenerationSeen(value=write_recorded(generation, ()), revision=revision)


def mended(number: int, *lost: int, leader: int = 1, token: int = 7) -> Generation:
    dead = [w(one) for one in lost]
    return draw_again(first(0, 1, 2), number=number, dead=dead, leader=w(leader), token=token)


def won(revision: int = 7) -> Swapped:
    value = write_leader(w(1), member(1).address)
    return Swapped(purpose="leader", done=True, value=value, revision=revision)


def leading() -> Node:
    """w1 after w0 was lost without a word."""
    machine = following()
    steps(machine, LOST, VACANT, won())
    return machine


# -- the lease -------------------------------------------------------------------------------


def test_a_survivor_takes_the_lease_and_makes_a_generation_of_the_rest_at_once() -> None:
    machine = following()
    (contest,) = steps(machine, LOST, VACANT)
    assert isinstance(contest, StoreSwap)
    effects = steps(machine, won())
    assert BreakGroup(number=1, why="w0 is lost: the leader stopped responding") in effects
    assert BuildGroup(generation=mended(2, 0)) in effects


def test_whoever_is_absent_from_the_last_recorded_generation_does_not_take_it() -> None:
    machine = following()
    leave = draw_next(
        first(0, 1, 2), number=2, joiners=(), leavers=names(1), token=1, request_id="in"
    )
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=leave)), recorded(leave, 3))
    assert steps(machine, LOST, VACANT) == []


def test_a_newcomer_without_a_step_does_not_take_it() -> None:
    machine = Node(me=member(3), request_id="r", founders=0, settings=SETTINGS)
    assert steps(machine, VACANT) == []


def test_a_member_that_comes_to_the_new_leader_hears_what_fell_and_what_to_build() -> None:
    machine = leading()
    hail = m.Hail(worker=w(2), generation=1, last=1)
    effects = steps(machine, Heard(peer=5, message=hail))
    assert sent(effects, m.Fell) == [(5, m.Fell(generation=1, why="a worker is lost"))]
    assert sent(effects, m.Prepare) == [(5, m.Prepare(generation=mended(2, 0)))]


def test_what_the_survivors_build_is_recorded_upon_what_the_store_had() -> None:
    machine = leading()
    steps(machine, Heard(peer=5, message=m.Hail(worker=w(2), generation=1, last=1)))
    built = m.GroupBuilt(generation=2, worker=w(2), build_s=0.0)
    (swap,) = steps(machine, GroupStands(number=2, build_s=0.0), Heard(peer=5, message=built))
    assert isinstance(swap, StoreSwap)
    assert (swap.key, swap.expected) == ("generation", 2)
    assert read_recorded(swap.value or b"").generation == mended(2, 0)
    done = Swapped(purpose="generation", done=True, value=swap.value, revision=8)
    word = m.Founded(generation=2)
    effects = steps(machine, done)
    assert Begin(generation=mended(2, 0)) in effects
    assert sent(effects, m.Founded) == [(5, word)]


def test_a_leader_that_others_recorded_without_is_out() -> None:
    machine = leading()
    steps(machine, Heard(peer=5, message=m.Hail(worker=w(2), generation=1, last=1)))
    built = m.GroupBuilt(generation=2, worker=w(2), build_s=0.0)
    steps(machine, GroupStands(number=2, build_s=0.0), Heard(peer=5, message=built))
    value = write_recorded(mended(4, 1, leader=0), ())
    refused = Swapped(purpose="generation", done=False, value=value, revision=9)
    assert steps(machine, refused)[-1] == Dismiss(why=OUT, failed=False)


def test_a_leader_with_a_stale_base_begins_again_upon_the_stores() -> None:
    machine = leading()
    steps(machine, Heard(peer=5, message=m.Hail(worker=w(2), generation=1, last=1)))
    built = m.GroupBuilt(generation=2, worker=w(2), build_s=0.0)
    steps(machine, GroupStands(number=2, build_s=0.0), Heard(peer=5, message=built))
    value = write_recorded(mended(4, leader=0), ())
    refused = Swapped(purpose="generation", done=False, value=value, revision=9)
    effects = steps(machine, refused)
    assert BuildGroup(generation=mended(5, 0)) in effects


def test_losing_the_lease_is_not_death() -> None:
    machine = following()
    assert steps(machine, VACANT) == []
    led = leading()
    (contest,) = steps(led, LeaderSeen(value=None, revision=0))
    assert isinstance(contest, StoreSwap)
    assert contest.expected == 0


def lost(effects: list[Effect]) -> dict[str, str]:
    told = [effect.happened for effect in effects if isinstance(effect, Publish)]
    gone = [happened.fields for happened in told if happened.what == "worker.lost"]
    return {str(fields["worker"]): str(fields["why"]) for fields in gone}


def test_a_key_that_was_asked_for_long_ago_is_no_word_of_a_death() -> None:
    """w0 led since, and let its lease lapse; it still answers. w2 hears of it late."""
    machine = following(VACANT)
    assert steps(machine, VACANT) == []
    effects = steps(machine, won())
    assert lost(effects) == {}
    assert BuildGroup(generation=mended(2)) in effects
    hail = m.Hail(worker=w(0), generation=1, last=1)
    effects = steps(machine, Heard(peer=4, message=hail))
    assert sent(effects, m.Prepare) == [(4, m.Prepare(generation=mended(2)))]
    until = 1.0 + SETTINGS.silence_s
    for tick in range(3, int(2 * until)):
        assert lost(machine.step(Tick(), tick / 2)) == {}
        steps(machine, Heard(peer=4, message=m.Pong(generation=1, worker=w(0))))
    assert lost(machine.step(Tick(), until)) == {w(2): "it has not come to the new leader"}


def test_events_and_status_of_a_new_leader_name_the_step_of_the_job() -> None:
    machine = following()
    machine.committed = 812
    effects = steps(machine, LOST, VACANT, won())
    told = [effect.happened for effect in effects if isinstance(effect, Publish)]
    assert {event.what for event in told} >= {"leader.changed", "worker.lost"}
    assert {event.step for event in told} == {812}
    assert machine.leader is not None
    assert machine.leader.status("r", 1.0).step == 812


def test_a_key_that_was_asked_for_long_ago_may_tell_of_a_death_all_the_same() -> None:
    machine = following(VACANT)
    effects = steps(machine, LOST, VACANT, won())
    assert lost(effects) == {w(0): "the leader stopped responding"}
    assert BuildGroup(generation=mended(2, 0)) in effects
    for now in (1.5, 2.0, 2.5):
        assert lost(machine.step(Tick(), now)) == {}
    late = machine.step(Tick(), 1.0 + SETTINGS.reconnect_s)
    assert lost(late) == {w(2): "it has not come to the new leader"}


def test_a_deposed_leader_announces_nothing_and_follows() -> None:
    machine = leading()
    other = LeaderSeen(value=write_leader(w(2), member(2).address), revision=9)
    effects = steps(machine, other)
    assert effects[0] == Announce(generation=0, switch_step=0, token=0)
    assert isinstance(effects[-1], Dial)
    assert machine.leader is None


def test_a_founder_inherits_what_the_first_leader_founded_and_nobody_heard_of() -> None:
    machine = Node(me=member(1), request_id="", founders=3, settings=SETTINGS)
    steps(machine, VACANT, won(3))
    assert machine.leader is not None
    assert not machine.leader.conductor.founded
    effects = steps(machine, recorded(first(0, 1, 2), 2))
    assert machine.leader.conductor.generation == first(0, 1, 2)
    assert any(isinstance(effect, BuildGroup) for effect in effects)


# -- silence ---------------------------------------------------------------------------------


def test_a_follower_pings_its_leader_and_gives_a_silent_one_up() -> None:
    machine = following()
    ping = m.Ping(generation=1, worker=w(1))
    assert machine.step(Tick(), 1.0) == [Send(peer=-1, message=ping)]
    now = 1.0
    while now < 10.9:
        now += 1.3
        effects = machine.step(Tick(), now)
    assert effects == [Close(peer=-1)]


def test_silence_on_a_lost_connection_does_not_count_against_the_next_one() -> None:
    """An opened connection is an answer: the leader has just proved the secret on it."""
    machine = following()
    for tenth in range(10, 100, 9):
        machine.step(Tick(), tenth / 10)
    machine.step(PeerClosed(peer=-1, why="lost"), 10.0)
    assert Dial(peer=-2, address=member(0).address) in machine.step(Tick(), 10.5)
    machine.step(PeerOpened(peer=-2), 10.9)
    assert Close(peer=-2) not in machine.step(Tick(), 11.2)


def test_an_answer_keeps_the_leader() -> None:
    machine = following()
    for tenth in range(10, 400, 13):
        effects = machine.step(Tick(), tenth / 10)
        assert Close(peer=-1) not in effects
        pong = m.Pong(generation=1, worker=w(0))
        machine.step(Heard(peer=-1, message=pong), tenth / 10)


# -- who goes --------------------------------------------------------------------------------


def test_a_zombie_goes_by_the_stores_word_alone() -> None:
    machine = following()
    assert steps(machine, recorded(mended(2, 1, leader=0), 3)) == [
        BreakGroup(number=1, why=OUT),
        Dismiss(why=OUT, failed=False),
    ]


def test_one_that_is_stuck_while_the_job_ends_is_free_whichever_comes_first() -> None:
    free = Dismiss(why="the job is finished", failed=False, over=True)
    machine = following()
    assert steps(machine, StateSeen(value=b"finished")) == []
    assert free in steps(machine, Broke(generation=1, why="reset"))
    machine = following()
    steps(machine, Broke(generation=1, why="reset"))
    assert steps(machine, StateSeen(value=b"finished")) == [free]


def test_a_switch_decided_after_it_fell_changes_nothing() -> None:
    machine = following()
    later = draw_next(
        first(0, 1, 2), number=2, joiners=(), leavers=names(2), token=1, request_id="in"
    )
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=later)))
    steps(machine, Heard(peer=-1, message=m.Fell(generation=2, why="w2 died")))
    assert steps(machine, SwitchDecided(generation=2, step=5)) == []
    assert machine.worker.generation == first(0, 1, 2)


def test_a_leader_does_not_yield_to_one_from_before_it() -> None:
    machine = leading()
    before = LeaderSeen(value=write_leader(w(0), member(0).address), revision=3)
    assert steps(machine, before) == []
    assert machine.leader is not None


def test_one_that_still_waits_in_a_round_when_the_job_is_long_over_breaks_it() -> None:
    machine = following()
    steps(machine, StateSeen(value=b"finished"), Tick())
    effects = machine.step(Tick(), 1.0 + SETTINGS.silence_s)
    assert BreakGroup(number=1, why="the job is finished") in effects
