"""Who is slower than the others, judged from what the step records say of computing.

A synchronous step takes as long as its slowest worker, so one worker on a hot or shared device
holds everybody back. The time that a record tells is the worker's own part of its last step,
without any waiting for others. It must be long for the step as a whole, or nobody is held back, and
long for the samples of that step, since shares may differ. Owns: for each worker, how it compared
in recent steps. Holds: a worker is a straggler only after so many steps in a row over the factor,
and no longer after as many in a row that were not; the first steps of a newcomer, of a generation
and after a failure say nothing about anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import NamedTuple

from edl.protocol.record import StepRecord
from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["Judgement", "Stragglers"]

# Steps of a worker that are not judged: imports that come late, caches and allocators warm up.
_WARM_UP = 5
# The same after every change of generation: the first step moves state, and one of the workers
# sends it; the second one's record tells of the first.
_SETTLING = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one step has changed: who is a straggler from now on, and who no longer is."""

    found: tuple[WorkerId, ...] = ()
    gone: tuple[WorkerId, ...] = ()


@dataclass(slots=True)
class _Course:
    """One worker, as far as it was watched."""

    unjudged: int
    over: int = 0  # steps in a row that were slow
    over_us: float = 0.0  # and how long it computed in them
    under: int = 0  # steps in a row that were not
    ratios: deque[float] = field(default_factory=deque)


class _Time(NamedTuple):
    """How long a worker computed in one step."""

    whole: float
    each: float  # for one sample


class Stragglers:
    """Fed with every committed step. `factor` times the median for `steps` steps in a row, in which
    the worker computed for `least_s` at least."""

    def __init__(self, *, factor: float, steps: int, least_s: float) -> None:
        self._factor = factor
        self._least_us = least_s * 1e6
        self._steps = max(1, steps)
        self._generation = 0
        self._samples: dict[WorkerId, int] = {}  # of the last step, which the next record times
        self._courses: dict[WorkerId, _Course] = {}
        self._slow: set[WorkerId] = set()

    @property
    def slow(self) -> dict[WorkerId, float]:
        """Who is a straggler now, and how many times the median it takes per sample."""
        return {worker: self.ratio(worker) for worker in sorted(self._slow)}

    def ratio(self, worker: WorkerId) -> float:
        """The worker's time per sample over the median's, lately; 0: not known."""
        course = self._courses.get(worker)
        return median(course.ratios) if course is not None and course.ratios else 0.0

    def presume(self, workers: Iterable[WorkerId]) -> None:
        """Another judge has found these; they are no longer stragglers when that shows."""
        self._slow |= set(workers)

    def on_step(self, generation: Generation, records: Sequence[StepRecord]) -> Judgement:
        """A step is committed; its records time the step before."""
        workers = generation.workers()
        if len(records) != len(workers):
            return Judgement()
        left = self._enter(generation) if generation.number != self._generation else ()
        by = dict(zip(workers, records, strict=True))
        times = {
            worker: _Time(record.compute_us, record.compute_us / self._samples[worker])
            for worker, record in by.items()
            if record.compute_us > 0 and self._samples.get(worker, 0) > 0
        }
        self._samples = {worker: record.samples for worker, record in by.items()}
        judged = self._compare(self._ripe(times))
        return Judgement(found=judged.found, gone=(*left, *judged.gone))

    def _enter(self, generation: Generation) -> tuple[WorkerId, ...]:
        """Another membership, or survivors that do a step again: every row begins anew."""
        self._generation = generation.number
        if generation.mended:
            # What a record times now may be the attempt that broke, of other samples.
            self._samples = {}
        known, self._courses = self._courses, {}
        for worker in generation.workers():
            course = known.get(worker)
            unjudged = _WARM_UP if course is None else max(_SETTLING, course.unjudged)
            self._courses[worker] = _Course(unjudged, ratios=deque(maxlen=self._steps))
            if course is not None and worker in self._slow:
                self._courses[worker].ratios.extend(course.ratios)
        left = tuple(sorted(self._slow - self._courses.keys()))
        self._slow &= self._courses.keys()
        return left

    def _ripe(self, times: Mapping[WorkerId, _Time]) -> dict[WorkerId, _Time]:
        """Times of those that have warmed up; the others' would only shift the median."""
        ripe: dict[WorkerId, _Time] = {}
        for worker, taken in times.items():
            course = self._courses[worker]
            if course.unjudged:
                course.unjudged -= 1
            else:
                ripe[worker] = taken
        return ripe

    def _compare(self, times: Mapping[WorkerId, _Time]) -> Judgement:
        if len(times) < 2:
            return Judgement()
        # The lower one of an even number: of two workers the faster is what the other is
        # measured by, and half of the workers being slow does not make that the usual.
        whole = median_low(taken.whole for taken in times.values())
        each = median_low(taken.each for taken in times.values())
        found: list[WorkerId] = []
        gone: list[WorkerId] = []
        for worker, taken in times.items():
            course = self._courses[worker]
            course.ratios.append(taken.each / each)
            slow = taken.each > self._factor * each
            late = slow and taken.whole > self._factor * whole
            # One that is slow but has so little to do that it is not late is neither: what a step
            # costs besides its samples weighs more in a small share, and one that was found and
            # got a smaller share is as slow as before.
            course.over = course.over + 1 if late else 0
            course.over_us = course.over_us + taken.whole if late else 0.0
            course.under = 0 if slow else course.under + 1
            long = course.over >= self._steps and course.over_us >= self._least_us
            if long and worker not in self._slow:
                self._slow.add(worker)
                found.append(worker)
            elif course.under >= self._steps and worker in self._slow:
                self._slow.discard(worker)
                gone.append(worker)
        return Judgement(found=tuple(found), gone=tuple(gone))
