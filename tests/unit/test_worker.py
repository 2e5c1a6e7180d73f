"""The control side of one worker: what it says, to whom, and what it says again."""

from __future__ import annotations

from edl.protocol.effects import Begin, BreakGroup, BuildGroup, Dismiss, DropGroup, OfferKey
from edl.protocol.events import Entered, GroupFell
from edl.protocol.messages import (
    Fell,
    Founded,
    GroupBuilt,
    GroupFailed,
    Hail,
    Leaving,
    Message,
    Out,
    Ping,
    Pong,
    Prepare,
    Ready,
    Register,
    Rejected,
    RendezvousKey,
    Stuck,
    Switched,
    Undo,
)
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.protocol.worker import State, Worker
from tests.seeded.cast import first, member, names, w

REGISTER = Register(member=member(1), request_id="", process_start_s=0.5, last=0)


def founder() -> Worker:
    return Worker(me=member(1), request_id="", process_start_s=0.5)


def newcomer() -> Worker:
    worker = Worker(me=member(2), request_id="r", process_start_s=0.5)
    worker.on_linked()
    worker.take()
    return worker


def trained() -> Worker:
    worker = founder()
    worker.on_linked()
    worker.on_message(Prepare(generation=first(0, 1)))
    worker.on_message(Founded(generation=1))
    worker.take()
    return worker


def second(*, number: int = 2, leaves: tuple[int, ...] = ()) -> Generation:
    return draw_next(
        first(0, 1),
        number=number,
        joiners=[member(2)],
        leavers=names(*leaves),
        token=1,
        request_id="r",
    )


def undo(number: int, *, request_id: str = "r", finished: bool = False) -> Undo:
    return Undo(generation=number, request_id=request_id, why="why", finished=finished)


def switched(number: int) -> Switched:
    return Switched(
        generation=number, worker=w(1), step=4, transfer_s=0, transfer_bytes=0, stop_s=0
    )


def ready(number: int, request_id: str = "") -> Ready:
    return Ready(worker=w(number), request_id=request_id, context_s=2.0)


def built(number: int) -> GroupBuilt:
    return GroupBuilt(generation=number, worker=w(1), build_s=0.1)


def key(number: int) -> RendezvousKey:
    return RendezvousKey(generation=number, worker=w(1), key="k", value=b"v")


def test_nothing_is_said_before_a_leader_listens() -> None:
    worker = founder()
    worker.on_context_ready(2.0)
    assert worker.take() == []


def test_it_introduces_itself_and_says_what_it_is() -> None:
    worker = founder()
    worker.on_context_ready(2.0)
    worker.on_linked()
    assert worker.take() == [REGISTER, ready(1)]
    assert worker.take() == []


def test_it_registers_while_its_context_is_prepared() -> None:
    worker = founder()
    worker.on_linked()
    assert worker.take() == [REGISTER]
    worker.on_context_ready(2.0)
    assert worker.take() == [ready(1)]
    assert worker.state is State.READY


def test_a_prepared_generation_is_built_once() -> None:
    worker = founder()
    assert worker.on_message(Prepare(generation=first(0, 1))) == [
        BuildGroup(generation=first(0, 1))
    ]
    assert worker.on_message(Prepare(generation=first(0, 1))) == []


def test_a_stale_generation_is_not_built() -> None:
    assert trained().on_message(Prepare(generation=first(0, 1))) == []


def test_a_generation_that_was_undone_unheard_makes_room_for_the_next() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    why = "generation 3 is prepared instead"
    assert worker.on_message(Prepare(generation=second(number=3))) == [
        DropGroup(number=2, why=why),
        BuildGroup(generation=second(number=3)),
    ]


def test_founders_begin_when_the_generation_is_in_the_store() -> None:
    worker = founder()
    worker.on_message(Prepare(generation=first(0, 1)))
    assert worker.on_group_stands(1, 0.1) == []
    assert worker.on_message(Founded(generation=1)) == [Begin(generation=first(0, 1))]
    assert worker.on_message(Founded(generation=1)) == []
    assert worker.state is State.TRAINING


