"""A leader stays until its history is heard."""

from __future__ import annotations

from edl.protocol.chronicle import Chronicle
from edl.protocol.closing import TOLD_S, Closing
from edl.protocol.effects import MayGo


def test_whoever_listens_has_heard_all_and_the_leader_goes_at_once() -> None:
    chronicle = Chronicle()
    chronicle.subscribe(3, "launcher")
    closing = Closing(chronicle)
    assert closing.on_tick(0.5) == []
    assert closing.on_recorded(1.0) == [MayGo()]


def test_a_launcher_that_has_not_found_its_leader_yet_is_waited_for() -> None:
    chronicle = Chronicle()
    closing = Closing(chronicle)
    assert closing.on_recorded(1.0) == []
    assert closing.on_tick(1.1) == []
    chronicle.subscribe(3, "launcher")
    assert closing.on_tick(1.2) == [MayGo()]


def test_but_not_for_long_for_it_may_be_gone() -> None:
    closing = Closing(Chronicle())
    assert closing.on_recorded(1.0) == []
    assert closing.on_recorded(1.5) == []
    assert closing.on_tick(1.0 + TOLD_S - 0.01) == []
    assert closing.on_tick(1.0 + TOLD_S) == [MayGo()]
