"""Collectives between the fake workers: the n-th call of every member is one exchange.

Like the real ones, an exchange completes when every member has taken part, and never before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["Collective", "Exchange", "Gate"]


class Gate:
    """Something that a training thread can wait for."""

    __slots__ = ("_waiting", "kind", "open")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.open = False
        self._waiting: list[Callable[[], None]] = []

    def when_open(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)

    def let_through(self) -> None:
        self.open = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()


class Exchange(Gate):
    """One value of each member, in rank order once it is complete."""

    __slots__ = ("_missing", "_order", "values")

    def __init__(self, kind: str, order: tuple[WorkerId, ...]) -> None:
        super().__init__(kind)
        self._order = order
        self._missing = set(order)
        self.values: dict[WorkerId, Any] = {}

    def put(self, worker: WorkerId, value: Any) -> None:
        assert worker in self._missing, f"{worker} is in {self.kind} twice"
        self._missing.discard(worker)
        self.values[worker] = value
        if not self._missing:
            self.values = {member: self.values[member] for member in self._order}
            self.let_through()

    def missing(self) -> list[WorkerId]:
        return sorted(self._missing)


class Collective:
    """The group of one generation."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self._order = generation.workers()
        self._calls: dict[tuple[str, WorkerId], int] = {}
        self._exchanges: dict[tuple[str, int], Exchange] = {}

    def put(self, kind: str, worker: WorkerId, value: Any) -> Exchange:
        """Take part in this member's next exchange of this kind."""
        number = self._calls.get((kind, worker), 0)
        self._calls[kind, worker] = number + 1
        found = self._exchanges.get((kind, number))
        if found is None:
            name = f"{kind} {number} of generation {self.generation.number}"
            found = self._exchanges[kind, number] = Exchange(name, self._order)
        found.put(worker, value)
        if found.open:
            del self._exchanges[kind, number]
        return found

    def waited_for(self) -> list[str]:
        """What is not complete, for the story of a job that hangs."""
        return [
            f"{exchange.kind} lacks {', '.join(exchange.missing()[:8])}"
            for exchange in self._exchanges.values()
        ]
