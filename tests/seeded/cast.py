"""A small cast of workers, generations and records, for tests that step one machine by hand."""

from __future__ import annotations

from hypothesis import settings

from edl.config import Settings
from edl.protocol.effects import Effect, Send
from edl.protocol.events import StepCommitted
from edl.protocol.messages import Joiner, Message
from edl.protocol.record import Kind, StepRecord
from edl.protocol.topology import Generation, draw_first
from edl.types import Address, Gpu, Member, WorkerId

__all__ = [
    "SETTINGS",
    "committed",
    "drawn",
    "first",
    "joiner",
    "member",
    "names",
    "record",
    "sent",
    "w",
]

SETTINGS = Settings()

# Few enough for the unit tests' few seconds, and no clock: a busy machine is no failure.
drawn = settings(max_examples=60, deadline=None)


def w(number: int) -> WorkerId:
    return WorkerId(f"w{number}")


def names(*numbers: int) -> tuple[WorkerId, ...]:
    return tuple(w(number) for number in numbers)


def member(number: int) -> Member:
    return Member(
        worker=w(number),
        address=Address("10.0.0.1", 7000 + number),
        host="node1",
        slot=Gpu("node1", number),
        pid=100 + number,
    )


def joiner(number: int) -> Joiner:
    return Joiner(worker=w(number), slot=Gpu("node1", number))


def first(*numbers: int, token: int = 1) -> Generation:
    """A founding generation led by the first of these."""
    members = [member(number) for number in numbers]
    return draw_first(members, number=1, leader=w(numbers[0]), token=token)


def record(
    *,
    step: int = 0,
    samples: int = 0,
    kind: int = Kind.STEP,
    leaving: int = 0,
    ahead: int = 0,
    says: tuple[int, int, int] = (0, 0, 0),
    detail: int = 0,
    settings_digest: int = 0,
    state_digest: int = 0,
) -> StepRecord:
    """`says` is the announcement: generation, switch step, token."""
    return StepRecord(
        kind=kind,
        step=step,
        samples=samples,
        want=0,
        back=0,
        compute_us=1000,
        leaving=leaving,
        ahead=ahead,
        next_generation=says[0],
        switch_step=says[1],
        token=says[2],
        detail=detail,
        settings_digest=settings_digest,
        state_digest=state_digest,
    )


def committed(step: int, *records: StepRecord, duration_s: float = 0.25) -> StepCommitted:
    return StepCommitted(
        step=step,
        epoch=0,
        epochs=1,
        batch=8,
        samples=8,
        duration_s=duration_s,
        records=records,
        report={},
    )


def sent(effects: list[Effect], kind: type[Message]) -> list[tuple[int, Message]]:
    """Every message of this kind among the effects, with its connection."""
    return [
        (effect.peer, effect.message)
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]
