"""Whoever asked hears back when leavers have ended and the history tells of the request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from edl.launch.messages import AwaitGone, Gone
from edl.launch.service import TOLD_S, LaunchService
from edl.launch.slots import SlotBook
from edl.types import WorkerId
from edl.wire.hub import Peer
from tests.unit.test_keeping import Launcher

W1 = WorkerId("w1")
PEER = cast(Peer, object())
ENDED, STILL = Gone(request_id="4f2", still=()), Gone(request_id="4f2", still=(W1,))


@dataclass
class Running(Launcher):
    """A floor on which some processes run."""

    here: set[WorkerId] = field(default_factory=set)

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(self.here)


def asked(*workers: WorkerId) -> tuple[LaunchService, Running, list[object]]:
    """At 100 s, by a client that waits for 60 s at most."""
    answers: list[object] = []
    floor = Running(here=set(workers))
    service = LaunchService(floor, SlotBook({}), lambda peer, message: answers.append(message))
    service.on_message(PEER, AwaitGone(request_id="4f2", workers=workers, timeout_s=60.0), 100.0)
    return service, floor, answers


def test_nothing_is_answered_before_the_history_tells_of_it() -> None:
    service, _, answers = asked()
    service.on_settled("5a0", 100.1)
    assert answers == []
    service.on_settled("4f2", 100.2)
    assert answers == [ENDED]


def test_what_the_history_tells_already_is_answered_at_once() -> None:
    service, _, answers = asked()
    service.on_settled("4f2", 100.1)
    service.on_message(PEER, AwaitGone(request_id="4f2", workers=(), timeout_s=60.0), 101.0)
    assert answers == [ENDED, ENDED]


def test_leavers_are_awaited_also_when_the_history_tells_of_them() -> None:
    service, floor, answers = asked(W1)
    service.on_settled("4f2", 100.1)
    assert answers == []
    floor.here.clear()
    service.on_process_ended(W1, 101.0)
    assert answers == [ENDED]


def test_a_leader_that_died_as_it_answered_keeps_nobody_waiting() -> None:
    service, _, answers = asked()
    service.on_tick(100.0 + TOLD_S - 0.1)
    assert answers == []
    service.on_tick(100.0 + TOLD_S)
    assert answers == [ENDED]


def test_a_leaver_that_does_not_end_is_named() -> None:
    service, _, answers = asked(W1)
    service.on_tick(159.9)
    assert answers == []
    service.on_tick(160.0)
    assert answers == [STILL]
