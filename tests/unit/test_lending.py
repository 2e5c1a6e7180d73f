"""Slots that are lent for a time: it counts from the request, and they are free at its end."""

from __future__ import annotations

from edl.launch.messages import Reserve, Reserved
from edl.launch.service import LAPSE_S, LaunchService
from edl.launch.slots import SlotBook
from edl.protocol.messages import Refusal
from edl.types import Gpu, WorkerId
from tests.unit.test_keeping import Launcher

W0, W1 = WorkerId("w0"), WorkerId("w1")
WISH = Reserve(request_id="4f2", count=1, gpus=(), for_s=10.0)
OTHER = Reserve(request_id="5a0", count=1, gpus=(), for_s=0.0)


def service() -> LaunchService:
    """A founder sits on one of two slots; to leave takes two seconds."""
    made = LaunchService(Launcher(), SlotBook({}, limit=2), lambda peer, message: None)
    made.found(1)
    made.lead_s = 2.0
    return made


def test_the_time_counts_from_the_first_request() -> None:
    launcher = service()
    launcher.reserve(WISH, 100.0)
    launcher.reserve(WISH, 105.0)
    assert launcher.lent_until("4f2") == 110.0
    assert launcher.lent_until("5a0") is None


def test_a_time_in_which_nobody_could_be_of_use_is_refused() -> None:
    launcher = service()
    launcher.lead_s = 12.0
    answer = launcher.reserve(WISH, 100.0)
    assert isinstance(answer, Refusal)
    assert answer.reason == (
        "10.0 s of the 10 s are left, and leaving alone takes about 12.0 s in this job; ask for a "
        "longer time"
    )


def test_a_request_that_waits_for_its_turn_until_it_is_no_use_is_refused() -> None:
    launcher = service()
    assert isinstance(launcher.reserve(WISH, 100.0), Reserved)
    assert isinstance(launcher.reserve(WISH, 107.9), Reserved)
    answer = launcher.reserve(WISH, 108.0)
    assert isinstance(answer, Refusal)
    assert answer.reason.startswith("2.0 s of the 10 s are left")


def test_workers_that_were_started_are_the_answer_at_any_time() -> None:
    launcher = service()
    first = launcher.reserve(WISH, 100.0)
    launcher.start_reserved("4f2")
    assert launcher.reserve(WISH, 200.0) == first


def test_slots_that_nobody_starts_are_free_when_the_time_is_over() -> None:
    launcher = service()
    launcher.reserve(WISH, 100.0)
    assert WISH.for_s < LAPSE_S
    launcher.on_tick(109.9)
    assert isinstance(launcher.reserve(OTHER, 109.9), Refusal)
    launcher.on_tick(110.1)
    assert isinstance(launcher.reserve(OTHER, 110.1), Reserved)


def test_a_job_that_begins_again_does_not_begin_the_time_again() -> None:
    launcher = service()
    launcher.reserve(WISH, 100.0)
    launcher.forget()
    launcher.reserve(WISH, 104.0)
    assert launcher.lent_until("4f2") == 110.0


def test_a_job_that_begins_again_sits_where_it_sat() -> None:
    launcher = LaunchService(Launcher(), SlotBook({}, limit=4), lambda peer, message: None)
    launcher.found(1)
    wish = Reserve(request_id="4f2", count=1, gpus=(Gpu("localhost", 3),), for_s=0.0)
    launcher.reserve(wish, 100.0)
    launcher.start_reserved("4f2")
    for worker in (W0, W1):
        launcher.on_process_ended(worker, 101.0)
    launcher.forget()
    again = launcher.found(2, [W0, W1])
    assert [str(joiner.slot) for joiner in again] == ["localhost:0", "localhost:3"]
