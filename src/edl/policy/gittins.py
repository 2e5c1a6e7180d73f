"""Tiresias with the Gittins index: who of a queue is next depends on how likely it ends soon.

Nobody knows how long a job takes, but a cluster knows how long jobs took. Of a job that has held
`a` GPU seconds, the index with the window d is

    P(size <= a + d | size > a) / E[min(size - a, d) | size > a]

so many ends for each GPU second spent. The window of a queue is its quantum; the last queue has
that of the one before. As in Tiresias peers never stop each other: those that run come before
those that wait. By the index, those that wait start, and those that run keep their GPUs when a
queue above takes some. Sizes are given as a sample, at best of the cluster's own finished jobs.

The index is exact: two searches in the sorted sample and a difference of its sums, which is as
quick as a grid would be.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate
from math import exp, isfinite, log
from statistics import NormalDist

from edl.errors import UsageError
from edl.policy.decisions import Start
from edl.policy.queues import Queues
from edl.policy.tiresias import QUANTA, Tiresias
from edl.policy.view import Job, View

__all__ = ["Gittins", "Sizes", "usual_sizes"]

# The index as a whole number, so that it sorts with other numbers of the queue.
FINE = 1e15


def usual_sizes(
    count: int = 1000, *, median_gpu_s: float = 2000.0, spread: float = 2.5
) -> list[float]:
    """A sample for clusters that have none: log-normal by its quantiles, many small jobs and a few
    that take most of the time."""
    normal = NormalDist(log(median_gpu_s), spread)
    return [exp(normal.inv_cdf((i + 0.5) / count)) for i in range(count)]


class Sizes:
    """A sample of what jobs needed in all, in GPU*s."""

    def __init__(self, sample: Sequence[float]) -> None:
        if not sample or not all(isfinite(size) and size > 0 for size in sample):
            raise UsageError(
                f"the sample of sizes is {list(sample)[:5]}...; expected GPU*s of finished jobs, "
                "each a number above 0"
            )
        self._sizes = sorted(sample)
        self._sums = [0.0, *accumulate(self._sizes)]

    def index(self, attained: float, window: float) -> float:
        """Ends for each GPU*s, within the window; 0 if no job of the sample was larger."""
        begin = bisect_right(self._sizes, attained)
        end = bisect_right(self._sizes, attained + window)
        beyond = len(self._sizes) - end
        if begin == end:
            return 0.0
        spent = self._sums[end] - self._sums[begin] - (end - begin) * attained + beyond * window
        return (end - begin) / max(spent, 1 / FINE)


class GittinsQueues(Queues):
    """Those that wait stand by their index, of equals by arrival."""

    def __init__(self, limits: tuple[float, ...], knob: float, sizes: Sizes) -> None:
        super().__init__(limits, knob)
        self.sizes = sizes

    def rank(self, job: Job, now: float) -> int:
        """The lower, the sooner."""
        windows = self.limits or QUANTA
        window = windows[min(job.queue, len(windows) - 1)]
        return -round(self.sizes.index(job.total_at(now), window) * FINE)

    def _insert(self, job: Job, now: float) -> None:
        if job.held:
            super()._insert(job, now)
            return
        queue, gpus = job.queue, job.gpus
        # What it has held does not change while it waits, hence its rank does not.
        entry = (self.rank(job, now), job.turn, job.key)
        self._found[job.key] = (queue, entry, gpus)
        self.waiters += 1
        insort(self.waiting[queue], entry)
        insort(self.by_gpus[queue].setdefault(gpus, []), entry)
        self._starve(job, now)


class Gittins(Tiresias):
    name = "tiresias-gittins"
    queues: GittinsQueues

    def __init__(
        self,
        *,
        quanta: tuple[float, ...] = QUANTA,
        knob: float = 0.0,
        sizes: Sequence[float] | None = None,
    ) -> None:
        super().__init__(quanta=quanta, knob=knob)
        self.sizes = Sizes(usual_sizes() if sizes is None else sizes)
        self.forget()

    def forget(self) -> None:
        self.queues = GittinsQueues(self.quanta, self.knob, self.sizes)

    def _plan(self, view: View, demoted: dict[int, list[Job]]) -> tuple[list[Job], list[Job]]:
        stopped, started = super()._plan(view, demoted)
        if not stopped:
            # All that run go on, in whatever order they stand.
            return stopped, started
        queues = self.queues
        for queue, running in enumerate(queues.running):
            order = sorted(running.values(), key=lambda job: (queues.rank(job, view.now), job.turn))
            queues.running[queue] = {job.key: job for job in order}
        return super()._plan(view, demoted)

    def _start(self, job: Job) -> Start:
        reason = f"ends soonest by its index, of queue {job.queue}: {job.gpus} GPUs are free"
        return Start(job.key, job.gpus, reason)
