"""The one adjustment in flight: who is waited for, and until when."""

from __future__ import annotations

import pytest

from edl.protocol.adjustment import REPORT_S, Adjustment, Phase
from edl.protocol.messages import AdjustmentStatus, Switched
from edl.protocol.topology import draw_next
from edl.types import Gpu
from tests.seeded.cast import SETTINGS, first, member, names, w


def opened(*joiners: int, leavers: tuple[int, ...] = ()) -> Adjustment:
    return Adjustment(
        request_id="r",
        kind="scale_out" if joiners else "scale_in",
        expected={w(i): Gpu("node1", i) for i in joiners},
        leavers=names(*leavers),
        opened=100.0,
        settings=SETTINGS,
    )


def building() -> Adjustment:
    adjustment = opened(2)
    target = draw_next(
        first(0, 1), number=2, joiners=[member(2)], leavers=(), token=1, request_id="r"
    )
    adjustment.on_registered(member(2), process_start_s=1.0, now=101.0)
    adjustment.on_ready(w(2), context_s=2.0)
    adjustment.build(target, now=103.0)
    return adjustment


def switched(number: int, *, stop_s: float = 0.0) -> Switched:
    return Switched(
        generation=2, worker=w(number), step=9, transfer_s=0.5, transfer_bytes=64, stop_s=stop_s
    )


def test_a_scale_in_is_gathered_at_once() -> None:
    assert opened(leavers=(1,)).gathered()


def test_a_scale_out_is_gathered_when_all_are_here_and_ready() -> None:
    adjustment = opened(2, 3)
    for number in (2, 3):
        adjustment.on_registered(member(number), process_start_s=0.0, now=101.0)
        assert not adjustment.gathered()
    adjustment.on_ready(w(2), context_s=1.0)
    assert not adjustment.gathered()
    adjustment.on_ready(w(3), context_s=1.0)
    assert adjustment.gathered()


def test_it_is_built_when_the_last_one_has_built() -> None:
    adjustment = building()
    assert not adjustment.on_built(w(0))
    assert not adjustment.on_built(w(0))
    assert not adjustment.on_built(w(2))
    assert adjustment.on_built(w(1))


def test_leavers_confirm_too() -> None:
    adjustment = opened(leavers=(1,))
    target = draw_next(first(0, 1), number=2, joiners=(), leavers=names(1), token=1, request_id="r")
    adjustment.build(target, now=101.0)
    assert adjustment.waiting == {w(0), w(1)}
    assert adjustment.touched() == {w(0), w(1)}


@pytest.mark.parametrize(
    ("registered", "wait_s", "why"),
    [
        ((), 60.0, "w2, w3 did not register within 60 s"),
        ((2,), 60.0, "w3 did not register within 60 s"),
        ((2, 3), 660.0, "w2, w3 did not become ready within 600 s"),
    ],
)
def test_gathering_has_its_time(registered: tuple[int, ...], wait_s: float, why: str) -> None:
    adjustment = opened(2, 3)
    for number in registered:
        adjustment.on_registered(member(number), process_start_s=0.0, now=160.0 - 1e-6)
    assert adjustment.overdue(100.0 + wait_s - 0.1) is None
    assert adjustment.overdue(100.0 + wait_s) == why


def test_building_has_its_time_and_the_store_has_as_long_as_it_takes() -> None:
    adjustment = building()
    adjustment.on_built(w(0))
    # Members that give up by themselves at 133.0 still report why.
    assert adjustment.overdue(132.9 + REPORT_S) is None
    assert adjustment.overdue(133.0 + REPORT_S) == "w1, w2 did not build the group within 30 s"
    adjustment.record()
    assert adjustment.overdue(1e9) is None


def test_an_announced_switch_waits_for_as_long_as_it_takes() -> None:
    adjustment = building()
    adjustment.announce(step=9, now=104.0)
    assert adjustment.overdue(1e9) is None
    adjustment.switch(step=9, now=105.0)
    assert adjustment.overdue(1e9) is None


def test_it_is_complete_when_everyone_has_switched() -> None:
    adjustment = building()
    adjustment.announce(step=9, now=104.0)
    adjustment.switch(step=9, now=106.0)
    assert not adjustment.on_switched(switched(0, stop_s=0.25))
    assert not adjustment.on_switched(switched(0))
    assert not adjustment.on_switched(switched(1))
    assert adjustment.on_switched(switched(2))
    record = adjustment.report(110.0)
    assert (record.joined, record.left, record.generation) == (names(2), (), 2)
    assert (record.step, record.size, record.total_s) == (9, 3, 10.0)
    parts = record.parts
    assert (parts.process_start_s, parts.context_s, parts.topology_s) == (1.0, 2.0, 1.0)
    assert (parts.switch_wait_s, parts.transfer_s, parts.stop_s) == (2.0, 0.5, 0.25)
    assert adjustment.summary(record)["joined"] == "w2"
    assert adjustment.summary(record)["total_s"] == 10.0


def test_status_says_what_is_waited_for() -> None:
    assert opened(3, 2).status(101.5) == AdjustmentStatus(
        request_id="r",
        kind="scale_out",
        phase="waiting for new workers",
        age_s=1.5,
        workers=names(2, 3),
        detail="w2, w3 to start",
    )


def test_status_says_who_still_loads_and_who_has_not_come() -> None:
    adjustment = opened(3, 2)
    adjustment.on_registered(member(2), process_start_s=0.0, now=101.0)
    detail = adjustment.status(101.5).detail
    assert detail == "w3 to start; w2 to load model and data"


def test_phases_say_themselves_in_words() -> None:
    assert all(" " in phase.value or phase is Phase.SWITCHING for phase in Phase)