def test_a_newcomer_begins_as_soon_as_its_group_stands() -> None:
    worker = newcomer()
    worker.on_message(Prepare(generation=second()))
    assert worker.on_group_stands(2, 0.1) == [Begin(generation=second())]
    assert worker.take() == [GroupBuilt(generation=2, worker=w(2), build_s=0.1)]


def test_a_founder_that_missed_its_founding_does_not_begin_in_a_later_generation() -> None:
    """It begins when it hears that the first one was founded, or that it is out."""
    worker = founder()
    worker.on_linked()
    worker.on_message(Prepare(generation=first(0, 1)))
    worker.on_group_stands(1, 0.1)
    stays, leaves = second(), second(number=3, leaves=(1,))
    for later in (stays, leaves):
        worker.on_message(Prepare(generation=later))
        assert Begin(generation=later) not in worker.on_group_stands(later.number, 0.1)


def test_a_group_that_stands_too_late_is_dropped() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_message(undo(2))
    assert worker.on_group_stands(2, 0.1) == [
        DropGroup(number=2, why="it was undone while it was built")
    ]
    assert worker.take() == []


def test_a_group_that_fell_is_told_once() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_group_fell(GroupFell(number=2, why="no port"))
    worker.on_group_fell(GroupFell(number=2, why="no port"))
    assert worker.take() == [GroupFailed(generation=2, worker=w(1), why="no port")]


def test_keys_of_others_are_offered_and_stale_ones_dropped() -> None:
    worker = trained()
    theirs = RendezvousKey(generation=2, worker=w(0), key="k", value=b"v")
    assert worker.on_message(theirs) == []
    worker.on_message(Prepare(generation=second()))
    assert worker.on_message(theirs) == [OfferKey(generation=2, key="k", value=b"v")]


def test_what_a_lost_connection_may_have_swallowed_is_said_again() -> None:
    worker = trained()
    worker.on_entered(Entered(generation=1, step=4, transfer_s=0, transfer_bytes=0, stop_s=0))
    worker.on_message(Prepare(generation=second()))
    worker.on_key_made(2, "k", b"v")
    worker.on_group_stands(2, 0.1)
    said: list[Message] = [switched(1), key(2), built(2)]
    assert worker.take() == said
    worker.on_unlinked()
    worker.on_linked()
    assert worker.take() == [Hail(worker=w(1), generation=1, last=2), key(2), built(2), switched(1)]


def test_what_stands_is_not_said_twice_over_one_connection() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_unlinked()
    worker.on_key_made(2, "k", b"v")
    worker.on_linked()
    assert worker.take() == [Hail(worker=w(1), generation=1, last=2), key(2)]


def test_what_was_undone_is_not_said_again() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_key_made(2, "k", b"v")
    worker.on_message(undo(2))
    worker.on_unlinked()
    worker.on_linked()
    assert Hail(worker=w(1), generation=1, last=2) in worker.take()
    assert worker.take() == []


def test_a_stayer_enters_and_a_leaver_says_goodbye() -> None:
    stayer = trained()
    stayer.on_message(Prepare(generation=second()))
    assert stayer.on_switch_decided(2) == second()
    assert stayer.generation == second()
    leaver = trained()
    leaver.on_message(Prepare(generation=second(leaves=(1,))))
    assert leaver.on_switch_decided(2) is None
    assert leaver.state is State.LEAVING
    assert leaver.take() == [Leaving(generation=1, worker=w(1))]


def test_an_undone_member_only_drops_the_group() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    assert worker.on_message(undo(2)) == [DropGroup(number=2, why="why")]
    assert worker.on_message(undo(2)) == []
    assert worker.state is State.TRAINING


def test_an_undone_newcomer_goes_without_a_fault() -> None:
    worker = newcomer()
    worker.on_message(Prepare(generation=second()))
    assert worker.on_message(undo(2)) == [
        DropGroup(number=2, why="why"),
        Dismiss(why="why", failed=False),
    ]
    assert worker.on_message(undo(2)) == []


