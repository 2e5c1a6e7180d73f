"""How a launcher replaces a worker that the leader found to be too slow."""

from __future__ import annotations

from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook
from edl.launch.swapping import AGAIN_S, Swaps
from edl.protocol import messages as m
from edl.protocol.tale import Parts
from edl.types import WorkerId
from tests.unit.test_keeping import Launcher

W0, W1 = WorkerId("w0"), WorkerId("w1")


def swaps(slots: int = 0) -> tuple[Launcher, Swaps]:
    """A job of two workers."""
    floor = Launcher()
    service = LaunchService(floor, SlotBook({}, limit=slots), lambda peer, message: None)
    service.found(2)
    floor.free = lambda worker: service.on_process_ended(worker, 20.0)
    made = Swaps(service, tell=floor.told.__setitem__, withdraw=floor.withdraw, note=floor.note)
    return floor, made


def event(what: str, worker: WorkerId, policy: str = "replace") -> m.Happened:
    fields: dict[str, str | int | float] = {"worker": worker, "policy": policy}
    return m.Happened(seq=1, what=what, request_id="", generation=1, step=9, fields=fields)


def adjusted(request_id: str) -> m.Adjusted:
    record = m.AdjustmentRecord(
        request_id=request_id,
        kind="",
        joined=(),
        left=(),
        generation=2,
        step=3,
        size=2,
        total_s=1.0,
        transfer_bytes=0,
        parts=Parts(),
    )
    return m.Adjusted(request_id=request_id, record=record)


def test_a_straggler_moves_to_a_free_slot_in_one_adjustment() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1))
    asking.on_tick(10.0)
    (request,) = floor.told.values()
    assert isinstance(request, m.Migrate)
    assert [joiner.worker for joiner in request.joiners] == ["w2"]
    assert request.workers == (W1,)
    asking.on_answer(m.Accepted(request_id=request.request_id), 11.0)
    assert floor.started == [request.request_id]
    asking.on_answer(adjusted(request.request_id), 12.0)
    asking.on_tick(15.0)
    assert floor.told == {}
    assert len(floor.started) == 1


def test_two_stragglers_are_replaced_one_after_the_other() -> None:
    floor, asking = swaps()
    for worker in (W0, W1):
        asking.on_event(event("straggler.found", worker))
    left: list[WorkerId] = []
    for second in range(2):
        asking.on_tick(10.0 + second)
        (request,) = floor.told.values()
        assert isinstance(request, m.Migrate)
        left += request.workers
        asking.on_answer(adjusted(request.request_id), 12.0)
    assert left == [W0, W1]
    asking.on_tick(20.0)
    assert floor.told == {}


def test_under_another_policy_nobody_is_replaced() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1, policy="warn"))
    asking.on_tick(10.0)
    assert floor.told == {}


def test_one_that_keeps_up_again_before_its_turn_is_not_replaced() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1))
    asking.on_event(event("straggler.gone", W1))
    asking.on_tick(10.0)
    assert floor.told == {}


def test_without_a_free_slot_the_straggler_stays_and_it_is_tried_again_later() -> None:
    floor, asking = swaps(slots=2)
    asking.on_event(event("straggler.found", W1))
    asking.on_tick(10.0)
    assert floor.told == {}
    assert floor.said[0].startswith("straggler.kept {'worker': 'w1', 'why': ")
    assert "tried again every 60 s" in floor.said[0]
    asking.on_tick(10.0 + AGAIN_S)
    # The same again is not told again.
    assert len(floor.said) == 1
    floor.free(W0)
    asking.on_tick(10.0 + 2 * AGAIN_S)
    assert [type(request) for request in floor.told.values()] == [m.Migrate]


def test_a_newcomer_that_did_not_come_leaves_the_straggler_where_it_is() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1))
    asking.on_tick(10.0)
    (request_id,) = floor.told
    asking.on_answer(m.Undone(request_id=request_id, reason="w2 went away"), 12.0)
    assert floor.told == {}
    assert "w2 went away; tried again every 60 s" in floor.said[-1]


def test_a_straggler_that_was_lost_is_in_nobodys_way() -> None:
    """A leader that is slow and dies: the next one undoes what is asked of its predecessor."""
    floor, asking = swaps()
    for worker in (W1, WorkerId("w2")):
        asking.on_event(event("straggler.found", worker))
    asking.on_tick(10.0)
    (request_id,) = floor.told
    floor.gone.add(1)
    asking.on_answer(m.Undone(request_id=request_id, reason="w1 was lost meanwhile"), 12.0)
    assert floor.said == ["straggler.kept {'worker': 'w1', 'why': 'w1 was lost meanwhile'}"]
    asking.on_tick(12.0 + AGAIN_S)
    (request,) = floor.told.values()
    assert isinstance(request, m.Migrate)
    assert request.workers == ("w2",)


def test_a_refused_swap_is_not_asked_for_again() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1))
    asking.on_tick(10.0)
    (request_id,) = floor.told
    asking.on_event(event("straggler.gone", W1))
    asking.on_answer(m.Refusal(request_id=request_id, reason="w1 is no member"), 12.0)
    assert floor.said == ["straggler.kept {'worker': 'w1', 'why': 'w1 is no member'}"]
    asking.on_tick(10.0 + 2 * AGAIN_S)
    assert floor.told == {}


def test_a_job_that_begins_again_has_nobody_to_replace() -> None:
    floor, asking = swaps()
    asking.on_event(event("straggler.found", W1))
    asking.on_tick(10.0)
    asking.restart()
    asking.on_tick(200.0)
    assert floor.told == {}
