"""One worker's machines together: finding a leader, being one, handing over, going."""

from __future__ import annotations

from edl.protocol import messages as m
from edl.protocol.closing import TOLD_S
from edl.protocol.effects import (
    Begin,
    BuildGroup,
    Close,
    Dial,
    Dismiss,
    Effect,
    MayGo,
    OfferKey,
    Send,
    StoreSwap,
)
from edl.protocol.election import write_leader
from edl.protocol.events import (
    ContextReady,
    Entered,
    Event,
    GroupFell,
    GroupStands,
    Heard,
    JobOver,
    KeyMade,
    LeaderSeen,
    PeerClosed,
    PeerOpened,
    StateSeen,
    Swapped,
    SwitchDecided,
    Tick,
)
from edl.protocol.leader import tell_end
from edl.protocol.node import Node
from edl.protocol.record import STOP
from edl.protocol.recorded import write_recorded
from edl.protocol.topology import Generation, draw_next
from tests.seeded.cast import SETTINGS, first, joiner, member, names, sent, w

VACANT = LeaderSeen(value=None, revision=0)


def node(number: int, *, founders: int = 2, request_id: str = "") -> Node:
    return Node(me=member(number), request_id=request_id, founders=founders, settings=SETTINGS)


def seen(number: int, revision: int) -> LeaderSeen:
    value = write_leader(w(number), member(number).address)
    return LeaderSeen(value=value, revision=revision)


def swapped(number: int, revision: int, *, done: bool = True) -> Swapped:
    value = write_leader(w(number), member(number).address)
    return Swapped(purpose="leader", done=done, value=value, revision=revision)


def contest(number: int, expected: int = 0) -> StoreSwap:
    return StoreSwap(
        purpose="leader",
        key="leader",
        expected=expected,
        value=write_leader(w(number), member(number).address),
        leased=True,
    )


def recorded(number: int) -> Swapped:
    value = write_recorded(first(0, 1), ())
    return Swapped(purpose="generation", done=True, value=value, revision=10 + number)


def steps(machine: Node, *events: Event) -> list[Effect]:
    """Every effect of these events, one after another."""
    return [effect for event in events for effect in machine.step(event, 1.0)]


def following() -> Node:
    """w1, which trains in generation 1 and follows w0 over the connection -1."""
    machine = node(1)
    steps(machine, seen(0, 1), PeerOpened(peer=-1), ContextReady(context_s=1.0))
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=first(0, 1))))
    steps(machine, GroupStands(number=1, build_s=0.0))
    steps(machine, Heard(peer=-1, message=m.Founded(generation=1)))
    return machine


def leading() -> Node:
    """w0, which leads w1 (over the connection 1) in generation 1."""
    machine = node(0)
    steps(machine, VACANT, swapped(0, 1), ContextReady(context_s=1.0))
    register = m.Register(member=member(1), request_id="", process_start_s=0.0, last=0)
    ready = m.Ready(worker=w(1), request_id="", context_s=1.0)
    steps(machine, Heard(peer=1, message=register), Heard(peer=1, message=ready))
    built = m.GroupBuilt(generation=1, worker=w(1), build_s=0.0)
    steps(machine, GroupStands(number=1, build_s=0.0), Heard(peer=1, message=built))
    steps(machine, recorded(1))
    return machine


def without_leader() -> Generation:
    return draw_next(first(0, 1), number=2, joiners=(), leavers=names(0), token=1, request_id="r")


def handover(revision: int = 1) -> m.Handover:
    return m.Handover(
        generation=without_leader(),
        leader_revision=revision,
        generation_revision=12,
        last_number=2,
        seq=4,
        stopping="",
        answers=(),
        records=(),
        deeds=(),
        recent=(),
        open_switch=None,
    )


def heir() -> Node:
    """w1 after the switch that left w0 out, before it has taken over."""
    machine = following()
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=without_leader())))
    steps(machine, GroupStands(number=2, build_s=0.0), SwitchDecided(generation=2, step=5))
    return machine


def prepare_to_leave(machine: Node) -> None:
    ask = m.ScaleIn(request_id="r", workers=names(0), gpus=(), count=0)
    built = m.GroupBuilt(generation=2, worker=w(1), build_s=0.0)
    steps(machine, Heard(peer=9, message=ask), GroupStands(number=2, build_s=0.0))
    steps(machine, Heard(peer=1, message=built), recorded(2))


def leaving_leader() -> Node:
    """w0 after the switch that left it out, with the hand-over sent."""
    machine = leading()
    prepare_to_leave(machine)
    assert sent(steps(machine, SwitchDecided(generation=2, step=5)), m.Handover)
    return machine


