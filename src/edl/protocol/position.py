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

from edl.errors import EdlError

__all__ = ["Comparison", "Position", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """One worker's place in the history; the order of the fields is the order of being ahead."""

    state: int  # 0: a newcomer that has committed nothing, so its state is nobody's truth
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
    ahead = (best.state, best.step, best.calls)
    return Comparison(
        source=positions.index(best),
        behind=tuple(
            rank for rank, p in enumerate(positions) if (p.state, p.step, p.calls) < ahead
        ),
        late=tuple(rank for rank, p in enumerate(positions) if p.acts < best.acts or p.step < best.step),
    )
