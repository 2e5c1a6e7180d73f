"""The switchboard: who may ask for what, how a job begins and ends, and who leads next."""

from __future__ import annotations

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import REPORT_S
from edl.protocol.effects import Announce, Close, Dismiss, Effect, MayGo, Publish, Send, StoreSwap
from edl.protocol.events import Swapped
from edl.protocol.handover import handed_over
from edl.protocol.leader import Leader
from edl.protocol.record import STOP
from edl.protocol.recorded import write_recorded
from edl.protocol.topology import draw_again
from tests.seeded.cast import committed, first, joiner, member, names, record, sent, w

OUT = m.ScaleOut(request_id="out", joiners=(joiner(2),))
IN = m.ScaleIn(request_id="in", workers=names(1), gpus=(), count=0)
LEADER_OUT = m.ScaleIn(request_id="in", workers=names(0), gpus=(), count=0)
STOPPED = m.StopJob(request_id="stop", why="enough")


def register(number: int, request_id: str = "") -> m.Register:
    return m.Register(member=member(number), request_id=request_id, process_start_s=0.0, last=0)


def ready(number: int, request_id: str = "") -> m.Ready:
    return m.Ready(worker=w(number), request_id=request_id, context_s=1.0)


def built(number: int, generation: int) -> m.GroupBuilt:
    return m.GroupBuilt(generation=generation, worker=w(number), build_s=0.0)


def stored(leader: Leader, number: int) -> list[Effect]:
    event = Swapped(purpose="generation", done=True, value=b"x", revision=10 + number)
    return leader.on_swapped(event, 0.0)


def starting() -> Leader:
    """w0 leads over connection 0; w1 will come over 11."""
    return Leader(me=w(0), token=3, settings=Settings(), founders=2, peer=0)


def founded() -> Leader:
    leader = starting()
    for peer, number in ((0, 0), (11, 1)):
        leader.on_message(peer, register(number), 0.0)
        leader.on_message(peer, ready(number), 0.0)
        leader.on_message(peer, built(number, 1), 0.0)
    for number in (0, 1):
        leader.on_message(0, built(number, 1), 0.0)
    stored(leader, 1)
    return leader


def announced(message: m.ScaleIn) -> Leader:
    leader = founded()
    leader.on_message(20, message, 1.0)
    for number in (0, 1):
        leader.on_message(0, built(number, 2), 2.0)
    stored(leader, 2)
    return leader


def told(effects: list[Effect]) -> list[str]:
    return [effect.happened.what for effect in effects if isinstance(effect, Publish)]


