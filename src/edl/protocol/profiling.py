"""How fast a job goes with p workers, and how well it uses each of them.

The paper's words: t(p) is the average per-GPU throughput with p GPUs, p* is the p where it is
highest, and GPU efficiency is t(p) / t(p*). Owns: one measurement, from what the leader tells of
itself, so that neither the asker's clock nor the way to it is in the figures. Holds: only steps
that were done by exactly p workers count, and the first of them are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from edl.protocol.messages import Status

__all__ = ["KNEE_EFFICIENCY", "Meter", "Profile", "Row", "judged", "members_of", "row_of"]

# Where each worker adds less than this share of what it could, more workers are rarely worth it.
KNEE_EFFICIENCY = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One parallelism."""

    workers: int
    throughput: float  # samples per second of the whole job
    per_worker: float  # the paper's t(p)
    efficiency: float | None  # t(p) / t(p*); None: there is nothing to compare with
    step_s: float
    steps: int  # how many were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What was measured, from many workers to few, and why something was not."""

    job: str
    rows: tuple[Row, ...]
    best: int | None  # p*
    knee: int | None  # the largest p with an efficiency of KNEE_EFFICIENCY or more
    notes: tuple[str, ...]
    restored: bool  # whether the job was put back, where that was wanted and needed
    earlier: Mapping[int, float]  # t(p) of other p, as measured before; p* may be one of these


def row_of(*, workers: int, samples: float, seconds: float, steps: int) -> Row:
    throughput = samples / seconds if seconds > 0 else 0.0
    return Row(
        workers=workers,
        throughput=throughput,
        per_worker=throughput / workers,
        efficiency=None,
        step_s=seconds / steps if steps else 0.0,
        steps=steps,
    )


def judged(
    job: str,
    rows: Iterable[Row],
    *,
    known: Mapping[int, float] | None = None,
    notes: Iterable[str] = (),
    restored: bool = True,
) -> Profile:
    """The rows with their efficiency.

    `known`: t(p) by p as it was measured before, where a row says nothing newer. One number alone
    is compared with nothing.
    """
    found = sorted(rows, key=lambda row: -row.workers)
    speeds = dict(known or {}) | {row.workers: row.per_worker for row in found}
    # Of equals the smaller: it does the same with less.
    best = min(speeds, key=lambda p: (-speeds[p], p)) if len(speeds) > 1 else None
    most = speeds[best] if best is not None else 0.0
    if most > 0:
        found = [replace(row, efficiency=row.per_worker / most) for row in found]
    measured = {row.workers for row in found}
    return Profile(
        job=job,
        rows=tuple(found),
        best=best,
        knee=max((p for p in speeds if speeds[p] >= KNEE_EFFICIENCY * most), default=None)
        if most > 0
        else None,
        notes=tuple(notes),
        restored=restored,
        earlier={p: speeds[p] for p in sorted(speeds) if p not in measured},
    )


def members_of(status: Status) -> int:
    return sum(worker.rank >= 0 for worker in status.workers)


class Meter:
    """Fed with one status after another, until it has its row."""

    def __init__(self, workers: int, *, warm_up: int, steps: int) -> None:
        self._workers = workers
        self._warm_up = warm_up
        self._steps = steps
        self._first: Status | None = None
        self._warm: Status | None = None
        self.row: Row | None = None
        self.done = 0  # measured steps, for whoever watches
        self.left_s = 0.0  # about, the warm-up included
        self.nearly = False  # a switch that is asked for now comes when it has its row

    def on_status(self, status: Status) -> bool:
        """Whether it goes on as it should; else somebody came or went, and it is to begin anew."""
        first = self._first
        if members_of(status) != self._workers:
            return False
        if first is None or _leader(first) != _leader(status) or first.trained_s > status.trained_s:
            # Another leader counts its own steps.
            self._first, self._warm, self.done, self.nearly = status, None, 0, False
            self.left_s = (self._warm_up + self._steps) * status.step_s
            return True
        if first.generation != status.generation:
            return False
        seen = status.step - first.step
        if seen:
            step_s = (status.trained_s - first.trained_s) / seen
            self.left_s = max(0, self._warm_up + self._steps - seen) * step_s
        if self._warm is None:
            if status.step >= first.step + self._warm_up:
                self._warm = status
            return True
        warm = self._warm
        self.done = status.step - warm.step
        self.nearly = self.done + status.switch_steps > self._steps
        if self.done >= self._steps:
            self.row = row_of(
                workers=self._workers,
                samples=status.trained_samples - warm.trained_samples,
                seconds=status.trained_s - warm.trained_s,
                steps=self.done,
            )
        return True


def _leader(status: Status) -> str:
    return next((worker.id for worker in status.workers if worker.leader), "")