# -- finding a leader ------------------------------------------------------------------------


def test_a_founder_contests_a_vacant_key() -> None:
    assert node(0).step(VACANT, 0.0) == [contest(0)]


def test_a_newcomer_waits_for_a_leader() -> None:
    assert node(2, founders=0, request_id="r").step(VACANT, 0.0) == []


def test_the_loser_follows_the_winner() -> None:
    machine = node(1)
    machine.step(VACANT, 0.0)
    address = member(0).address
    assert machine.step(swapped(0, 1, done=False), 0.0) == [Dial(peer=-1, address=address)]
    assert machine.step(seen(0, 1), 0.0) == []


def test_it_registers_when_the_leader_answers() -> None:
    machine = node(1)
    machine.step(seen(0, 1), 0.0)
    register = m.Register(member=member(1), request_id="", process_start_s=0.0, last=0)
    assert machine.step(PeerOpened(peer=-1), 0.0) == [Send(peer=-1, message=register)]


def test_a_lost_leader_is_dialled_again_after_a_moment() -> None:
    machine = following()
    assert machine.step(PeerClosed(peer=-1, why="lost"), 5.0) == []
    assert machine.step(Tick(), 5.09) == []
    assert machine.step(Tick(), 5.3) == [Dial(peer=-2, address=member(0).address)]
    hail = m.Hail(worker=w(1), generation=1, last=1)
    assert machine.step(PeerOpened(peer=-2), 5.4) == [Send(peer=-2, message=hail)]


def test_heartbeats_of_a_leader_go_to_members_and_to_newcomers_that_have_registered() -> None:
    machine = leading()
    assert machine.watchers() == (member(1).address,)
    out = m.ScaleOut(request_id="out", joiners=(joiner(2), joiner(3)))
    register = m.Register(member=member(2), request_id="out", process_start_s=0.0, last=0)
    steps(machine, Heard(peer=9, message=out), Heard(peer=2, message=register))
    assert machine.watchers() == (member(1).address, member(2).address)


def test_heartbeats_of_the_first_leader_go_to_founders_before_they_are_members() -> None:
    machine = node(0)
    register = m.Register(member=member(1), request_id="", process_start_s=0.0, last=0)
    steps(machine, VACANT, swapped(0, 1), Heard(peer=1, message=register))
    assert machine.watchers() == (member(1).address,)


def test_a_new_leader_hears_the_watchdog_of_a_worker_that_has_not_come_yet() -> None:
    """Its script holds the GIL; the watchdog dials by itself, so the connection is nobody's."""
    machine = Node(me=member(1), request_id="", founders=3, settings=SETTINGS)
    everyone = first(0, 1, 2)
    steps(machine, seen(0, 1), PeerOpened(peer=-1), ContextReady(context_s=1.0))
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=everyone)))
    steps(machine, GroupStands(number=1, build_s=0.0))
    steps(machine, Heard(peer=-1, message=m.Founded(generation=1)))
    steps(machine, PeerClosed(peer=-1, why="reset"), LeaderSeen(value=None, revision=0))
    steps(machine, swapped(1, 2))
    leader = machine.leader
    assert leader is not None
    assert set(leader.recovery.lost) == {w(0)}
    for half in range(2, 40):
        alive = m.Alive(worker=w(2), generation=0)
        machine.step(Heard(peer=7, message=alive), half / 2)
        machine.step(Tick(), half / 2)
    assert set(leader.recovery.lost) == {w(0)}


def redials(number: int, count: int) -> list[int]:
    """How many milliseconds a worker waits before each attempt to reach a leader that is gone."""
    machine = node(number)
    machine.step(seen(0, 1), 0.0)
    waits = []
    for attempt in range(1, count + 1):
        assert machine.step(PeerClosed(peer=-attempt, why="refused"), 0.0) == []
        dial = [Dial(peer=-attempt - 1, address=member(0).address)]
        waits.append(next(ms for ms in range(1000) if machine.step(Tick(), ms / 1000) == dial))
    return waits


def test_workers_redial_a_leader_at_times_of_their_own() -> None:
    """All of a thousand workers lose it at the same moment."""
    waits = {number: redials(number, 5) for number in range(1, 40)}
    assert all(100 <= wait <= 300 for each in waits.values() for wait in each)
    for attempt in range(5):
        assert len({each[attempt] for each in waits.values()}) > 20
    # They do not stay in step, and a run of the same workers repeats them.
    assert all(len(set(each)) > 1 for each in waits.values())
    assert waits[7] == redials(7, 5)


