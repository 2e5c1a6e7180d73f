"""Together: policies that decide by numbers only, on machines, where a job's GPUs lie together.

It asks the policy inside, and gives each decision its place: first what falls free, then who
moves, then who gets more, then who starts. A number that is free need not lie together. Then, in
this order:

- a job that may be resized starts with fewer GPUs, but never fewer than `share` of what its user
  asked for;
- others move, at most `moves` of them for one start, those with fewest GPUs first;
- the job waits. The decision is dropped with those that only made room for it, so that nobody
  loses anything, and the policy inside decides again after the next event, or after `rest_s` at
  the latest.

A job starts packed, or, if it is elastic, on no more machines than would hold what its user asked
for. Whoever grows does so on machines that it uses, and on no more than its new number needs; the
part that does not find such a place is left out. Nothing is kept between calls.

Two kinds of policies are treated apart. Those that never resize would never give a job the GPUs
that it did not start with, so nobody starts with fewer. Under those that are strict about order,
nobody starts after one that had to be left waiting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil

from edl.policy.base import Policy
from edl.policy.decisions import (
    Decision,
    Migrate,
    Preempt,
    Requeue,
    ScaleIn,
    ScaleOut,
    Start,
    Where,
)
from edl.policy.placement import gather, grow, machines_for, make_room, pack, shrink
from edl.policy.throughput import Curve
from edl.policy.view import Job, View

__all__ = ["Together"]


class Together(Policy):
    def __init__(
        self, inner: Policy, *, share: float | None = None, moves: int = 2, rest_s: float = 60.0
    ) -> None:
        """`share` None: a half, or 1 for policies that never resize."""
        rigid = not inner.resizes
        self.inner = inner
        self.name = inner.name
        self.share = (1.0 if rigid else 0.5) if share is None else share
        self.moves = moves
        self.rest_s = rest_s
        self.strict = inner.in_order
        self._waits = False

    def forget(self) -> None:
        self.inner.forget()
        self._waits = False

    def wake(self, view: View) -> float | None:
        wake = self.inner.wake(view)
        if not self._waits:
            return wake
        again = view.now + self.rest_s
        return again if wake is None else min(wake, again)

    def decide(self, view: View) -> list[Decision]:
        decisions = self.inner.decide(view)
        self._waits = False
        if not view.free_on or not decisions:
            return decisions
        plan = _Plan(view, self.share, self.moves)
        for decision in decisions:
            plan.free_up(decision)
        # On paper starts come before scale-outs: a job that waits needs the place more.
        for decision in decisions:
            if isinstance(decision, Start) and not (self.strict and plan.waits):
                plan.start(decision)
        for decision in decisions:
            if isinstance(decision, ScaleOut):
                plan.scale_out(decision)
        if plan.short:
            plan.give_back()
        self._waits = plan.waits
        return plan.decisions()


class _Plan:
    """One round on paper. `free_on` is what is left if all of it is carried out."""

    def __init__(self, view: View, share: float, moves: int) -> None:
        self.view = view
        self.share = share
        self.moves = moves
        self.free_on = list(view.free_on)
        self.requeues: list[Decision] = []
        self.stops: list[Preempt] = []
        self.fewer: list[ScaleIn] = []
        self.moved: list[Migrate] = []
        self.more: list[ScaleOut] = []
        self.starts: list[Start] = []
        self.touched: set[int] = set()  # no such job is moved in this round
        self.waits = False  # a job that should start does not
        self.short = False  # somebody has less than was decided
        self._movable: dict[int, Where] | None = None
        self._hopeless = view.capacity + 1  # no room can be made for so many or more

    def decisions(self) -> list[Decision]:
        """What is taken comes after what falls free, so no GPU is held twice in between."""
        return [
            *self.requeues,
            *self.stops,
            *self.fewer,
            *self.moved,
            *self.more,
            *self.starts,
        ]

    def _take(self, where: Where) -> None:
        for node, count in where:
            self.free_on[node] -= count

    def _release(self, where: Where) -> None:
        for node, count in where:
            self.free_on[node] += count

    # -- what falls free -----------------------------------------------------------------------

    def free_up(self, decision: Decision) -> None:
        job = self.view.jobs[decision.job]
        self.touched.add(decision.job)
        if isinstance(decision, Requeue):
            self.requeues.append(decision)
        elif isinstance(decision, Preempt):
            self._release(job.where)
            self.stops.append(decision)
        elif isinstance(decision, ScaleIn):
            where = shrink(job.where, job.held - decision.gpus)
            self._release(job.where)
            self._take(where)
            self.fewer.append(replace(decision, where=where))

    def give_back(self) -> None:
        """Leave those alone whose GPUs nobody came to use, those that are first in the policy's
        order before the others. Not where somebody moved to: he may have needed the place before
        it was free again."""
        moved_to = {node for move in self.moved for node, _ in move.where}
        self.stops = [stop for stop in self.stops if not self._undo(self._where(stop), moved_to)]
        self.fewer = [
            less
            for less in self.fewer
            if not self._undo(_without(self._where(less), less.where), moved_to)
        ]

    def _where(self, decision: Decision) -> Where:
        return self.view.jobs[decision.job].where

    def _undo(self, released: Where, moved_to: set[int]) -> bool:
        for node, count in released:
            if node in moved_to or self.free_on[node] < count:
                return False
        self._take(released)
        return True

    # -- what is taken -------------------------------------------------------------------------

    def start(self, decision: Start) -> None:
        job = self.view.jobs[decision.job]
        where = self._place(job, decision.gpus)
        if where is None and job.elastic:
            where = self._place_fewer(job, decision.gpus)
        if where is None:
            where = self._place_by_moves(job, decision.gpus)
        if where is None:
            self.waits = self.short = True
            return
        gpus = sum(count for _, count in where)
        reason = decision.reason
        if gpus < decision.gpus:
            self.short = True
            reason += f"; of {decision.gpus} GPUs {gpus} lie together"
        self._take(where)
        self.starts.append(replace(decision, gpus=gpus, reason=reason, where=where))

    def _place(self, job: Job, gpus: int) -> Where | None:
        m = self.view.gpus_per_node
        found = pack(self.free_on, gpus, m)
        if found is None and job.elastic:
            found = gather(self.free_on, gpus, machines_for(max(gpus, job.gpus), m))
        return found

    def _place_fewer(self, job: Job, gpus: int) -> Where | None:
        machines = machines_for(job.gpus, self.view.gpus_per_node)
        most = min(gpus, job.gpus, sum(sorted(self.free_on, reverse=True)[:machines]))
        least = max(job.least, ceil(self.share * job.gpus))
        return self._place(job, _fastest(job.curve, least, most)) if least <= most else None

    def _place_by_moves(self, job: Job, gpus: int) -> Where | None:
        if gpus >= self._hopeless or not self.moves:
            return None
        if self._movable is None:
            running = self.view.jobs.values()
            self._movable = {
                other.key: other.where
                for other in running
                if other.held and other.key not in self.touched
            }
        m = self.view.gpus_per_node
        found = make_room(self.free_on, gpus, m, self._movable, moves=self.moves)
        if found is None:
            self._hopeless = gpus
            return None
        for key, where in found:
            mover = self.view.jobs[key]
            reason = f"makes room for job {job.name}, whose {gpus} GPUs are to lie together"
            self.moved.append(Migrate(key, mover.held, reason, where))
            self._release(self._movable.pop(key))
            self._take(where)
        return pack(self.free_on, gpus, m)

    def scale_out(self, decision: ScaleOut) -> None:
        job = self.view.jobs[decision.job]
        rate, gpus = job.curve.rate, decision.gpus
        where = self._grown(job, gpus)
        while where is None:
            # As many as find a place, unless so many are no faster than what it has.
            self.short = True
            gpus -= 1
            if gpus == job.held:
                return
            if rate[gpus] > rate[job.held]:
                where = self._grown(job, gpus)
        reason = decision.reason
        if gpus < decision.gpus:
            reason += f"; of {decision.gpus} GPUs {gpus} lie together"
        self._take(_without(where, job.where))
        self.more.append(replace(decision, gpus=gpus, reason=reason, where=where))

    def _grown(self, job: Job, gpus: int) -> Where | None:
        return grow(self.free_on, job.where, gpus - job.held, self.view.gpus_per_node)


def _without(where: Where, less: Iterable[tuple[int, int]]) -> Where:
    """What lies in the one and not in the other."""
    counts = dict(where)
    for node, count in less:
        counts[node] -= count
    return tuple((node, count) for node, count in counts.items() if count)


def _fastest(curve: Curve, least: int, most: int) -> int:
    """The number of GPUs with the highest speed; of equals, the fewest."""
    return max(range(least, most + 1), key=lambda gpus: (curve.rate[gpus], -gpus))
