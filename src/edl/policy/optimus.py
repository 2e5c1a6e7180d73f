"""Optimus: GPUs go one by one to whoever's remaining time they shorten most. Planned in rounds.

Every round begins from an empty cluster on paper. In the order of arrival each job has its least
number of GPUs; then the next GPU goes to the job whose remaining time falls most by it, until none
is left or nobody gets faster. Where one GPU alone makes nothing better and two do, they go
together. Jobs that are not elastic have exactly what was asked for, or nothing. What runs is then
changed to that.

There is one round in each interval, at its beginning or at the first event after that. Whoever
comes later waits for the next one, as in Optimus, and GPUs that fall free in between stay idle
until then. With the interval 0 every event is a round. The number of the last round is the one
thing kept between calls: without it a policy could not tell whether a round was missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from math import floor, isfinite

from edl.errors import UsageError
from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, ScaleIn, ScaleOut, Start
from edl.policy.throughput import Curve
from edl.policy.view import Job, View

__all__ = ["Optimus"]

# Of those whose leader tells nothing: an hour with what was asked for.
UNKNOWN_S = 3600.0
Steps = tuple[tuple[int, float], ...]  # (GPUs, time saved by each up to there), best first


class Optimus(Policy):
    name = "optimus"
    resizes = True

    def __init__(self, *, interval_s: float = 600.0) -> None:
        if not (isfinite(interval_s) and interval_s >= 0):
            raise UsageError(f"interval_s is {interval_s}; it is a number of seconds, 0 or more")
        self.interval_s = interval_s
        self._steps: dict[tuple[int, int, int], tuple[Curve, Steps]] = {}
        self.forget()

    def forget(self) -> None:
        self._view: View | None = None
        self._round = -1
        self._steps.clear()

    def wake(self, view: View) -> float | None:
        if not self.interval_s:
            return None
        return (self._round + 1) * self.interval_s

    def decide(self, view: View) -> list[Decision]:
        view.take_news()
        if self._view is not view:
            self.forget()
            self._view = view
        if self.interval_s:
            number = floor(view.now / self.interval_s)
            # The beginning of a round, divided by the interval, may come out a trifle below it.
            if (number + 1) * self.interval_s <= view.now:
                number += 1
            if number <= self._round:
                return []
            self._round = number
        return self._difference(view, self._plan(view))

    def _plan(self, view: View) -> dict[int, int]:
        """GPUs by key, of those that have any."""
        free = view.capacity
        plan: dict[int, int] = {}
        for job in view.jobs.values():
            if job.least <= free:
                plan[job.key] = job.least
                free -= job.least
                if not free:
                    return plan
        wishes = [_Wish(view.jobs[key], self._steps_of(view.jobs[key]), view.now) for key in plan]
        heap = [(-wish.gain, wish.job.key, wish) for wish in wishes if wish.gain > 0]
        heapify(heap)
        while heap and free:
            _, key, wish = heap[0]
            gpus = wish.give(free)
            free -= gpus - plan[key]
            plan[key] = gpus
            if wish.gain > 0:
                heapreplace(heap, (-wish.gain, key, wish))
            else:
                heappop(heap)
        return plan

    def _steps_of(self, job: Job) -> Steps:
        key = (id(job.curve), job.least, job.most)
        found = self._steps.get(key)
        if found is None:
            # With the curve, so that no other one gets its id.
            steps = _steps(job.curve.rate, job.least, job.most)
            found = self._steps[key] = (job.curve, steps)
        return found[1]

    @staticmethod
    def _difference(view: View, plan: dict[int, int]) -> list[Decision]:
        stops: list[Decision] = []
        fewer: list[Decision] = []
        more: list[Decision] = []
        starts: list[Decision] = []
        for key, job in view.jobs.items():
            gpus = plan.get(key, 0)
            if gpus == job.held:
                continue
            if not gpus:
                stops.append(Preempt(key, "those that came before it need its GPUs"))
            elif not job.held:
                starts.append(Start(key, gpus, f"its turn in this round, with {gpus} GPUs"))
            elif gpus < job.held:
                reason = f"others get faster by what it has beyond {gpus} GPUs"
                fewer.append(ScaleIn(key, gpus, reason))
            else:
                reason = f"nobody's remaining time falls more by them: now {gpus} GPUs"
                more.append(ScaleOut(key, gpus, reason))
        return stops + fewer + more + starts


class _Wish:
    """What a job wants next, and how many seconds each GPU of it saves."""

    __slots__ = ("_at", "_gpus", "_steps", "_work", "gain", "job")

    def __init__(self, job: Job, steps: Steps, now: float) -> None:
        self.job = job
        left = job.left_at(now)
        seconds = UNKNOWN_S if left is None else left / job.gpus
        # In samples, so that time is work / S(p).
        self._work = seconds * job.curve.rate[job.gpus]
        self._steps = steps
        self._gpus = job.least
        self._at = 0
        self.gain = self._work * steps[0][1] if steps else 0.0

    def give(self, free: int) -> int:
        """How many GPUs it has then."""
        end = self._steps[self._at][0]
        if end - self._gpus > free:
            # Not as many as save most together; the best of what there is, and that was all.
            rate = self.job.curve.rate
            within = range(self._gpus, self._gpus + free + 1)
            self._gpus = max(within, key=lambda p: (rate[p], -p))
            self.gain = 0.0
            return self._gpus
        self._gpus = end
        self._at += 1
        more = self._at < len(self._steps)
        self.gain = self._work * self._steps[self._at][1] if more else 0.0
        return end


def _steps(rate: Sequence[float], least: int, most: int) -> Steps:
    """The lower hull of time, 1 / S(p): what is saved by each GPU only falls, and is above 0."""
    points = [least]
    for p in range(least + 1, most + 1):
        while len(points) > 1 and _saved(rate, points[-1], p) > _saved(
            rate, points[-2], points[-1]
        ):
            points.pop()
        points.append(p)
    found = [(end, _saved(rate, begin, end)) for begin, end in pairwise(points)]
    return tuple((end, saved) for end, saved in found if saved > 0)


def _saved(rate: Sequence[float], begin: int, end: int) -> float:
    return (1 / rate[begin] - 1 / rate[end]) / (end - begin)