def answers(effects: list[Effect]) -> list[m.Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


# -- the beginning ---------------------------------------------------------------------------


def test_founders_prepare_when_the_last_one_is_ready() -> None:
    leader = starting()
    for peer, number in ((0, 0), (11, 1)):
        assert told(leader.on_message(peer, register(number), 0.0)) == ["worker.registered"]
    assert leader.on_message(0, ready(0), 0.0) == []
    effects = leader.on_message(11, ready(1), 0.0)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [0, 11]


def test_training_begins_when_the_first_generation_is_in_the_store() -> None:
    leader = starting()
    for peer, number in ((0, 0), (11, 1)):
        leader.on_message(peer, register(number), 0.0)
        leader.on_message(peer, ready(number), 0.0)
    assert leader.on_message(0, built(0, 1), 0.0) == []
    (swap,) = leader.on_message(11, built(1, 1), 0.0)
    assert isinstance(swap, StoreSwap)
    assert swap.expected == 0
    effects = stored(leader, 1)
    word = m.Founded(generation=1)
    assert sent(effects, m.Founded) == [(0, word), (11, word)]
    assert told(effects) == ["job.started"]


def test_a_founder_that_reconnects_hears_again_what_to_prepare() -> None:
    leader = starting()
    for peer, number in ((0, 0), (11, 1)):
        leader.on_message(peer, register(number), 0.0)
        leader.on_message(peer, ready(number), 0.0)
    key = m.RendezvousKey(generation=1, worker=w(0), key="k", value=b"v")
    leader.on_message(0, key, 0.0)
    leader.on_peer_closed(11, "lost", 0.0)
    effects = leader.on_message(13, register(1), 0.0)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [13]
    assert sent(effects, m.RendezvousKey) == [(13, key)]


def test_a_worker_whose_older_connection_is_heard_last_is_asked_to_reconnect() -> None:
    """It closed 10 and dialled 11, but what it sent over 10 arrives after what it sent over 11."""
    leader = starting()
    leader.on_message(0, register(0), 0.0)
    leader.on_message(11, register(1), 0.0)
    leader.on_message(10, register(1), 0.1)
    assert leader.on_peer_closed(10, "closed by the other side", 0.2) == [Close(peer=11)]
    assert leader.on_peer_closed(11, "closed by this side", 0.2) == []


def test_a_connection_that_was_replaced_closes_without_consequence() -> None:
    leader = starting()
    leader.on_message(10, register(1), 0.0)
    leader.on_message(11, register(1), 0.0)
    assert leader.on_peer_closed(10, "lost", 0.1) == []
    assert leader.on_peer_closed(11, "lost", 0.2) == []


def test_a_founder_that_missed_the_beginning_is_let_in() -> None:
    leader = founded()
    effects = leader.on_message(13, register(1), 0.0)
    assert effects == [Send(peer=13, message=m.Founded(generation=1))]


def test_a_job_that_another_leader_founded_is_not_begun() -> None:
    leader = starting()
    value = write_recorded(first(1, 2), ())
    event = Swapped(purpose="generation", done=False, value=value, revision=9)
    effects = leader.on_swapped(event, 0.0)
    assert told(effects) == ["leader.superseded"]
    assert effects[-1] == Dismiss(why="the job went on without this worker", failed=False)


# -- requests --------------------------------------------------------------------------------


def test_what_another_leader_has_recorded_is_the_base_and_not_what_the_store_refused() -> None:
    leader = founded()
    leader.on_message(20, IN, 1.0)
    for number in (0, 1):
        leader.on_message(0, built(number, 2), 2.0)
    theirs = draw_again(first(0, 1), number=4, dead=(), leader=w(1), token=9)
    value = write_recorded(theirs, ())
    refused = Swapped(purpose="generation", done=False, value=value, revision=30)
    effects = leader.on_swapped(refused, 3.0)
    (target,) = {
        effect.message.generation
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, m.Prepare)
    }
    assert (target.number, target.workers()) == (5, names(0, 1))
    for number in (0, 1):
        recording = leader.on_message(0, built(number, 5), 4.0)
    (swap,) = (effect for effect in recording if isinstance(effect, StoreSwap))
    assert swap.expected == 30
    assert [a for a in answers(stored(leader, 5)) if isinstance(a, m.Undone)]


def building_first(founders: int, *, least: int = 1, repeated: int = 3) -> Leader:
    """Everybody is ready, and builds the founding group."""
    settings = Settings(min_workers=least, unreached_builds=repeated)
    made = Leader(me=w(0), token=3, settings=settings, founders=founders, peer=0)
    for number in range(founders):
        peer = 10 + number if number else 0
        made.on_message(peer, register(number), 0.0)
        made.on_message(peer, ready(number), 0.0)
    return made


def fail_first(leader: Leader, worker: int, *unreached: int, builds: int) -> list[Effect]:
    """So many builds of the founding group fail in the same way; returns what came of the last."""
    effects: list[Effect] = []
    for _ in range(builds):
        generation = leader.founding.generation
        assert generation is not None
        failed = m.GroupFailed(
            generation=generation.number,
            worker=w(worker),
            why="timed out",
            unreached=names(*unreached),
        )
        effects = leader.on_message(10 + worker, failed, 1.0)
        effects += leader.on_tick(1.0 + REPORT_S)
    return effects


def test_a_first_group_that_cannot_be_built_is_built_again() -> None:
    leader = building_first(3)
    effects = fail_first(leader, 1, 2, builds=2)
    assert leader.founding.generation is not None
    assert leader.founding.generation.number == 3
    assert leader.founding.generation.workers() == names(0, 1, 2)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [0, 11, 12]


