"""The step record: what every worker says in-band at every step.

Control travels inside a collective because a collective already is a barrier that everyone
passes or nobody does: no message can be late. One exchange of records is a round. Owns: the
fields, their order on the wire (fixed-size int64) and what an announcement means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

__all__ = [
    "FIELDS",
    "STOP",
    "WITHDRAWN",
    "Announcement",
    "Kind",
    "StepRecord",
    "Weighing",
    "loudest",
    "pack",
    "unpack",
    "weighing_of",
]

# Announced instead of a generation's number: everybody leaves, the job ends here.
STOP = -1
# Says that the generation in `switch_step` is announced no more. Means nothing to anybody but
# the leader, to whom it proves that this record, unlike earlier ones, was made after the undo.
WITHDRAWN = -2


class Kind(IntEnum):
    """Why a worker takes part in a round."""

    STEP = 1
    JOIN = 2  # a newcomer's first round: it learns the step from the others
    CLOSE = 3  # the training loop is over on this worker, by its end or by `break`
    REDUCE = 4  # the user's own all_reduce
    END = 5  # shutdown()
    COUNT = 6  # how many samples a worker used, where it says so after the step
    CHECK = 7  # the job stops after this step: are the replicas equal?


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One worker's line in a round. Every field is an integer of at most 63 bits."""

    kind: int
    step: int
    samples: int  # how many this worker uses in this step; 1 where it is counted afterwards
    want: int  # how many ranges it wants next
    back: int  # samples of its queue that flowed by in steps that did not count
    compute_us: int  # how long its last compute took
    leaving: int  # 1: it asks to leave, as after SIGTERM
    ahead: int  # how many batches its loader has fetched beyond this one
    next_generation: int  # 0: none announced
    switch_step: int
    token: int  # fencing token of whoever announces
    detail: int  # what is reduced, so that two different calls never meet
    weighing: int = 0  # a change of shares, from the leader; 0: none
    settings_digest: int = 0  # of hyperparameters and small registered state; 0: not known
    state_digest: int = 0  # of a part of parameters and optimizer state; 0: not known
    check: int = 0  # 1: a checkpoint is due at the next boundary; digest everything there


FIELDS = tuple(field.name for field in fields(StepRecord))
_values = attrgetter(*FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The leader's word on what comes next; repeated in every record until it happens."""

    generation: int
    switch_step: int
    token: int


class Weighing(NamedTuple):
    """From the next step on, this worker carries so much of a full share, in thousandths.

    One worker at a time: a record has room for one. Whoever sees it repeated is not changed by it
    again. Ranks mean something in their own generation only, which may be over by then.
    """

    generation: int
    rank: int
    weight: int

    def pack(self) -> int:
        return self.generation << 32 | self.rank << 16 | self.weight

    @staticmethod
    def unpack(value: int) -> Weighing:
        return Weighing(value >> 32, value >> 16 & 0xFFFF, value & 0xFFFF)


def weighing_of(records: Iterable[StepRecord]) -> Weighing | None:
    """The change of shares that counts in a round: the one with the highest token."""
    best = max((r for r in records if r.weighing), key=lambda r: r.token, default=None)
    return Weighing.unpack(best.weighing) if best is not None else None


def pack(record: StepRecord) -> list[int]:
    """The record as the integers that travel, in the order of FIELDS."""
    return [int(value) for value in _values(record)]


def unpack(values: Sequence[int]) -> StepRecord:
    """The inverse of `pack`."""
    return StepRecord(**dict(zip(FIELDS, values, strict=True)))


def loudest(records: Iterable[StepRecord]) -> Announcement | None:
    """The announcement that counts in a round: the one with the highest token."""
    speaking = [r for r in records if r.next_generation not in (0, WITHDRAWN)]
    best = max(speaking, key=lambda record: record.token, default=None)
    if best is None:
        return None
    return Announcement(
        generation=best.next_generation, switch_step=best.switch_step, token=best.token
    )
