"""How far each survivor of a failure is, and what follows from it.

Survivors compare their positions in-band, as the first act in the generation that is made of them.
Every worker of a job goes through the same acts in the same order (steps, the script's own
reductions, the ends of loops), and none completes an act that another has not begun; so two
survivors differ by one act at most. Holds: the most advanced is the truth, nobody rolls back, and a
worker that has never committed a step is no source for anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

from edl.errors import EdlError

__all__ = ["Comparison", "Position", "Standing", "compare"]


class Standing(IntEnum):
    """Whether a worker's state is the job's."""

    NOTHING = 0  # a newcomer that has committed nothing, so its state is nobody's truth
    FRESH = 1  # a founder that has not got the first leader's state yet: as good as any other
    WHOLE = 2


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """One worker's place in the history; the order of the fields is the order of being ahead."""

    state: int  # a Standing
    step: int
    calls: int  # of optimizers, since the last commit
    acts: int  # reductions and ends of loops completed since the last commit

    def pack(self) -> list[int]:
        return [getattr(self, field.name) for field in fields(self)]

    @staticmethod
    def unpack(values: Sequence[int]) -> Position:
        names = [field.name for field in fields(Position)]
        return Position(**dict(zip(names, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Ranks in the survivors' generation."""

    source: int
    behind: tuple[int, ...]  # they receive the source's state
    late: tuple[int, ...]  # they receive the result of the act that the source has completed


def compare(positions: Sequence[Position]) -> Comparison:
    """Who is the truth, and what the others need of it."""
    best = max(positions)
    if not best.state:
        raise EdlError(
            "nobody who had committed a step has survived; go on from the last checkpoint"
        )
    ahead, source = (best.state, best.step, best.calls), positions.index(best)
    fresh = best.state == Standing.FRESH  # no two of them are alike
    return Comparison(
        source=source,
        behind=tuple(
            rank
            for rank, p in enumerate(positions)
            if (p.state, p.step, p.calls) < ahead or (fresh and rank != source)
        ),
        late=tuple(rank for rank, p in enumerate(positions) if p.acts < best.acts),
    )