def test_a_founder_that_another_never_reaches_is_left_out_with_the_reason() -> None:
    leader = building_first(3)
    effects = fail_first(leader, 1, 2, builds=3)
    why = f"w2 cannot connect to w1 at {member(1).address}: left out after 3 failed builds"
    assert sent(effects, m.Out) == [(12, m.Out(generation=3, why=why))]
    assert leader.founding.generation is not None
    assert leader.founding.generation.workers() == names(0, 1)
    # Its end is no failure, and if it has not heard it, it hears it again.
    assert (
        leader.on_message(30, m.ProcessEnded(request_id="e", worker=w(2), why="exited"), 2.0) == []
    )
    assert sent(leader.on_message(13, register(2), 2.0), m.Out)[0][0] == 13
    # What is left of the old builds counts for nothing.
    for number in (0, 1):
        assert leader.on_message(10 + number, built(number, 3), 2.0) == []
    assert leader.on_message(0, built(0, 4), 2.0) == []
    (swap,) = leader.on_message(11, built(1, 4), 2.0)
    assert isinstance(swap, StoreSwap)


def test_a_start_with_too_few_founders_that_reach_each_other_fails() -> None:
    leader = building_first(3, least=3)
    effects = fail_first(leader, 1, 2, builds=3)
    (end,) = [effect for effect in effects if isinstance(effect, Dismiss)]
    assert end.failed
    assert "w2 cannot connect to w1" in end.why
    assert "could not begin with 2" in end.why


def test_with_no_repeated_builds_a_first_group_that_fails_ends_the_start() -> None:
    leader = building_first(2, repeated=0)
    (end,) = [e for e in fail_first(leader, 1, 0, builds=1) if isinstance(e, Dismiss)]
    assert end.why.startswith("w1 could not build the group: timed out (w1 cannot connect to w0")


def test_a_first_group_that_some_never_finish_ends_the_start() -> None:
    leader = building_first(2)
    leader.on_message(0, built(0, 1), 0.0)
    settings = leader.settings
    limit = settings.patience_s + settings.build_timeout_s
    assert leader.on_tick(limit - 0.1) == []
    ends = [e for e in leader.on_tick(limit) if isinstance(e, Dismiss)]
    assert ends == [Dismiss(why=f"w1 did not build the group within {limit:g} s", failed=True)]


def test_an_adjustment_undone_by_a_failed_build_names_the_pair() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    leader.on_message(12, register(2, "out"), 1.0)
    leader.on_message(12, ready(2, "out"), 1.0)
    failed = m.GroupFailed(generation=2, worker=w(2), why="timed out", unreached=names(1))
    leader.on_message(12, failed, 2.0)
    pair = f"w2 cannot connect to w1 at {member(1).address}"
    assert leader.conductor.adjustment is not None
    assert leader.conductor.adjustment.why == f"w2 could not build the group: timed out ({pair})"


def test_a_request_to_a_starting_job_is_told_to_retry() -> None:
    (answer,) = answers(starting().on_message(20, OUT, 0.0))
    assert answer == m.Retry(request_id="out", reason="the job is starting", after_s=0.2)


def test_a_second_scale_out_is_told_to_retry() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    other = m.ScaleOut(request_id="other", joiners=(joiner(3),))
    (answer,) = answers(leader.on_message(21, other, 3.5))
    assert answer == m.Retry(
        request_id="other",
        reason="already adjusting (request out, waiting for new workers, for 2.5 s)",
        after_s=0.2,
    )


def test_a_newcomer_that_ended_before_it_was_asked_for_is_not_waited_for() -> None:
    # It died with the leader before; the launcher told the next one before the client asked it.
    leader = founded()
    ended = m.ProcessEnded(request_id="out", worker=names(2)[0], why="killed by SIGKILL")
    assert leader.on_message(9, ended, 1.0) == []
    leader.on_message(20, OUT, 2.0)
    effects = stored(leader, 2)
    answer = m.Undone(request_id="out", reason="w2 went away: killed by SIGKILL")
    assert (20, answer) in sent(effects, m.Undone)


def test_the_same_request_is_accepted_again_while_it_is_open() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    assert leader.on_message(21, OUT, 2.0) == [Send(peer=21, message=m.Accepted(request_id="out"))]
    leader.conductor.undo("why", 3.0)
    effects = stored(leader, 2)
    answer = m.Undone(request_id="out", reason="why")
    assert sent(effects, m.Undone) == [(20, answer), (21, answer)]
    assert leader.on_message(22, OUT, 4.0) == [Send(peer=22, message=answer)]


