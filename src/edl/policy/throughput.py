"""How fast a job goes on p GPUs, and what each GPU more or less is worth.

A policy asks three things of a job's speed: S(p), the samples a second; G(p) = p * e(p), "GPUs'
worth of useful work", where e(p) is GPU efficiency, t(p) / max t(q) with t(p) = S(p) / p; and in
which order GPUs are best given or taken. Speeds are not concave (a second machine, a first
all-reduce), so the order is taken from the upper hull of G, where gains only fall.

Jobs of one kind share one `Curve`, so that a policy may treat them as one class. Holds: `rate[0]
== 0`, `worth` is `rate` in another unit, and `limit` is the last p that anybody should be given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

from edl.errors import UsageError

__all__ = ["Curve", "Piece", "StepModel"]


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of one step on p GPUs at the aggregate batch B, as measured strong scaling goes:

    a + b * B / p + c * [p > 1] + d * log2(p) + e * log2(machines)
    """

    a: float
    b: float
    c: float
    d: float
    e: float

    def step_s(self, batch: int, gpus: int, nodes: int) -> float:
        alone = self.a + self.b * batch / gpus
        if gpus == 1:
            return alone
        return alone + self.c + self.d * log2(gpus) + self.e * log2(nodes)


@dataclass(frozen=True, slots=True)
class Piece:
    """A straight part of the hull: from `begin` to `end` GPUs, `slope` of worth for each."""

    begin: int
    end: int
    slope: float


class Curve:
    """S(p) of one kind of job for p = 0 .. limit, with what policies derive from it."""

    __slots__ = ("_hulls", "_model", "best", "efficiency", "label", "limit", "rate", "worth")

    def __init__(self, rates: Sequence[float], *, label: str = "", peak: bool = True) -> None:
        """`rates[p]` is S(p), from p = 0 on, which is 0. With `peak`, no p beyond the highest S
        counts, for nobody is to be given a GPU that slows it down."""
        if len(rates) < 2 or rates[0] != 0 or min(rates[1:]) <= 0:
            raise UsageError(
                f"speeds of {label or 'a job'} are {list(rates)[:5]}...; expected 0 for no GPU, "
                "then a number above 0 for 1, 2, ... GPUs"
            )
        self.label = label
        top = max(range(1, len(rates)), key=lambda p: (rates[p], -p))
        self.rate = tuple(rates)
        self.limit = top if peak else len(rates) - 1
        each = max(rates[p] / p for p in range(1, len(rates)))
        self.worth = tuple(rate / each for rate in rates)
        self.efficiency = (0.0, *(self.worth[p] / p for p in range(1, len(rates))))
        self.best = top
        self._hulls: dict[tuple[int, int, int], tuple[Piece, ...]] = {}
        self._model: tuple[StepModel, int] | None = None

    @staticmethod
    def fitted(
        model: StepModel, batch: int, *, gpus_per_node: int, least: int, most: int, label: str = ""
    ) -> Curve:
        """Packed on as few machines as hold p. It reaches to the highest S, to `least` (what the
        user asked for) at the least, and to `most` or the batch at the most."""
        last = max(least, min(most, batch))
        rates = [0.0]
        rates += [
            batch / model.step_s(batch, p, ceil(p / gpus_per_node)) for p in range(1, last + 1)
        ]
        top = max(range(1, last + 1), key=lambda p: (rates[p], -p))
        curve = Curve(rates[: max(top, least) + 1], label=label)
        curve._model = (model, batch)
        return curve

    @staticmethod
    def measured(rates: Mapping[int, float], *, least: int, most: int, label: str = "") -> Curve:
        """From some p; between them a straight line, below and beyond them the nearest one's speed
        per GPU (below) or speed (beyond: nothing is known to get faster there)."""
        known = sorted(p for p in rates if p >= 1)
        if not known:
            raise UsageError(f"no speed of {label or 'a job'} is known; at least one is needed")
        last = max(least, min(most, known[-1]))
        curve = [0.0]
        for p in range(1, last + 1):
            below = max((q for q in known if q <= p), default=None)
            above = min((q for q in known if q >= p), default=None)
            if below is None and above is not None:
                curve.append(rates[above] / above * p)
            elif above is None and below is not None:
                curve.append(rates[below])
            elif below is not None and above is not None:
                part = 0.0 if above == below else (p - below) / (above - below)
                curve.append(rates[below] + part * (rates[above] - rates[below]))
        return Curve(curve, label=label)

    def rate_on(self, gpus: int, nodes: int) -> float:
        """S(p) when p GPUs lie on so many machines; as packed where that was never measured."""
        if self._model is None or gpus == 0:
            return self.rate[gpus]
        model, batch = self._model
        return batch / model.step_s(batch, gpus, nodes)

    def hull(self, begin: int, least: int, most: int) -> tuple[Piece, ...]:
        """The upper hull of (p, G(p)) for p = begin and p = least .. most: slopes only fall.

        Its first piece ends at `least` or beyond: what lies between is not to be had.
        """
        found = self._hulls.get((begin, least, most))
        if found is None:
            found = self._hulls[begin, least, most] = _upper_hull(self.worth, begin, least, most)
        return found


def _upper_hull(worth: Sequence[float], begin: int, least: int, most: int) -> tuple[Piece, ...]:
    points = [begin]
    for p in range(max(begin + 1, least), most + 1):
        while len(points) > 1:
            before, last = points[-2], points[-1]
            rise = (worth[last] - worth[before]) / (last - before)
            # Points on a straight line stay apart: each GPU can be given by itself.
            if (worth[p] - worth[last]) / (p - last) <= rise * (1.0 + 1e-9):
                break
            points.pop()
        points.append(p)
    return tuple(
        Piece(first, last, (worth[last] - worth[first]) / (last - first))
        for first, last in pairwise(points)
    )
