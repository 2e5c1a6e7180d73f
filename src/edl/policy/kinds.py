"""Jobs that are alike for a policy: the same speed, the same number asked for, the same bounds.

What one GPU more or less is worth depends on the kind alone, so it is worked out once, and plans
are made for some dozens of kinds instead of thousands of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from edl.policy.throughput import Curve
from edl.policy.view import Job

__all__ = ["Kind", "Kinds", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """So many GPUs at once, at this price or gain for each."""

    gpus: int
    each: float


class Kind:
    """`losses`: what each GPU costs that is taken, from `gpus` down to `floor`, cheapest first.
    `gains`: what each is worth that is given beyond `gpus`, relative to the speed so far, best
    first. `offers`: GPUs with which it may start, most first."""

    __slots__ = (
        "curve",
        "elastic",
        "floor",
        "gains",
        "gpus",
        "losses",
        "most",
        "number",
        "offers",
        "rank",
    )

    def __init__(self, number: int, job: Job, share: float) -> None:
        self.number = number
        self.curve: Curve = job.curve
        self.rank = (job.curve.label, job.gpus, job.least, job.most, job.elastic)
        self.gpus = job.gpus
        self.elastic = job.elastic
        self.most = job.most
        self.floor = max(job.least, ceil(share * job.gpus)) if job.elastic else job.gpus
        worth = self.curve.worth
        self.offers = range(self.gpus, self.floor - 1, -1)
        self.losses: list[float] = []
        self.gains: list[Step] = []
        if job.elastic:
            for piece in reversed(self.curve.hull(self.floor, self.floor + 1, self.gpus)):
                self.losses += [piece.slope] * (piece.end - piece.begin)
            speed = worth[self.gpus]
            for piece in self.curve.hull(self.gpus, self.gpus + 1, self.most):
                if piece.slope <= 0:
                    break
                self.gains.append(Step(piece.end - piece.begin, piece.slope / speed))
                speed = worth[piece.end]


class Kinds:
    """Every kind seen so far. `Job.kind` is its number, given when an index first sees the job."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.all: list[Kind] = []
        self._known: dict[tuple[int, int, int, int, bool], Kind] = {}
        self.ladder_down: list[tuple[float, int]] = []  # (loss, kind), cheapest first
        self.ladder_up: list[tuple[float, int, int]] = []  # (gain, kind, GPUs), best first

    def number(self, job: Job) -> None:
        key = (id(job.curve), job.gpus, job.least, job.most, job.elastic)
        kind = self._known.get(key)
        if kind is None:
            kind = self._known[key] = Kind(len(self.all), job, self.share)
            self.all.append(kind)
            number = kind.number
            self.ladder_down += [(loss, number) for loss in kind.losses]
            # Of equals by what they are, not by who was seen first.
            self.ladder_down.sort(key=lambda rung: (rung[0], self.all[rung[1]].rank))
            self.ladder_up += [(step.each, number, step.gpus) for step in kind.gains]
            self.ladder_up.sort(key=lambda rung: (-rung[0], self.all[rung[1]].rank))
        job.kind = kind.number