def test_a_request_that_can_never_be_granted_is_refused_for_good() -> None:
    leader = founded()
    bad = m.ScaleIn(request_id="bad", workers=(w(9),), gpus=(), count=0)
    first_answer = answers(leader.on_message(20, bad, 1.0))
    assert [type(answer) for answer in first_answer] == [m.Refusal]
    assert answers(leader.on_message(21, bad, 2.0)) == first_answer


def test_an_expected_newcomer_is_taken_in_and_a_stranger_is_not() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    assert told(leader.on_message(12, register(2, "out"), 2.0)) == ["worker.registered"]
    (answer,) = answers(leader.on_message(13, register(3, "out"), 2.0))
    assert answer == m.Rejected(
        request_id="out", reason="w3 is not expected (any more)", finished=False
    )


def test_a_newcomer_that_lost_its_connection_after_the_switch_is_not_turned_away() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    leader.on_message(12, register(2, "out"), 2.0)
    leader.on_message(12, ready(2, "out"), 2.0)
    for number in (0, 1, 2):
        leader.on_message(0, built(number, 2), 2.0)
    stored(leader, 2)
    leader.on_switch_decided(2, 2, 3.0)
    assert leader.on_peer_closed(12, "lost", 3.0) == []
    assert leader.on_message(14, register(2, "out"), 3.5) == []
    assert leader.voice.peers[w(2)] == 14


def test_a_newcomers_death_before_the_switch_costs_nothing() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    leader.on_message(12, register(2, "out"), 2.0)
    leader.on_peer_closed(12, "reset", 3.0)
    effects = stored(leader, 2)
    reason = "w2 went away: its connection closed (reset)"
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="out", reason=reason))]


def test_a_launcher_may_tell_of_a_death_first() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    ended = m.ProcessEnded(request_id="x", worker=w(2), why="signal 9")
    leader.on_message(30, ended, 2.0)
    effects = stored(leader, 2)
    answer = m.Undone(request_id="out", reason="w2 went away: signal 9")
    assert sent(effects, m.Undone) == [(20, answer)]


def test_a_lost_connection_of_a_member_undoes_nothing() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    assert leader.on_peer_closed(11, "lost", 2.0) == []


def test_a_member_that_reconnects_hears_what_is_being_built() -> None:
    leader = founded()
    leader.on_peer_closed(11, "lost", 0.5)
    effects = leader.on_message(20, IN, 1.0)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [0]
    effects = leader.on_message(13, m.Hail(worker=w(1), generation=1, last=1), 2.0)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [13]


def test_a_group_that_cannot_be_built_undoes_the_adjustment() -> None:
    leader = founded()
    leader.on_message(20, IN, 1.0)
    failed = m.GroupFailed(generation=2, worker=w(1), why="no port")
    leader.on_message(11, failed, 2.0)
    effects = stored(leader, 2)
    reason = "w1 could not build the group: no port"
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="in", reason=reason))]
    assert leader.on_message(11, failed, 2.0) == []


def test_a_worker_that_was_told_to_go_is_scaled_in() -> None:
    leader = founded()
    event = committed(1, record(), record(leaving=1))
    effects = leader.on_step_committed(event, 1.0)
    assert told(effects) == ["adjust.accepted", "adjust.building"]
    assert leader.conductor.adjustment is not None
    assert leader.conductor.adjustment.leavers == names(1)
    assert leader.on_step_committed(event, 1.1) == []


def test_when_everyone_was_told_to_go_the_job_stops() -> None:
    leader = founded()
    event = committed(1, record(leaving=1), record(leaving=1))
    effects = leader.on_step_committed(event, 1.0)
    assert told(effects) == ["job.stopping"]
    assert effects[-1] == Announce(generation=STOP, switch_step=2, token=3)


def test_status_and_events_are_answered() -> None:
    leader = founded()
    (status,) = answers(leader.on_message(20, m.AskStatus(request_id="s"), 1.0))
    assert isinstance(status, m.Status)
    assert (status.state, status.generation) == ("training", 1)
    (events,) = answers(leader.on_message(20, m.Subscribe(request_id="e", since=2), 1.0))
    assert isinstance(events, m.Events)
    assert [happened.what for happened in events.events] == ["job.started"]


# -- the end ---------------------------------------------------------------------------------