def test_a_follower_whose_leader_answers_leaves_a_lapsed_key_to_it() -> None:
    assert following().step(VACANT, 2.0) == []


def test_a_leader_that_is_being_dialled_is_not_known_to_be_gone() -> None:
    machine = following()
    steps(machine, PeerClosed(peer=-1, why="lost"))
    machine.step(Tick(), 5.0)
    assert machine.step(VACANT, 5.1) == []
    assert machine.step(PeerClosed(peer=-2, why="refused"), 5.2) == [contest(1)]


def test_a_leader_takes_its_lapsed_key_again() -> None:
    machine = leading()
    assert machine.step(VACANT, 2.0) == [contest(0)]
    assert machine.step(swapped(0, 9), 2.1) == []
    assert machine.leader is not None
    assert machine.leader.token == 9


# -- leader and worker in one ----------------------------------------------------------------


def test_a_leader_registers_with_itself() -> None:
    machine = node(0)
    effects = steps(machine, VACANT, swapped(0, 1))
    assert not sent(effects, m.Register)
    assert machine.leader is not None
    assert list(machine.leader.founding.arrived) == [w(0)]


def test_a_job_of_one_worker_founds_itself() -> None:
    machine = node(0, founders=1)
    effects = steps(machine, VACANT, swapped(0, 1), ContextReady(context_s=1.0))
    generation = first(0)
    assert effects[-1] == BuildGroup(generation=generation)
    assert isinstance(machine.step(GroupStands(number=1, build_s=0.0), 1.0)[0], StoreSwap)
    assert machine.step(recorded(1), 1.0)[0] == Begin(generation=generation)


def test_keys_travel_both_ways_through_a_leader() -> None:
    machine = node(0)
    steps(machine, VACANT, swapped(0, 1), ContextReady(context_s=1.0))
    register = m.Register(member=member(1), request_id="", process_start_s=0.0, last=0)
    ready = m.Ready(worker=w(1), request_id="", context_s=1.0)
    steps(machine, Heard(peer=1, message=register), Heard(peer=1, message=ready))
    mine = m.RendezvousKey(generation=1, worker=w(0), key="a", value=b"1")
    theirs = m.RendezvousKey(generation=1, worker=w(1), key="b", value=b"2")
    made = KeyMade(generation=1, key="a", value=b"1")
    assert machine.step(made, 1.0) == [Send(peer=1, message=mine)]
    offered = OfferKey(generation=1, key="b", value=b"2")
    assert machine.step(Heard(peer=1, message=theirs), 1.0) == [offered]


def test_a_group_that_fell_here_is_told_the_leader() -> None:
    machine = following()
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=without_leader())))
    failed = m.GroupFailed(generation=2, worker=w(1), why="no port")
    assert machine.step(GroupFell(number=2, why="no port"), 1.0) == [Send(peer=-1, message=failed)]


def test_a_follower_sends_requesters_away() -> None:
    ask = m.AskStatus(request_id="s")
    assert following().step(Heard(peer=4, message=ask), 1.0) == [
        Send(peer=4, message=m.NotLeader(request_id="s"))
    ]


def test_a_first_step_in_a_generation_is_told_the_leader() -> None:
    event = Entered(generation=1, step=0, transfer_s=0.5, transfer_bytes=7, stop_s=0.1)
    ((peer, said),) = sent(following().step(event, 1.0), m.Switched)
    assert peer == -1
    assert isinstance(said, m.Switched)
    assert (said.worker, said.transfer_s, said.transfer_bytes) == (w(1), 0.5, 7)


# -- the leader changes ----------------------------------------------------------------------


def test_the_successor_takes_the_key_at_the_old_leaders_revision() -> None:
    machine = heir()
    assert machine.step(Heard(peer=-1, message=handover()), 1.0) == [contest(1, expected=1)]
    effects = machine.step(swapped(1, 7), 1.1)
    taken = m.HandoverTaken(generation=2, worker=w(1))
    assert effects.index(Send(peer=-1, message=taken)) < effects.index(Close(peer=-1))
    assert machine.leader is not None
    assert machine.leader.conductor.generation == without_leader()


def test_a_vacant_key_is_taken_so() -> None:
    machine = heir()
    steps(machine, Heard(peer=-1, message=handover()))
    gone = Swapped(purpose="leader", done=False, value=None, revision=0)
    assert machine.step(gone, 1.0) == [contest(1, expected=0)]


