"""What a policy may decide. Each decision carries a reason that a person can read.

They are carried out in the order given, so a policy frees GPUs (`Preempt`, `ScaleIn`) before it
hands them out (`ScaleOut`, `Start`). `gpus` is what the job holds afterwards. `where` says on
which machines, as (machine, GPUs) pairs; it is empty where only numbers matter.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Decision",
    "Migrate",
    "Preempt",
    "Requeue",
    "ScaleIn",
    "ScaleOut",
    "Start",
    "Where",
]

Where = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A waiting job gets GPUs, for the first time or again."""

    job: int
    gpus: int
    reason: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """A running job gets more GPUs."""

    job: int
    gpus: int
    reason: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """A running job gives some of its GPUs back."""

    job: int
    gpus: int
    reason: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Migrate:
    """A running job moves; it holds as many GPUs as before."""

    job: int
    gpus: int
    reason: str
    where: Where


@dataclass(frozen=True, slots=True)
class Preempt:
    """A running job gives all of its GPUs back and waits; its progress is kept."""

    job: int
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """A job goes to the end of another priority queue. It holds what it held."""

    job: int
    queue: int
    reason: str
    # A promotion begins the count of its service anew.
    fresh: bool = False


Decision = Start | ScaleOut | ScaleIn | Migrate | Preempt | Requeue
