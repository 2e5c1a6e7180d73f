"""The book of a cluster: what happened and what was decided go in, a view comes out.

Simulator and live scheduler keep the same book; they differ in who answers a decision. Owns: who
holds how many GPUs and where, service, waiting and the order in queues. Holds: no GPU is held
twice, no job holds fewer than its least or more than its most, and an inelastic one exactly what
its user asked for.

Order in a queue. Running jobs come before waiting ones, so that peers never preempt each other.
Those that run stand in the order in which they began to (`turn`). Those that wait stand in the
order of arrival (`turn`), behind those that had to stop; of these, whoever stopped last is first
(`front`).
"""

from __future__ import annotations

from collections.abc import Iterable

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
from edl.policy.throughput import Curve
from edl.policy.view import Job, View

__all__ = ["Book"]


class Book:
    def __init__(self, *, nodes: int, gpus_per_node: int, together: bool = False) -> None:
        self.view = View(nodes=nodes, gpus_per_node=gpus_per_node, together=together)
        self.view.free = self.view.capacity
        if together:
            self.view.free_on = [gpus_per_node] * nodes
        self._turns = 0
        self._stops = 0
        self._stopped_s = -1.0
        self._keys = 0

    # -- what happened -------------------------------------------------------------------------

    def submit(
        self,
        now: float,
        name: str,
        *,
        gpus: int,
        curve: Curve,
        least: int = 1,
        most: int = 0,
        elastic: bool = True,
        left_gpu_s: float | None = None,
    ) -> Job:
        job = Job(
            self._keys,
            name,
            gpus=gpus,
            curve=curve,
            submitted_s=now,
            least=least,
            most=most,
            elastic=elastic,
            left_gpu_s=left_gpu_s,
        )
        self._keys += 1
        job.turn = self._turn()
        self.view.jobs[job.key] = job
        self._note_length(job)
        self.view.news.append(job)
        return job

    def finish(self, now: float, key: int) -> Job:
        job = self.view.jobs.pop(key)
        self._settle(job, now)
        self._give_back(job)
        job.over = True
        self.view.news.append(job)
        return job

    def tell(
        self,
        now: float,
        job: Job,
        left_gpu_s: float,
        pace: float,
        *,
        from_s: float | None = None,
        lost_gpu_s: float = 0.0,
    ) -> None:
        """Progress, as the job's leader knows it: it goes at `pace` from `from_s` on (now, if it
        does not stand still before); so much of what it had done is lost."""
        foreseen = job.left_at(now)
        off = 1e-6 * (1.0 + left_gpu_s)
        if pace != job.pace or foreseen is None or abs(foreseen - left_gpu_s) > off:
            self.view.news.append(job)
        done = job.pace * max(0.0, now - job.as_of) - lost_gpu_s
        job.done_gpu_s = done if job.done_gpu_s is None else job.done_gpu_s + done
        job.left_gpu_s = left_gpu_s
        if job.told_gpu_s is None:
            job.told_gpu_s = left_gpu_s
            self._note_length(job)
            self.view.news.append(job)
        job.as_of = now if from_s is None else from_s
        job.pace = pace

    def _note_length(self, job: Job) -> None:
        if job.told_gpu_s is not None:
            self.view.longest_s = max(self.view.longest_s, job.told_gpu_s / job.gpus)

    # -- what was decided ----------------------------------------------------------------------

    def apply(self, now: float, decision: Decision) -> Job:
        job = self.view.jobs[decision.job]
        self._settle(job, now)
        if isinstance(decision, Requeue):
            self._requeue(job, now, decision)
        elif isinstance(decision, Preempt):
            self._preempt(job, now)
        else:
            self._resize(job, decision)
        self.view.news.append(job)
        return job

    def _resize(self, job: Job, decision: Start | ScaleOut | ScaleIn | Migrate) -> None:
        gpus = decision.gpus
        began = not job.held
        assert began == isinstance(decision, Start), (decision, job)
        assert job.least <= gpus <= job.most, (decision, job)
        self.view.free += job.held - gpus
        assert self.view.free >= 0, (decision, job)
        if self.view.free_on:
            self._place(job, decision.where, gpus)
        job.held = gpus
        if began:
            job.turn = self._turn()
            job.front = 0
            job.has_run = True

    def _place(self, job: Job, where: Where, gpus: int) -> None:
        assert sum(count for _, count in where) == gpus, (job, where)
        free_on = self.view.free_on
        for node, count in job.where:
            free_on[node] += count
        for node, count in where:
            free_on[node] -= count
            assert count > 0, (job, where)
            assert free_on[node] >= 0, (job, where)
        job.where = where

    def _preempt(self, job: Job, now: float) -> None:
        assert job.held, job
        self._give_back(job)
        if job.requeued_s == now:
            # It had just gone to the end of another queue, and stays there.
            job.front, job.turn = 0, self._turn()
            return
        if now != self._stopped_s:
            self._stops += 1
            self._stopped_s = now
        job.front = self._stops

    def _requeue(self, job: Job, now: float, decision: Requeue) -> None:
        job.queue = decision.queue
        job.front, job.turn = 0, self._turn()
        job.requeued_s = now
        if decision.fresh:
            job.service_gpu_s = job.ran_s = job.waited_s = 0.0
            job.done_gpu_s = None if job.done_gpu_s is None else 0.0

    # -- accounts ------------------------------------------------------------------------------

    def _settle(self, job: Job, now: float) -> None:
        passed = now - job.since_s
        if job.held:
            job.service_gpu_s += job.held * passed
            job.total_gpu_s += job.held * passed
            job.ran_s += passed
        elif job.has_run:
            job.waited_s += passed
        job.since_s = now

    def _give_back(self, job: Job) -> None:
        self.view.free += job.held
        if self.view.free_on:
            for node, count in job.where:
                self.view.free_on[node] += count
        job.held = 0
        job.where = ()

    def _turn(self) -> int:
        self._turns += 1
        return self._turns

    # -- for tests -----------------------------------------------------------------------------

    def check(self) -> None:
        """What must hold, looked at as a whole; slow, and off in production."""
        view = self.view
        jobs: Iterable[Job] = view.jobs.values()
        assert view.free == view.capacity - sum(job.held for job in jobs), (
            "a GPU is lost or held twice"
        )
        assert view.free >= 0
        for job in jobs:
            assert job.held == 0 or job.least <= job.held <= job.most, job
            assert job.elastic or job.held in (0, job.gpus), job
        if view.free_on:
            free_on = [view.gpus_per_node] * view.nodes
            for job in jobs:
                assert sum(count for _, count in job.where) == job.held, job
                for node, count in job.where:
                    free_on[node] -= count
            assert free_on == view.free_on
            assert min(free_on) >= 0
