"""Jobs by priority queue, kept in the order in which Tiresias scans them.

An index over the view and no memory: `update` brings it up to date from the view's news, and a
new one is built from the view alone. Owns: for each queue those that run, in order; those that
wait, in order, all together and by the number of GPUs they ask for; and when each one is due for
another queue.

Scanning thousands of waiting jobs at every event for the first ones that fit would be most of a
simulation. Free GPUs only become fewer during a scan, so whoever did not fit at its turn never
does; hence the next to start is the first in order among the heads of those lists whose number
still fits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from edl.policy.kinds import Kinds
from edl.policy.view import Job, View

__all__ = ["Entry", "Queues"]

Entry = tuple[int, int, int]  # -front, turn, key: sorts as the queue stands
NEVER = float("inf")
# Floats that were added up in another order than the limit was computed in.
SLACK_S = 1e-6
# What a job must have done since its last promotion, of what its user's GPUs do in the time that it
# ran: half of that time, for a start and the like do nothing, at half the speed, for it may have
# been compacted to half its GPUs.
EARNED = 0.25


class Queues:
    """`limits[q]` is the service after which a job leaves queue q; the last queue has none."""

    def __init__(self, limits: tuple[float, ...], knob: float, kinds: Kinds | None = None) -> None:
        self.limits = limits
        self.knob = knob
        self.kinds = kinds
        self._view: View | None = None
        self._clear()

    def _clear(self) -> None:
        levels = len(self.limits) + 1
        self.running: list[dict[int, Job]] = [{} for _ in range(levels)]
        self.asked: list[int] = [0] * levels  # by those that run, as users asked
        self.waiting: list[list[Entry]] = [[] for _ in range(levels)]
        self.by_gpus: list[dict[int, list[Entry]]] = [{} for _ in range(levels)]
        self.waiters = 0
        self._found: dict[int, tuple[int, Entry | None, int]] = {}  # queue, entry, GPUs asked for
        self._seen: set[int] = set()  # those whose kind was numbered here
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def update(self, view: View) -> None:
        news = view.take_news()
        if self._view is not view:
            self._clear()
            self._view = view
            news = sorted(view.jobs.values(), key=lambda job: job.turn)
        elif len(news) > 1:
            # In the order in which they began to run, each once.
            news = sorted(set(news), key=lambda job: job.turn)
        for job in news:
            self._drop(job)
            if job.over:
                self._seen.discard(job.key)
            else:
                self._insert(job, view.now)

    def _drop(self, job: Job) -> None:
        found = self._found.pop(job.key, None)
        if found is None:
            return
        queue, entry, gpus = found
        self._due.pop(job.key, None)
        if entry is None:
            # Whoever runs on in its queue, with other GPUs, keeps its place there.
            if job.over or not job.held or job.queue != queue:
                del self.running[queue][job.key]
            self.asked[queue] -= gpus
            return
        self.waiters -= 1
        for entries in (self.waiting[queue], self.by_gpus[queue][gpus]):
            del entries[bisect_left(entries, entry)]
        if not self.by_gpus[queue][gpus]:
            del self.by_gpus[queue][gpus]

    def _insert(self, job: Job, now: float) -> None:
        if self.kinds is not None and (job.kind < 0 or job.key not in self._seen):
            self.kinds.number(job)
            self._seen.add(job.key)
        queue, gpus = job.queue, job.gpus
        if job.held:
            self._found[job.key] = (queue, None, gpus)
            self.running[queue][job.key] = job
            self.asked[queue] += gpus
            if queue < len(self.limits):
                missing = self.limits[queue] - job.service_at(now)
                self._schedule(job.key, now + max(0.0, missing) / job.held)
            return
        entry = (-job.front, job.turn, job.key)
        self._found[job.key] = (queue, entry, gpus)
        self.waiters += 1
        insort(self.waiting[queue], entry)
        insort(self.by_gpus[queue].setdefault(gpus, []), entry)
        self._starve(job, now)

    def _starve(self, job: Job, now: float) -> None:
        """When one that waits has waited too long."""
        if self.knob > 0 and job.queue > 0 and job.has_run and _earned(job):
            missing = self.knob * job.ran_s - job.waited_at(now)
            self._schedule(job.key, now + max(0.0, missing))

    def _schedule(self, key: int, when: float) -> None:
        self._due[key] = when
        heappush(self._heap, (when, key))

    def due(self, view: View) -> list[Job]:
        """Those whose time for another queue has come, in the order of the queues."""
        heap, due, found = self._heap, self._due, []
        while heap and heap[0][0] <= view.now + SLACK_S:
            when, key = heappop(heap)
            if due.get(key) == when:
                del due[key]
                found.append(view.jobs[key])
        if len(heap) > 64 and len(heap) > 4 * len(due):
            self._heap = [(when, key) for key, when in due.items()]
            heapify(self._heap)
        found.sort(key=lambda job: (job.queue, not job.held, -job.front, job.turn))
        return found

    def next_due(self) -> float | None:
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def fitting(self, queue: int, free: int) -> Iterator[tuple[int, int]]:
        """(key, GPUs) of waiting jobs that fit into what is left, in order; each takes its part."""
        lists = [(gpus, entries) for gpus, entries in self.by_gpus[queue].items() if gpus <= free]
        heads = [0] * len(lists)
        while lists:
            at = min(range(len(lists)), key=lambda i: lists[i][1][heads[i]])
            gpus, entries = lists[at]
            yield entries[heads[at]][2], gpus
            free -= gpus
            heads[at] += 1
            stay = [
                i
                for i, (asked, entries) in enumerate(lists)
                if asked <= free and heads[i] < len(entries)
            ]
            lists, heads = [lists[i] for i in stay], [heads[i] for i in stay]


def _earned(job: Job) -> bool:
    """Whether it may be promoted again. Jobs that are large for the first queue's quantum would
    otherwise take turns there for ever, each stopped before its start has paid. Where nobody tells
    of progress, a job that ran has made some."""
    return job.done_gpu_s is None or job.done_gpu_s >= EARNED * job.gpus * job.ran_s