def test_a_stop_undoes_what_is_open_and_is_announced() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    effects = leader.on_message(21, STOPPED, 2.0)
    undone = m.Undone(request_id="out", reason="the job is stopping")
    assert sent(stored(leader, 2), m.Undone) == [(20, undone)]
    assert sent(effects, m.Accepted) == [(21, m.Accepted(request_id="stop"))]
    assert effects[-1] == Announce(generation=STOP, switch_step=1, token=3)
    (answer,) = answers(leader.on_message(22, IN, 3.0))
    assert answer == m.Finished(request_id="in", reason="enough")


@pytest.mark.parametrize(("stop", "value"), [(False, b"finished"), (True, b"stopped")])
def test_the_end_is_written_to_the_store_before_the_leader_goes(stop: bool, value: bytes) -> None:
    leader = founded()
    if stop:
        leader.on_message(21, STOPPED, 2.0)
    effects = leader.on_switch_decided(STOP, 4, 3.0) if stop else leader.on_job_over(3.0)
    assert effects[-1] == StoreSwap(
        purpose="state", key="state", expected=0, value=value, leased=False
    )
    assert not any(isinstance(effect, MayGo) for effect in effects)
    leader.on_message(22, m.Subscribe(request_id="e", since=0), 3.0)
    event = Swapped(purpose="state", done=True, value=value, revision=9)
    assert leader.on_swapped(event, 3.1) == [MayGo()]
    assert leader.on_job_over(4.0) == []


def test_pending_newcomers_go_and_requesters_hear_finished() -> None:
    leader = founded()
    leader.on_message(20, OUT, 1.0)
    leader.on_message(12, register(2, "out"), 2.0)
    effects = leader.on_job_over(3.0)
    word = m.Undo(generation=0, request_id="out", why="the job is over", finished=True)
    assert sent(effects, m.Undo) == [(12, word)]
    answer = m.Finished(request_id="out", reason="the job is over")
    assert sent(effects, m.Finished) == [(20, answer)]
    assert answers(leader.on_message(21, OUT, 4.0)) == [answer]
    (rejected,) = answers(leader.on_message(15, register(2, "out"), 4.0))
    assert isinstance(rejected, m.Rejected)
    assert rejected.finished


def test_a_switch_that_has_happened_is_complete_when_the_job_ends() -> None:
    leader = announced(IN)
    leader.on_switch_decided(2, 2, 3.0)
    effects = leader.on_job_over(4.0)
    ((peer, answer),) = sent(effects, m.Adjusted)
    assert peer == 20
    assert not sent(effects, m.Finished)
    assert answers(leader.on_message(21, IN, 5.0)) == [answer]


# -- the next leader -------------------------------------------------------------------------


def test_a_leader_that_leaves_hands_over() -> None:
    leader = announced(LEADER_OUT)
    effects = leader.on_switch_decided(2, 2, 3.0)
    ((peer, word),) = sent(effects, m.Handover)
    assert peer == 11
    assert isinstance(word, m.Handover)
    assert (word.leader_revision, word.generation_revision, word.last_number) == (3, 12, 2)
    assert word.generation.workers() == names(1)
    assert not word.failed


def test_a_lost_handover_is_sent_again_to_the_successor_alone() -> None:
    leader = announced(LEADER_OUT)
    leader.on_peer_closed(11, "lost", 2.5)
    assert not sent(leader.on_switch_decided(2, 2, 3.0), m.Handover)
    effects = leader.on_message(14, m.Hail(worker=w(1), generation=2, last=2), 4.0)
    assert [peer for peer, _ in sent(effects, m.Handover)] == [14]
    effects = leader.on_message(15, m.Hail(worker=w(9), generation=2, last=2), 4.0)
    assert not sent(effects, m.Handover)


def test_a_successor_recovers_at_once_if_a_failure_carried_the_switch_out() -> None:
    """The failure may have been the old leader's impression only, and all train on."""
    leader = Leader(me=w(0), token=3, settings=Settings(), founders=3, peer=0)
    everyone = ((0, 0), (11, 1), (12, 2))
    for peer, number in everyone:
        leader.on_message(peer, register(number), 0.0)
        leader.on_message(peer, ready(number), 0.0)
    for peer, number in everyone:
        leader.on_message(peer, built(number, 1), 0.0)
    stored(leader, 1)
    leader.on_message(20, LEADER_OUT, 1.0)
    for peer, number in everyone:
        leader.on_message(peer, built(number, 2), 2.0)
    stored(leader, 2)
    gone = m.ProcessEnded(request_id="", worker=w(2), why="killed")
    ((peer, handover),) = sent(leader.on_message(0, gone, 3.0), m.Handover)
    assert isinstance(handover, m.Handover)
    assert (peer, handover.generation.workers(), handover.failed) == (11, names(1, 2), True)
    successor = Leader(me=w(1), token=8, settings=Settings(), founders=3, peer=0)
    successor.take_over(handover, 4.0)
    assert successor.recovery.active