def test_a_handover_is_outdated_once_another_worker_has_led() -> None:
    """That one may have answered what the handover calls open."""
    machine = heir()
    steps(machine, Heard(peer=-1, message=handover()))
    steps(machine, swapped(2, 7, done=False), VACANT)
    effects = steps(machine, swapped(1, 9))
    assert not sent(effects, m.HandoverTaken)
    assert machine.leader is not None


def test_a_handover_heard_twice_is_confirmed_twice() -> None:
    machine = heir()
    steps(machine, Heard(peer=-1, message=handover()), swapped(1, 7))
    taken = m.HandoverTaken(generation=2, worker=w(1))
    assert machine.step(Heard(peer=5, message=handover()), 2.0) == [Send(peer=5, message=taken)]


def test_what_comes_before_the_office_is_heard_in_it() -> None:
    machine = heir()
    steps(machine, Heard(peer=6, message=m.Hail(worker=w(5), generation=2, last=2)))
    effects = steps(machine, Heard(peer=-1, message=handover()), swapped(1, 7))
    assert [peer for peer, _ in sent(effects, m.Out)] == [6]


def test_the_office_ends_the_search_for_the_old_leader() -> None:
    machine = heir()
    steps(machine, Heard(peer=-1, message=handover()), PeerClosed(peer=-1, why="lost"))
    steps(machine, swapped(1, 7))
    assert not any(isinstance(effect, Dial) for effect in machine.step(Tick(), 9.0))


def test_stayers_turn_to_the_successor_at_the_switch() -> None:
    machine = node(2, founders=3)
    steps(machine, seen(0, 1), PeerOpened(peer=-1), ContextReady(context_s=1.0))
    generation = first(0, 1, 2)
    target = draw_next(generation, number=2, joiners=(), leavers=names(0), token=1, request_id="r")
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=generation)))
    steps(machine, Heard(peer=-1, message=m.Founded(generation=1)))
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=target)))
    assert machine.step(SwitchDecided(generation=2, step=5), 1.0) == [
        Close(peer=-1),
        Dial(peer=-2, address=member(1).address),
    ]


def test_a_stayer_that_knows_a_later_leader_does_not_turn_to_the_one_of_the_switch() -> None:
    machine = node(1, founders=3)
    steps(machine, seen(0, 1), PeerOpened(peer=-1), ContextReady(context_s=1.0))
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=first(0, 1, 2))))
    steps(machine, GroupStands(number=1, build_s=0.0))
    steps(machine, Heard(peer=-1, message=m.Founded(generation=1)))
    joined = draw_next(
        first(0, 1, 2), number=2, joiners=[member(3)], leavers=(), token=1, request_id="r"
    )
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=joined)))
    steps(machine, GroupStands(number=2, build_s=0.0))
    # The leader dies, and w2 leads before this worker's training comes to the switch.
    steps(machine, PeerClosed(peer=-1, why="reset"), VACANT, seen(2, 5), PeerOpened(peer=-2))
    assert machine.following == w(2)
    assert steps(machine, SwitchDecided(generation=2, step=5)) == []
    assert machine.following == w(2)


def test_an_old_leader_goes_when_its_successor_says_so() -> None:
    machine = leaving_leader()
    taken = m.HandoverTaken(generation=2, worker=w(1))
    assert machine.step(Heard(peer=1, message=taken), 2.0) == [MayGo()]
    assert machine.step(Heard(peer=1, message=taken), 2.0) == []


def test_an_old_leader_goes_when_the_store_says_so() -> None:
    assert leaving_leader().step(seen(1, 20), 2.0) == [MayGo()]


def test_an_old_leader_goes_when_the_job_is_over_for_nobody_takes_over_any_more() -> None:
    assert leaving_leader().step(StateSeen(value=b"finished"), 2.0) == [MayGo()]
    told_before = leading()
    prepare_to_leave(told_before)
    steps(told_before, StateSeen(value=b"finished"))
    assert MayGo() in steps(told_before, SwitchDecided(generation=2, step=5))


def test_an_old_leader_whose_key_lapsed_hands_over_its_new_revision() -> None:
    machine = leaving_leader()
    assert machine.step(VACANT, 2.0) == [contest(0)]
    ((peer, word),) = sent(machine.step(swapped(0, 30), 2.1), m.Handover)
    assert peer == 1
    assert isinstance(word, m.Handover)
    assert word.leader_revision == 30