def test_the_undo_of_another_request_does_not_concern_a_newcomer() -> None:
    assert newcomer().on_message(undo(7, request_id="other")) == []


def test_an_unexpected_newcomer_fails_unless_the_job_is_over() -> None:
    def rejected(finished: bool) -> Rejected:
        return Rejected(request_id="r", reason="no", finished=finished)

    assert newcomer().on_message(rejected(False)) == [Dismiss(why="no", failed=True)]
    assert newcomer().on_message(rejected(True)) == [Dismiss(why="no", failed=False)]
    assert trained().on_message(rejected(False)) == []


def test_nobody_dismisses_a_worker_that_trains() -> None:
    assert trained().dismiss("the job is over", failed=False) == []
    assert newcomer().dismiss("over", failed=False) == [Dismiss(why="over", failed=False)]


# -- failures --------------------------------------------------------------------------------


def mended(number: int = 3) -> Generation:
    return draw_again(first(0, 1), number=number, dead=(), leader=w(0), token=1)


def test_a_broken_collective_is_told_the_leader_and_the_next_one() -> None:
    worker = trained()
    worker.on_broke(1, "reset")
    said = Stuck(generation=1, worker=w(1), why="reset")
    assert worker.take() == [said]
    worker.on_unlinked()
    worker.on_linked()
    assert said in worker.take()
    assert worker.stuck


def test_what_broke_in_an_older_generation_is_no_news() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=mended()))
    worker.on_message(Founded(generation=3))
    worker.on_broke(1, "reset")
    assert not worker.stuck


def test_what_fell_is_broken_prepared_or_entered_and_once_only() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    assert worker.on_message(Fell(generation=2, why="w0 died")) == [
        BreakGroup(number=2, why="w0 died"),
        BreakGroup(number=1, why="w0 died"),
    ]
    assert worker.on_message(Fell(generation=2, why="w0 died")) == []


def test_the_survivors_generation_begins_at_the_leaders_word_and_ends_the_wait() -> None:
    worker = trained()
    worker.on_broke(1, "reset")
    worker.on_message(Fell(generation=1, why="w0 died"))
    assert worker.on_message(Prepare(generation=mended())) == [BuildGroup(generation=mended())]
    assert worker.on_group_stands(3, 0.1) == []
    assert worker.on_message(Founded(generation=3)) == [Begin(generation=mended())]
    assert not worker.stuck
    assert worker.generation == mended()


def test_a_switch_that_fell_before_it_was_made_is_not_made() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_message(Fell(generation=2, why="w0 died"))
    assert worker.on_switch_decided(2) == first(0, 1)


def test_a_worker_that_the_job_went_on_without_breaks_everything_and_goes() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    assert worker.on_message(Out(generation=9, why="it was lost")) == [
        BreakGroup(number=2, why="it was lost"),
        BreakGroup(number=1, why="it was lost"),
        Dismiss(why="it was lost", failed=False),
    ]


def test_a_ping_is_answered_whatever_the_script_does() -> None:
    worker = trained()
    assert worker.on_message(Ping(generation=1, worker=w(0))) == []
    assert worker.take() == [Pong(generation=1, worker=w(1))]


def test_the_highest_number_heard_of_is_told_to_a_new_leader() -> None:
    worker = trained()
    worker.on_message(Prepare(generation=second()))
    worker.on_message(undo(2))
    worker.on_message(Fell(generation=7, why="w0 died"))
    worker.on_unlinked()
    worker.on_linked()
    assert worker.take()[0] == Hail(worker=w(1), generation=1, last=7)


def test_a_newcomer_whose_first_generation_broke_is_no_newcomer_to_another() -> None:
    """Its training thread waits for what is left of the first one."""
    worker = newcomer()
    worker.on_message(Prepare(generation=second()))
    worker.on_group_stands(2, 0.0)
    worker.on_broke(2, "a peer has gone")
    worker.take()
    why = "what it was let into broke before it had trained"
    assert Dismiss(why=why, failed=False) in worker.on_message(Prepare(generation=second(number=3)))