def test_a_leader_that_has_handed_over_calls_nobody_lost() -> None:
    """The others have turned to its successor, which recovers."""
    leader = announced(LEADER_OUT)
    leader.on_switch_decided(2, 2, 3.0)
    stuck = m.Stuck(generation=2, worker=w(1), why="a peer has gone")
    assert leader.on_message(11, stuck, 4.0) == []


def test_a_leader_that_has_handed_over_answers_retry_to_every_request() -> None:
    """Its successor knows what became of the requests before."""
    leader = announced(LEADER_OUT)
    leader.on_switch_decided(2, 2, 3.0)
    leader.conductor.adjustment = None  # as after a failure
    move = m.Migrate(request_id="move", workers=names(0), gpus=(), joiners=(joiner(3),))
    for message in (move, m.ScaleIn(request_id="in2", workers=names(0), gpus=(), count=0), OUT):
        (answer,) = answers(leader.on_message(20, message, 4.0))
        assert isinstance(answer, m.Retry)
        assert answer.reason == "the leader changes"


def test_a_lost_worker_that_wakes_with_its_connection_open_is_told_that_it_is_out() -> None:
    leader = founded()
    lost(leader, 1)
    stuck = m.Stuck(generation=1, worker=w(1), why="a peer has gone")
    (answer,) = answers(leader.on_message(11, stuck, 90.0))
    assert isinstance(answer, m.Out)
    # A worker that nobody has heard of is no member that was lost.
    unknown = m.Stuck(generation=1, worker=w(9), why="a peer has gone")
    assert leader.on_message(30, unknown, 90.0) == []


def test_a_worker_that_connects_again_is_not_silent() -> None:
    """Pings that it could not answer meanwhile do not count against it."""
    leader = founded()
    ticks = [half / 2 for half in range(int(2 * leader.settings.silence_s) + 3)]
    back = ticks[-5]  # before all of the silence is over
    effects: list[Effect] = []
    for now in ticks:
        effects += leader.on_tick(now)
        if now == back:
            leader.on_message(14, m.Hail(worker=w(1), generation=1, last=1), now)
    assert "worker.lost" not in told(effects)


def lost(leader: Leader, number: int) -> None:
    """The job goes on without this worker."""
    leader.on_message(0, m.ProcessEnded(request_id="", worker=w(number), why="killed"), 5.0)
    target = leader.recovery.target
    assert target is not None
    leader.on_message(0, built(0, target.number), 6.0)
    stored(leader, target.number)
    assert leader.conductor.generation == target


def past_of(leader: Leader, now: float) -> m.Handover:
    return handed_over(leader.conductor, (), leader.voice, now)


def test_a_leader_that_has_handed_over_completes_nothing_any_more() -> None:
    leader = announced(LEADER_OUT)
    leader.on_switch_decided(2, 2, 3.0)
    said = m.Switched(generation=2, worker=w(1), step=2, transfer_s=0, transfer_bytes=0, stop_s=0)
    assert leader.on_message(11, said, 4.0) == []
    (answer,) = answers(leader.on_message(21, STOPPED, 4.0))
    assert answer == m.Retry(request_id="stop", reason="the leader changes", after_s=0.2)


def test_the_successor_answers_as_the_old_leader_did() -> None:
    old = announced(LEADER_OUT)
    bad = m.ScaleIn(request_id="bad", workers=(w(9),), gpus=(), count=0)
    old.conductor.generation = first(0, 1)
    refused = old.voice.final(m.Refusal(request_id="bad", reason="no"), 30)
    old.on_switch_decided(2, 2, 3.0)
    new = Leader(me=w(1), token=8, settings=Settings(), founders=2, peer=0)
    new.take_over(past_of(old, 4.0), 4.0)
    assert answers(new.on_message(31, bad, 5.0)) == answers(refused)
    assert sent(new.on_message(32, LEADER_OUT, 5.0), m.Accepted)
