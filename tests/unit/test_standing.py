"""A worker's place by the store's word: whoever is absent from the last generation goes."""

from __future__ import annotations

from edl.protocol.effects import BreakGroup, Dismiss, Effect, MayGo
from edl.protocol.messages import Founded, Prepare
from edl.protocol.recorded import write_recorded
from edl.protocol.standing import Standing
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.protocol.worker import State, Worker
from tests.seeded.cast import first, member, names, w

OUT = "the job went on without this worker"
GONE = [BreakGroup(number=1, why=OUT), Dismiss(why=OUT, failed=False)]


def standing(*, newcomer: bool = False) -> Standing:
    """w1, in the generation of w0, w1, w2; or about to join it."""
    request_id = "r" if newcomer else ""
    worker = Worker(me=member(1), request_id=request_id, process_start_s=0.0)
    if not newcomer:
        worker.on_message(Prepare(generation=first(0, 1, 2)))
        worker.on_message(Founded(generation=1))
    return Standing(worker)


def see(place: Standing, generation: Generation, revision: int) -> list[Effect]:
    place.take_note(write_recorded(generation, ()), revision)
    return place.leave_if_out()


def without(*numbers: int, number: int = 2) -> Generation:
    """What is left after a failure."""
    dead = [w(one) for one in numbers]
    return draw_again(first(0, 1, 2), number=number, dead=dead, leader=w(0), token=1)


def scaled_in(number: int = 2) -> Generation:
    return draw_next(
        first(0, 1, 2), number=number, joiners=(), leavers=names(1), token=1, request_id="in"
    )


def test_a_member_stays() -> None:
    place = standing()
    assert see(place, without(2), 5) == []
    assert place.is_eligible()


def test_a_zombie_sees_that_the_job_went_on_without_it() -> None:
    place = standing()
    assert see(place, without(1), 5) == GONE
    assert not place.is_eligible()


def test_a_newcomer_whose_generation_was_undone_while_it_was_cut_off_goes() -> None:
    """The failure that undid it made this worker forget what it had prepared."""
    place = standing(newcomer=True)
    joined = draw_next(
        first(0, 2), number=2, joiners=[member(1)], leavers=(), token=1, request_id="r"
    )
    assert see(place, joined, 5) == []
    after = draw_again(joined, number=3, dead=names(1), leader=w(0), token=1)
    assert see(place, after, 6) == [Dismiss(why=OUT, failed=False)]


def test_a_newcomer_that_nothing_was_recorded_of_waits() -> None:
    place = standing(newcomer=True)
    assert see(place, without(1), 5) == []


def test_an_older_revision_is_no_news() -> None:
    place = standing()
    see(place, first(0, 1, 2), 5)
    assert not place.take_note(write_recorded(without(1), ()), 4)
    assert place.is_eligible()


def test_a_leaver_stays_for_its_last_step_since_its_leave_may_be_taken_back() -> None:
    place = standing()
    place.worker.on_message(Prepare(generation=scaled_in()))
    assert see(place, scaled_in(), 5) == []
    place.worker.on_broke(1, "reset")
    assert place.leave_if_out() == []
    assert not place.is_eligible()
    place.take_note(write_recorded(first(0, 1, 2), ()), 6)
    assert place.is_eligible()


def test_a_leaver_that_is_stuck_and_hears_of_no_leader_goes() -> None:
    place = standing()
    place.worker.on_message(Prepare(generation=scaled_in()))
    see(place, scaled_in(), 5)
    assert place.despair(0.0, after_s=60.0) == []
    assert place.despair(60.0, after_s=60.0) == []
    place.worker.on_broke(1, "reset")
    assert place.despair(70.0, after_s=60.0) == []
    (gone,) = place.despair(130.0, after_s=60.0)
    assert isinstance(gone, Dismiss)
    assert gone.failed


def test_one_that_slept_through_everything_goes() -> None:
    assert see(standing(), scaled_in(number=7), 5) == GONE


def test_a_waiting_newcomer_is_in_no_generation_yet() -> None:
    assert see(standing(newcomer=True), without(1), 5) == []


def test_a_newcomer_whose_generation_was_passed_over_goes_without_fault() -> None:
    place = standing(newcomer=True)
    place.worker.on_message(Prepare(generation=first(0, 1, 2)))
    assert see(place, without(1), 5)[-1] == Dismiss(why="the adjustment was undone", failed=False)