def test_a_job_that_ends_before_the_handover_is_ended_by_the_successor() -> None:
    machine = heir()
    assert machine.step(JobOver(step=9), 1.0) == []
    steps(machine, Heard(peer=-1, message=handover()))
    effects = machine.step(swapped(1, 7), 1.1)
    assert any(isinstance(e, StoreSwap) and e.purpose == "state" for e in effects)
    done = Swapped(purpose="state", done=True, value=b"finished", revision=8)
    assert machine.step(done, 1.2) == []
    assert MayGo() in machine.step(Tick(), 1.2 + TOLD_S)


# -- the end ---------------------------------------------------------------------------------


def test_a_follower_goes_when_the_job_is_over() -> None:
    machine = following()
    goodbye = Send(peer=-1, message=m.Leaving(generation=1, worker=w(1)))
    told = tell_end(b"finished")
    assert machine.step(JobOver(step=9), 1.0) == [told, MayGo(), goodbye]
    assert machine.step(JobOver(step=9), 1.0) == [told, goodbye]
    assert steps(machine, PeerClosed(peer=-1, why="gone"), VACANT) == []


def test_a_leaver_says_goodbye_and_goes_and_never_leads_again() -> None:
    machine = following()
    effects = machine.step(SwitchDecided(generation=STOP, step=5), 1.0)
    goodbye = Send(peer=-1, message=m.Leaving(generation=1, worker=w(1)))
    assert effects == [MayGo(), goodbye]
    assert steps(machine, PeerClosed(peer=-1, why="gone"), VACANT) == []


def test_a_leader_goes_when_the_end_is_in_the_store() -> None:
    machine = leading()
    effects = machine.step(JobOver(step=9), 1.0)
    assert not any(isinstance(effect, MayGo) for effect in effects)
    done = Swapped(purpose="state", done=True, value=b"finished", revision=8)
    steps(machine, Heard(peer=20, message=m.Subscribe(request_id="e", since=0)))
    assert machine.step(done, 1.2) == [MayGo()]


def test_a_leader_that_loses_the_office_at_the_end_goes_when_the_end_is_in_the_store() -> None:
    machine = leading()
    steps(machine, JobOver(step=9))
    assert MayGo() not in steps(machine, seen(1, 6))
    assert MayGo() in steps(machine, StateSeen(value=b"finished"))
    told_before = leading()
    steps(told_before, JobOver(step=9), StateSeen(value=b"finished"))
    assert MayGo() in steps(told_before, seen(1, 6))


def test_a_waiting_newcomer_goes_when_the_store_says_the_job_is_over() -> None:
    machine = node(2, founders=0, request_id="r")
    assert machine.step(StateSeen(value=None), 0.0) == []
    gone = Dismiss(why="the job is finished", failed=False, over=True)
    assert machine.step(StateSeen(value=b"finished"), 0.0) == [gone]


# -- lost answers ----------------------------------------------------------------------------


def test_a_worker_leads_though_the_answer_to_its_swap_was_lost() -> None:
    machine = node(0, founders=1)
    assert steps(machine, VACANT) == [contest(0)]
    # The watch tells of the key first; then the repeated swap finds this worker's own value.
    steps(machine, seen(0, 7), swapped(0, 7, done=False))
    assert machine.leader is not None
    assert machine.leader.token == 7


def test_a_worker_contests_again_if_its_key_lapsed_before_the_repeated_answer() -> None:
    machine = node(0, founders=1)
    steps(machine, VACANT, seen(0, 7), VACANT)
    assert steps(machine, swapped(0, 7, done=False)) == [contest(0)]
    assert machine.leader is None


def test_a_repeated_answer_changes_nothing_for_a_worker_that_leads() -> None:
    machine = node(0, founders=1)
    steps(machine, VACANT, swapped(0, 7))
    leader = machine.leader
    assert steps(machine, swapped(0, 7, done=False)) == []
    assert machine.leader is leader


def test_a_repeated_notification_does_not_turn_a_worker_back_to_the_last_leader() -> None:
    machine = following()
    leaving = draw_next(
        first(0, 1),
        number=2,
        joiners=(member(7),),
        leavers=(),
        leaving=names(0),
        token=1,
        request_id="r",
    )
    steps(machine, Heard(peer=-1, message=m.Prepare(generation=leaving)))
    steps(machine, GroupStands(number=2, build_s=0.0), SwitchDecided(generation=2, step=9))
    machine.worker.generation = leaving.settled()
    # The leader hands its office to w7, say: this worker turns to it before the store tells.
    machine.following, machine._address = w(7), member(7).address
    assert steps(machine, seen(0, 1)) == []
    assert machine.following == w(7)
    # What is new is followed.
    assert steps(machine, seen(9, 8))[-1] == Dial(peer=-2, address=member(9).address)
