"""Workers of one request of which some could be started, and some could not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edl.launch.messages import Reserve, Reserved
from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook
from edl.protocol.messages import Joiner, Refusal
from edl.types import WorkerId
from tests.unit.test_keeping import Launcher


@dataclass
class Crowded(Launcher):
    """A machine that has room for one process."""

    running: list[WorkerId] = field(default_factory=list)

    def start(self, joiners: Iterable[Joiner], request_id: str) -> None:
        for joiner in joiners:
            if self.running:
                raise OSError("Resource temporarily unavailable")
            self.running.append(joiner.worker)

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(self.running)


def test_start_that_failed_half_way_is_refused_again_and_frees_the_slots_of_the_rest() -> None:
    slots = SlotBook({0: "0", 1: "1"})
    floor = Crowded()
    service = LaunchService(floor, slots, lambda peer, message: None)
    wish = Reserve(request_id="4f2", count=2, gpus=(), for_s=0.0)
    reserved = service.reserve(wish, 0.0)
    assert isinstance(reserved, Reserved)
    first = service.start_reserved("4f2")
    assert isinstance(first, Refusal)
    assert "temporarily unavailable" in first.reason
    assert service.start_reserved("4f2") == first
    assert floor.said == ["gave up 4f2"]

    another = service.reserve(Reserve(request_id="5a0", count=1, gpus=(), for_s=0.0), 1.0)
    assert isinstance(another, Reserved)
    assert another.joiners[0].slot == reserved.joiners[1].slot


@dataclass
class Faulty(Launcher):
    """A launcher that the system refuses with an unusual error."""

    def start(self, joiners: Iterable[Joiner], request_id: str) -> None:
        raise ValueError("embedded null byte")

    def alive(self) -> tuple[WorkerId, ...]:
        return ()


def test_start_that_fails_with_an_unusual_error_is_refused_and_frees_its_slots() -> None:
    slots = SlotBook({0: "0"})
    service = LaunchService(Faulty(), slots, lambda peer, message: None)
    wish = Reserve(request_id="4f2", count=1, gpus=(), for_s=0.0)
    assert isinstance(service.reserve(wish, 0.0), Reserved)
    refused = service.start_reserved("4f2")
    assert isinstance(refused, Refusal)
    assert refused.reason == "the workers could not be started: embedded null byte"
    slots.check_room(1)
