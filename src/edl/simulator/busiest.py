"""Which part of a trace is shown more closely: the time at which most is wanted of the cluster.

It must be known before the simulation, of which only that part is kept in detail, and be the same
for every policy. So it is read off a cluster that is shared alike: whoever is there goes as its
trace says as long as GPUs suffice, and all slow down alike when they do not. What is looked at is
how many GPUs those that are there ask for, waiting or not, so that a long queue counts and a single
job that will run for months does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import Protocol

__all__ = ["Asked", "busiest"]

SHOWN = 60  # jobs that come in a window, on average; with ten bars each they can be told apart
LEAST_S = 1200.0
MOST_OVER = 0.95  # of the jobs: how long the last few take says nothing of the others


class Asked(Protocol):
    """What is looked at of a job. In order of submission."""

    @property
    def submit_s(self) -> float: ...
    @property
    def gpus(self) -> int: ...
    @property
    def size_gpu_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Demand:
    """GPUs asked for: `gpus[i]` from `times[i]` to the next, `areas[i]` of them before it."""

    times: list[float]
    gpus: list[int]
    areas: list[float]
    ends: list[float]  # of jobs, in order

    def until(self, moment: float) -> float:
        """GPU seconds asked for before this moment."""
        at = bisect_right(self.times, moment) - 1
        return self.areas[at] + self.gpus[at] * (moment - self.times[at]) if at >= 0 else 0.0


def _demand(jobs: Sequence[Asked], capacity: int) -> _Demand:
    """`done` is how long anybody has run who was there from the beginning: the clock by which jobs
    end, which slows down where more is asked for than there is."""
    found = _Demand([], [], [], [])
    running: list[tuple[float, int]] = []  # (`done` at its end, GPUs)
    now, done, asked, area, coming = 0.0, 0.0, 0, 0.0, 0
    while running or coming < len(jobs):
        slow = max(1.0, asked / capacity)
        over = now + (running[0][0] - done) * slow if running else float("inf")
        if coming < len(jobs) and jobs[coming].submit_s <= over:
            job = jobs[coming]
            coming += 1
            moment = max(now, job.submit_s)
            done += (moment - now) / slow
            heappush(running, (done + job.size_gpu_s / job.gpus, job.gpus))
            more = job.gpus
        else:
            moment = max(now, over)
            done, gpus = heappop(running)
            more = -gpus
            found.ends.append(moment)
        area += asked * (moment - now)
        now, asked = moment, asked + more
        found.times.append(now)
        found.gpus.append(asked)
        found.areas.append(area)
    return found


def busiest(jobs: Sequence[Asked], capacity: int) -> tuple[float, float]:
    """The window in which most GPUs are asked for on average, the first of equals. It is as long as
    `SHOWN` of many jobs are submitted in; of few, until nearly all are over."""
    demand = _demand(jobs, capacity)
    reach = demand.ends[ceil(MOST_OVER * len(jobs)) - 1]
    long_s = max(LEAST_S, reach * min(1.0, SHOWN / len(jobs)))
    # A window that could be moved to the better does not begin where a job comes, nor end where
    # one goes.
    begins = [job.submit_s for job in jobs]
    begins += [end - long_s for end in demand.ends if end > long_s]
    best = max(begins, key=lambda begin: (_within(demand, begin, long_s), -begin))
    return best, best + long_s


def _within(demand: _Demand, begin: float, long_s: float) -> float:
    # Sums of a whole trace are not exact, and equals are to be equal.
    return round(demand.until(begin + long_s) - demand.until(begin), 3)
