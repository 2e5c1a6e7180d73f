"""Who may come in: founders while there is time, newcomers that are asked for, members again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.effects import Dismiss, Effect, Publish, Send
from edl.protocol.events import Swapped
from edl.protocol.leader import Leader
from edl.protocol.recorded import Deed, Recorded
from edl.protocol.standing import Knows
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.types import Gpu, WorkerId
from tests.seeded.cast import first, joiner, member, names, sent, w

SETTINGS = Settings(register_timeout_s=10.0, silence_s=4.0, lease_s=1.0)
ENDED = m.ProcessEnded(request_id="x", worker=w(1), why="signal 9")


def leader() -> Leader:
    return Leader(me=w(0), token=3, settings=SETTINGS, founders=2, peer=0)


def inherited(generation: Generation, *, entered: bool = True) -> Leader:
    """w0 after the last leader went without a word."""
    made = leader()
    found = Recorded(generation=generation, deeds=())
    made.inherit(
        found, revision=5, last=generation.number, knows=Knows(entered=entered), lost=None, now=0.0
    )
    return made


def register(number: int, request_id: str = "", last: int = 0) -> m.Register:
    return m.Register(member=member(number), request_id=request_id, process_start_s=0.0, last=last)


def ready(number: int, request_id: str = "") -> m.Ready:
    return m.Ready(worker=w(number), request_id=request_id, context_s=1.0)


def told(effects: list[Effect]) -> list[str]:
    return [effect.happened.what for effect in effects if isinstance(effect, Publish)]


# -- founders --------------------------------------------------------------------------------


def test_a_founder_that_ends_before_the_job_began_ends_the_start_for_everybody() -> None:
    made = leader()
    made.on_message(0, register(0), 0.0)
    made.on_message(11, register(1), 0.0)
    why = "w1 ended before the job began: signal 9"
    word = m.Rejected(request_id="", reason=why, finished=False)
    assert made.on_message(30, ENDED, 1.0) == [
        Send(peer=11, message=word),
        Dismiss(why=why, failed=True),
    ]


def test_a_worker_with_another_kind_of_name_is_turned_away() -> None:
    made = leader()
    for changed in (
        replace(member(1), worker=WorkerId("w\x1b[31m1")),
        replace(member(1), slot=Gpu("node 1", 0)),
    ):
        (sent_back,) = made.on_message(7, replace(register(1), member=changed), 0.0)
        assert isinstance(sent_back, Send)
        assert isinstance(sent_back.message, m.Rejected)
        assert "is no name" in sent_back.message.reason
    # w0 and w1 still found the job.
    assert "worker.registered" in told(made.on_message(7, register(1), 0.0))


def test_a_founder_that_ends_while_the_store_founds_the_job_is_an_ordinary_loss() -> None:
    made = leader()
    for peer, number in ((0, 0), (11, 1)):
        made.on_message(peer, register(number), 0.0)
        made.on_message(peer, ready(number), 0.0)
    for number in (0, 1):
        built = m.GroupBuilt(generation=1, worker=w(number), build_s=0.0)
        made.on_message(0, built, 0.0)
    assert made.on_message(30, ENDED, 1.0) == []
    event = Swapped(purpose="generation", done=True, value=b"x", revision=4)
    assert told(made.on_swapped(event, 1.5)) == ["job.started", "worker.lost", "recovery.building"]


def test_founders_that_never_come_are_not_waited_for_without_end() -> None:
    made = leader()
    made.on_message(0, register(0), 0.0)
    assert made.on_tick(1.0) == []
    assert made.on_tick(15.9) == []
    why = "1 of 2 workers are here after 15 s"
    assert made.on_tick(16.0) == [Dismiss(why=why, failed=True)]


def test_numbers_that_another_leader_used_are_not_used_for_the_first_generation() -> None:
    made = leader()
    made.on_message(0, register(0), 0.0)
    made.on_message(11, register(1, last=1), 0.0)
    made.on_message(0, ready(0), 0.0)
    effects = made.on_message(11, ready(1), 0.0)
    assert isinstance(effects[0], Send)
    assert isinstance(effects[0].message, m.Prepare)
    assert effects[0].message.generation.number == 2


# -- newcomers of a request that this leader has not heard of ----------------------------------


def test_they_wait_for_their_requester_to_ask_again() -> None:
    made = inherited(first(0, 1))
    assert made.on_message(12, register(2, "out"), 1.0) == []
    assert made.on_message(12, ready(2, "out"), 1.1) == []
    made.recovery.stage = type(made.recovery.stage).IDLE
    effects = made.on_message(20, m.ScaleOut(request_id="out", joiners=(joiner(2),)), 2.0)
    assert told(effects)[:3] == ["adjust.accepted", "worker.registered", "worker.ready"]
    assert [peer for peer, _ in sent(effects, m.Prepare)][-1] == 12


def test_they_are_turned_away_if_nobody_asks() -> None:
    made = inherited(first(0, 1))
    made.on_message(12, register(2, "out"), 1.0)
    assert not sent(made.on_tick(10.9), m.Rejected)
    reason = "w2 is not expected (any more)"
    answer = m.Rejected(request_id="out", reason=reason, finished=False)
    assert sent(made.on_tick(11.0), m.Rejected) == [(12, answer)]


def test_one_whose_request_is_told_to_retry_waits_as_long_as_it_is_asked_for() -> None:
    made = inherited(first(0, 1))
    made.on_message(12, register(2, "out"), 1.0)
    ask = m.ScaleOut(request_id="out", joiners=(joiner(2),))
    assert sent(made.on_message(20, ask, 6.0), m.Retry)
    assert not sent(made.on_tick(11.0), m.Rejected)
    assert sent(made.on_tick(16.0), m.Rejected)


def test_one_that_has_gone_is_forgotten() -> None:
    made = inherited(first(0, 1))
    made.on_message(12, register(2, "out"), 1.0)
    made.on_peer_closed(12, "reset", 2.0)
    assert not sent(made.on_tick(11.0), m.Rejected)


def test_without_a_change_of_leader_a_stranger_is_turned_away_at_once() -> None:
    made = leader()
    made.conductor.enter(first(0, 1))
    assert sent(made.on_message(12, register(2, "out"), 1.0), m.Rejected)


# -- members ---------------------------------------------------------------------------------


def joined() -> Generation:
    return draw_next(
        first(0, 1), number=2, joiners=[member(2)], leavers=(), token=1, request_id="out"
    )


def test_a_newcomer_that_comes_to_a_new_leader_without_a_step_is_no_survivor() -> None:
    made = inherited(joined())
    assert made.recovery.target is not None
    assert made.recovery.target.workers() == names(0, 1, 2)
    made.on_message(12, register(2, "out", last=2), 1.0)
    expected = draw_again(joined(), number=4, dead=names(2), leader=w(0), token=3)
    assert made.recovery.target == expected


def test_a_newcomer_that_comes_with_a_step_is_one() -> None:
    made = inherited(joined())
    made.on_message(12, m.Hail(worker=w(2), generation=2, last=2), 1.0)
    assert made.recovery.target is not None
    assert made.recovery.target.workers() == names(0, 1, 2)


def test_a_leader_that_had_not_entered_knows_that_no_newcomer_had_a_step() -> None:
    made = inherited(joined(), entered=False)
    assert made.recovery.target is not None
    assert made.recovery.target.workers() == names(0, 1)


def test_one_that_the_job_went_on_without_is_told_so() -> None:
    made = leader()
    made.conductor.enter(draw_again(first(0, 1), number=3, dead=names(1), leader=w(0), token=3))
    (effect,) = made.on_message(15, m.Hail(worker=w(1), generation=1, last=1), 4.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, m.Out)


# -- requests --------------------------------------------------------------------------------


def test_a_founder_that_was_lost_before_it_knew_that_it_was_in_is_told_so_and_not_refused() -> None:
    made = inherited(first(0, 1))
    made.on_message(30, ENDED, 0.5)
    made.on_message(0, m.GroupBuilt(generation=2, worker=w(0), build_s=0.0), 0.6)
    made.on_message(0, m.GroupBuilt(generation=3, worker=w(0), build_s=0.0), 0.6)
    event = Swapped(purpose="generation", done=True, value=b"x", revision=9)
    made.on_swapped(event, 0.7)
    word = m.Out(generation=3, why="the job went on without this worker")
    assert sent(made.on_message(21, register(1, last=1), 0.8), m.Out) == [(21, word)]


def test_a_request_during_a_recovery_is_told_to_retry() -> None:
    made = inherited(first(0, 1))
    (effect,) = made.on_message(20, m.ScaleOut(request_id="r", joiners=(joiner(2),)), 1.0)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, m.Retry)
    assert "recovering from a failure" in effect.message.reason


def test_a_recorded_adjustment_is_told_as_it_was_though_the_job_is_stopping() -> None:
    """What the last leader said of it is not known before the recovery is over."""
    heir = leader()
    out = m.ScaleOut(request_id="out", joiners=(joiner(1),))
    another = m.ScaleIn(request_id="in", workers=names(1), gpus=(), count=0)
    deed = Deed(
        request_id="out",
        kind="scale_out",
        joined=names(1),
        left=(),
        generation=1,
        size=2,
        undone="",
    )
    found = Recorded(generation=replace(first(0, 1), request_id="out"), deeds=(deed,))
    heir.inherit(found, revision=5, last=1, knows=Knows(entered=True), lost=w(1), now=10.0)
    heir.on_message(20, m.StopJob(request_id="stop", why="enough"), 10.1)
    assert sent(heir.on_message(21, out, 10.2), m.Retry)
    assert sent(heir.on_message(22, another, 10.2), m.Finished)
    heir.on_message(0, m.GroupBuilt(generation=2, worker=w(0), build_s=0.0), 10.3)
    event = Swapped(purpose="generation", done=True, value=b"x", revision=12)
    heir.on_swapped(event, 10.3)
    assert sent(heir.on_message(21, out, 10.4), m.Adjusted)


@pytest.mark.parametrize("by_slot", [False, True])
def test_who_was_to_leave_and_was_lost_first_did_not_leave_as_asked(by_slot: bool) -> None:
    """Its request may have been taken by the very leader that was lost."""
    heir = leader()
    found = Recorded(generation=first(0, 1), deeds=())
    slots = (member(1).slot,) if by_slot else ()
    asked = m.ScaleIn(request_id="in", workers=() if by_slot else names(1), gpus=slots, count=0)
    heir.inherit(found, revision=5, last=1, knows=Knows(entered=True), lost=w(1), now=10.0)
    assert sent(heir.on_message(20, asked, 10.1), m.Retry)
    heir.on_message(0, m.GroupBuilt(generation=2, worker=w(0), build_s=0.0), 10.3)
    heir.on_swapped(Swapped(purpose="generation", done=True, value=b"x", revision=12), 10.3)
    effects = heir.on_message(21, asked, 10.4)
    ((peer, answer),) = sent(effects, m.Undone)
    assert peer == 21
    assert isinstance(answer, m.Undone)
    assert answer.reason.startswith("w1 was lost before it could leave: the leader")
    assert [e.happened.what for e in effects if isinstance(e, Publish)] == ["adjust.undone"]
    assert sent(heir.on_message(22, asked, 10.5), m.Undone) == [(22, answer)]
    moves = m.Migrate(request_id="move", joiners=(joiner(2),), workers=names(1), gpus=())
    assert sent(heir.on_message(23, moves, 10.6), m.Undone)


def test_a_slot_that_somebody_has_taken_since_is_no_longer_that_of_the_lost() -> None:
    heir = leader()
    slot = member(1).slot
    heir.inherit(
        Recorded(generation=first(0, 1), deeds=()),
        revision=5, last=1, knows=Knows(entered=True), lost=w(1), now=10.0,
    )  # fmt: skip
    heir.on_message(0, m.GroupBuilt(generation=2, worker=w(0), build_s=0.0), 10.3)
    heir.on_swapped(Swapped(purpose="generation", done=True, value=b"x", revision=12), 10.3)
    recovery, conductor = heir.recovery, heir.conductor
    asked = m.ScaleIn(request_id="in", workers=(), gpus=(slot,), count=0)
    assert recovery.lost_of(asked)
    alone = conductor.generation
    assert alone is not None
    conductor.generation = replace(alone, members=(*alone.members, replace(member(2), slot=slot)))
    recovery.on_tick(11.0)
    conductor.generation = alone
    assert not recovery.lost_of(asked)
