"""One answer per request id, and requests that can never be granted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol.messages import (
    Adjusted,
    AdjustmentRecord,
    Finished,
    Migrate,
    Parts,
    Refusal,
    ScaleIn,
    ScaleOut,
    Undone,
)
from edl.protocol.requests import Final, Requests, choose_leavers, choose_movers, scale_out_fault
from edl.types import Gpu, WorkerId
from tests.seeded.cast import SETTINGS, first, joiner, names, w


def done(request_id: str) -> AdjustmentRecord:
    return AdjustmentRecord(
        request_id=request_id,
        kind="scale_out",
        joined=(w(2),),
        left=(),
        generation=2,
        step=5,
        size=3,
        total_s=1.0,
        transfer_bytes=0,
        parts=Parts(),
    )


def shrink(*workers: WorkerId, count: int = 0, gpus: tuple[Gpu, ...] = ()) -> ScaleIn:
    return ScaleIn(request_id="r", workers=workers, gpus=gpus, count=count)


def test_everyone_who_waits_hears_the_answer_once() -> None:
    requests = Requests()
    requests.await_answer("r", 4)
    requests.await_answer("r", 5)
    requests.await_answer("r", 4)
    answer = Undone(request_id="r", reason="why")
    assert requests.settle(answer) == [4, 5]
    assert requests.settle(answer) == []
    assert requests.answered("r") == answer


def test_a_closed_connection_does_not_close_its_request() -> None:
    requests = Requests()
    requests.await_answer("r", 4)
    requests.forget(4)
    assert requests.open_ids() == ["r"]
    assert requests.settle(Undone(request_id="r", reason="")) == []


def test_old_answers_are_forgotten_at_last() -> None:
    requests = Requests()
    for number in range(600):
        requests.settle(Undone(request_id=f"r{number}", reason=""))
    assert requests.answered("r0") is None
    assert requests.answered("r599") is not None


def test_what_is_remembered_of_other_leaders_is_bounded_too() -> None:
    requests = Requests()
    requests.restore(
        tuple((f"a{number}", "Undone", "") for number in range(600)),
        tuple(done(f"b{number}") for number in range(600)),
    )
    assert len(requests.memory()) == 0
    assert requests.answered("b0") is None
    assert requests.answered("b599") is not None


def test_the_next_leader_gives_the_same_answers() -> None:
    old, new = Requests(), Requests()
    answers: list[Final] = [
        Undone(request_id="a", reason="1"),
        Refusal(request_id="b", reason="2"),
        Finished(request_id="c", reason="3"),
    ]
    for answer in answers:
        old.settle(answer)
    old.settle(Adjusted(request_id="d", record=done("d")))
    new.restore(old.memory(), (done("d"),))
    assert [new.answered(key) for key in "abcd"] == [old.answered(key) for key in "abcd"]


@pytest.mark.parametrize(
    ("numbers", "limit", "reason"),
    [
        ((), 0, "0 workers"),
        ((1,), 0, "in the job already"),
        ((2, 3), 3, "add at most 1"),
        ((2, 3), 4, ""),
        ((2,), 0, ""),
    ],
)
def test_a_scale_out_that_cannot_be_granted_says_why(
    numbers: tuple[int, ...], limit: int, reason: str
) -> None:
    message = ScaleOut(request_id="r", joiners=tuple(joiner(i) for i in numbers))
    fault = scale_out_fault(first(0, 1), message, Settings(max_workers=limit))
    assert reason in fault
    assert bool(fault) == bool(reason)


@pytest.mark.parametrize("name", ["w\x1b[31m2", "w 2", "w,2", "../w2", "", "w" * 129])
def test_a_newcomer_with_another_kind_of_name_is_refused(name: str) -> None:
    members, plain = first(0, 1), joiner(2)
    for newcomer in (
        replace(plain, worker=WorkerId(name)),
        replace(plain, slot=Gpu(name, 0)),
    ):
        fault = scale_out_fault(members, ScaleOut(request_id="r", joiners=(newcomer,)), SETTINGS)
        message = Migrate(request_id="r", workers=names(1), gpus=(), joiners=(newcomer,))
        assert choose_movers(members, message, SETTINGS) == ((), fault)
        assert "letters, digits, '.', '_' and '-'" in fault
        assert fault.isprintable()
        assert len(fault) < 200


def test_without_names_the_highest_ranks_leave_and_the_leader_last() -> None:
    assert choose_leavers(first(0, 1, 2), shrink(count=1), SETTINGS) == (names(2), "")
    assert choose_leavers(first(0, 1, 2), shrink(count=2), SETTINGS) == (names(2, 1), "")


def test_named_workers_and_slots_leave() -> None:
    generation = first(0, 1, 2)
    assert choose_leavers(generation, shrink(w(0)), SETTINGS) == (names(0), "")
    by_slot = shrink(gpus=(Gpu("node1", 1),))
    assert choose_leavers(generation, by_slot, SETTINGS) == (names(1), "")
    both = shrink(w(1), gpus=(Gpu("node1", 1),))
    assert choose_leavers(generation, both, SETTINGS) == (names(1), "")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (shrink(), "0 workers"),
        (shrink(WorkerId("w9")), "'w9' is not in the job; it has w0, w1, w2"),
        (shrink(gpus=(Gpu("node9", 0),)), "slot node9:0 has no worker"),
        (shrink(count=3), "leaves none"),
        (shrink(count=9), "removing 9 of 3"),
        (shrink(count=2), "under --min 2"),
    ],
)
def test_a_scale_in_that_cannot_be_granted_says_why(message: ScaleIn, reason: str) -> None:
    leavers, fault = choose_leavers(first(0, 1, 2), message, Settings(min_workers=2))
    assert leavers == ()
    assert reason in fault
