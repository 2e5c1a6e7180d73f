"""Tiresias: discretised two-dimensional least attained service (2D-LAS).

Jobs begin in the first of three queues and go to the next one when they have held `quanta[q]` GPU
seconds; whoever is in a lower queue runs first, so short jobs end before long ones get in their
way although nobody knows how long a job takes. At every event the plan is made anew from an empty
cluster: queue by queue, those that run before those that wait, all or nothing, and whoever does
not fit is passed over. With `knob` above 0, a job that has waited so many times as long as it ran
begins anew in the first queue, if it has made progress worth its start since it last did so.
"""

from __future__ import annotations

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, Requeue, Start
from edl.policy.queues import Queues
from edl.policy.view import Job, View

__all__ = ["QUANTA", "Tiresias"]

QUANTA = (500.0, 10_000.0)


class Tiresias(Policy):
    name = "tiresias"
    _promoted = False  # by the last decision

    def __init__(self, *, quanta: tuple[float, ...] = QUANTA, knob: float = 0.0) -> None:
        self.quanta = quanta
        self.knob = knob
        self.queues = Queues(quanta, knob)

    def forget(self) -> None:
        self.queues = Queues(self.quanta, self.knob)

    def wake(self, view: View) -> float | None:
        # After the decision: those that it started, stopped or moved are due at other times.
        self.queues.update(view)
        # Whoever was promoted may be able to run at once.
        return view.now if self._promoted else self.queues.next_due()

    def decide(self, view: View) -> list[Decision]:
        queues = self.queues
        queues.update(view)
        decisions, demoted = self._requeue(view)
        stopped, started = self._plan(view, demoted)
        decisions += [self._preempt(job) for job in stopped]
        decisions += [self._start(job) for job in started]
        return decisions

    def _requeue(self, view: View) -> tuple[list[Decision], dict[int, list[Job]]]:
        """Decisions, and by their new queue those that run on there, behind everybody."""
        decisions: list[Decision] = []
        demoted: dict[int, list[Job]] = {}
        self._promoted = False
        for job in self.queues.due(view):
            if job.held:
                used = self.quanta[job.queue]
                reason = f"has held {used:,.0f} GPU*s: goes to queue {job.queue + 1}"
                decisions.append(Requeue(job.key, job.queue + 1, reason))
                demoted.setdefault(job.queue + 1, []).append(job)
            else:
                reason = f"waited {self.knob:g} times as long as it ran: back to queue 0"
                decisions.append(Requeue(job.key, 0, reason, fresh=True))
                self._promoted = True
        return decisions, demoted

    def _plan(self, view: View, demoted: dict[int, list[Job]]) -> tuple[list[Job], list[Job]]:
        """Who stops and who starts, by what users asked for."""
        queues = self.queues
        moved = {job.key for jobs in demoted.values() for job in jobs}
        free = view.capacity
        stopped: list[Job] = []
        started: list[Job] = []
        for queue, running in enumerate(queues.running):
            leaving = sum(job.gpus for job in demoted.get(queue + 1, ()))
            asked = queues.asked[queue] - leaving
            if asked <= free:
                free -= asked
            else:
                for job in running.values():
                    if job.key in moved:
                        continue
                    if job.gpus <= free:
                        free -= job.gpus
                    else:
                        stopped.append(job)
            for key, gpus in queues.fitting(queue, free):
                started.append(view.jobs[key])
                free -= gpus
            for job in demoted.get(queue, ()):
                if job.gpus <= free:
                    free -= job.gpus
                else:
                    stopped.append(job)
        return stopped, started

    def _preempt(self, job: Job) -> Preempt:
        return Preempt(job.key, f"those before it in queue {job.queue} or above need its GPUs")

    def _start(self, job: Job) -> Start:
        return Start(
            job.key, job.gpus, f"first in queue {job.queue} whose {job.gpus} GPUs are free"
        )
