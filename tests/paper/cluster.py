"""A small cluster to work rules out by hand: submit, let time pass, see what is decided."""

from __future__ import annotations

from collections.abc import Sequence

from edl.policy.base import Policy
from edl.policy.book import Book
from edl.policy.decisions import Decision, Preempt, Requeue
from edl.policy.throughput import Curve
from edl.policy.view import Job

__all__ = ["Cluster", "curve", "linear"]


def linear(most: int = 64) -> Curve:
    """Every GPU is worth one."""
    return Curve([float(p) for p in range(most + 1)], label="linear")


def curve(*rates: float) -> Curve:
    """S(1), S(2), ..."""
    return Curve([0.0, *rates], label="given")


class Cluster:
    """Decisions are carried out at once and cost nothing."""

    def __init__(self, policy: Policy, gpus: int) -> None:
        self.policy = policy
        self.book = Book(nodes=1, gpus_per_node=gpus)
        self.now = 0.0

    def submit(
        self, name: str, gpus: int, speed: Curve | None = None, *, elastic: bool = True
    ) -> Job:
        speed = speed or linear()
        return self.book.submit(self.now, name, gpus=gpus, curve=speed, elastic=elastic)

    def demote(self, job: Job, queue: int) -> None:
        """As if it had used its quantum."""
        self.book.apply(self.now, Requeue(job.key, queue, "by hand"))

    def finish(self, job: Job) -> None:
        self.book.finish(self.now, job.key)

    def at(self, now: float) -> list[Decision]:
        self.now = self.book.view.now = now
        decisions = self.policy.decide(self.book.view)
        for decision in decisions:
            self.book.apply(now, decision)
        self.policy.wake(self.book.view)
        self.book.check()
        return decisions

    def wake(self) -> float | None:
        return self.policy.wake(self.book.view)

    def held(self, jobs: Sequence[Job]) -> list[int]:
        return [job.held for job in jobs]

    def told(self, decisions: Sequence[Decision]) -> list[str]:
        """`what name gpus`, without the reasons."""
        lines = []
        for decision in decisions:
            name = self.book.view.jobs[decision.job].name
            if isinstance(decision, Preempt):
                lines.append(f"Preempt {name}")
            elif isinstance(decision, Requeue):
                lines.append(f"Requeue {name} {decision.queue}")
            else:
                lines.append(f"{type(decision).__name__} {name} {decision.gpus}")
        return lines