def test_the_end_of_the_job_frees_only_those_who_wait() -> None:
    place = standing()
    place.ended = "the job is finished"
    assert place.leave_if_over() == []
    place.worker.on_broke(1, "reset")
    assert place.leave_if_over() == [Dismiss(why="the job is finished", failed=False, over=True)]


def test_the_end_of_the_job_frees_a_leaver_and_dismisses_one_that_could_not_leave() -> None:
    place = standing()
    place.worker.on_message(Prepare(generation=scaled_in()))
    assert place.worker.on_switch_decided(2) is None
    assert place.leave_if_over() == []
    place.ended = "the job is finished"
    assert place.leave_if_over() == [MayGo()]
    place.worker.on_broke(1, "reset")
    assert place.leave_if_over() == [Dismiss(why="the job is finished", failed=False, over=True)]


def test_a_newcomer_without_a_leader_despairs_and_a_member_does_not() -> None:
    place = standing(newcomer=True)
    assert place.despair(10.0, after_s=60.0) == []
    assert place.despair(69.9, after_s=60.0) == []
    why = "the job has had no leader for 60 s"
    assert place.despair(70.0, after_s=60.0) == [Dismiss(why=why, failed=True)]
    assert standing().despair(1e9, after_s=60.0) == []


def test_a_leader_that_comes_back_ends_the_despair() -> None:
    place = standing(newcomer=True)
    place.despair(10.0, after_s=60.0)
    place.worker.on_linked()
    assert place.despair(60.0, after_s=60.0) == []
    place.worker.on_unlinked()
    assert place.despair(71.0, after_s=60.0) == []


def test_whoever_waits_in_the_last_round_of_a_job_that_is_over_is_woken_once() -> None:
    place = standing()
    assert place.hurry(1.0, after_s=10.0) == []
    place.ended = "the job is finished"
    assert place.hurry(2.0, after_s=10.0) == []
    assert place.hurry(11.9, after_s=10.0) == []
    assert place.hurry(12.0, after_s=10.0) == [BreakGroup(number=1, why="the job is finished")]
    assert place.hurry(30.0, after_s=10.0) == []


def test_nobody_leads_a_job_that_is_over() -> None:
    place = standing()
    assert place.may_lead()
    place.ended = "the job is finished"
    assert not place.may_lead()


# -- fences ----------------------------------------------------------------------------------


FENCED = "the job was fenced: its generation was deleted from the store"


def watched(generation: Generation, revision: int = 5) -> Standing:
    place = standing()
    place.take_note(write_recorded(generation, ()), revision, watched=True)
    return place


def test_a_worker_stops_when_its_generation_is_deleted() -> None:
    place = watched(first(0, 1, 2))
    stopped = [BreakGroup(number=1, why=FENCED), Dismiss(why=FENCED, failed=False)]
    assert place.fence_if_deleted(watched=True) == stopped
    assert not place.may_lead()
    assert place.fence_if_deleted(watched=True) == []


def test_a_notification_from_before_the_founding_is_no_fence() -> None:
    place = standing()
    place.take_note(write_recorded(first(0, 1, 2), ()), 5)  # by the answer to a swap
    assert place.fence_if_deleted(watched=True) == []
    assert place.may_lead()


def test_an_answer_without_a_generation_is_a_fence() -> None:
    assert standing().fence_if_deleted(watched=False) != []


def test_a_job_that_has_ended_is_not_fenced() -> None:
    place = watched(first(0, 1, 2))
    place.ended = "the job is finished"
    assert place.fence_if_deleted(watched=True) == []


def test_a_leaver_goes_when_its_job_is_fenced() -> None:
    place = watched(first(0, 1, 2))
    place.worker.state = State.LEAVING
    assert place.fence_if_deleted(watched=True) == [MayGo()]


def test_a_worker_stops_when_another_start_of_the_job_takes_its_place() -> None:
    place = watched(without(2))
    found = place.fence_if_replaced(write_recorded(first(0, 1, 2, token=9), ()))
    assert found[-1] == Dismiss(
        why="the job was started again: the store holds generation 1 of another start",
        failed=False,
    )


def test_its_own_founding_generation_recorded_again_is_no_other_start() -> None:
    assert watched(scaled_in()).fence_if_replaced(write_recorded(first(0, 1, 2), ())) == []
