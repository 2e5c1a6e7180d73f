"""How far each survivor of a failure is, and what follows from it.

Survivors compare their positions in-band, as the first act in the generation that is made of them.
Every worker of a job goes through the same acts in the same order (steps, the script's own
reductions, the ends of loops), and none completes an act that another has not begun; so two
survivors differ by one act at most. A newcomer that has committed nothing is no survivor and never
gets here. Holds: the most advanced is the truth, and nobody rolls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

__all__ = ["Comparison", "Position", "compare"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """One worker's place in the history; the order of the fields is the order of being ahead."""

    state: int  # 0: a founder without the first leader's state, so its own is nobody's truth
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
    source = positions.index(best)
    ahead = (best.state, best.step, best.calls)
    if best.state:
        behind = [rank for rank, p in enumerate(positions) if (p.state, p.step, p.calls) < ahead]
    else:
        # Nobody has begun: these are founders, whose states differ, and any one will do.
        behind = [rank for rank in range(len(positions)) if rank != source]
    late = [rank for rank, p in enumerate(positions) if (p.step, p.acts) < (best.step, best.acts)]
    return Comparison(source=source, behind=tuple(behind), late=tuple(late))
