"""First in, first out: jobs start in the order of their submission, with what users asked for.

Strict: while the first of those that wait does not fit, nobody behind it starts, though GPUs be
idle for long; whoever wants backfilling has other policies. Nobody is ever stopped or resized.
What a cluster does without a scheduler's ideas; the others are measured against it. A job that
asks for more than the cluster has would stop everybody behind it, so it must not be let in.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Start
from edl.policy.view import View

__all__ = ["Fifo"]


class Fifo(Policy):
    name = "fifo"
    in_order = True

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._view: View | None = None
        self._waiting: list[int] = []  # keys, which count submissions

    def _update(self, view: View) -> None:
        news = view.take_news()
        if self._view is not view:
            self._view = view
            self._waiting = []
            news = list(view.jobs.values())
        waiting = self._waiting
        for job in news:
            at = bisect_left(waiting, job.key)
            listed = at < len(waiting) and waiting[at] == job.key
            waits = not job.over and not job.held
            if waits and not listed:
                insort(waiting, job.key)
            elif listed and not waits:
                del waiting[at]

    def decide(self, view: View) -> list[Decision]:
        self._update(view)
        free = view.free
        decisions: list[Decision] = []
        for key in self._waiting:
            job = view.jobs[key]
            if job.gpus > free:
                break
            reason = f"first of those that wait, and its {job.gpus} GPUs are free"
            decisions.append(Start(key, job.gpus, reason))
            free -= job.gpus
        return decisions
