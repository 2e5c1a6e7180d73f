"""Virtual time: one queue of things to do, in an order that the seed alone decides."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Schedule"]


class Schedule:
    """What happens when. Two things at one time happen in the order in which they were asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, what: Callable[..., None], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._queue, (max(when, self.now), self._count, what, arguments))

    def after(self, delay: float, what: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + delay, what, *arguments)

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Until the queue is empty, the time is up, or it is over."""
        queue = self._queue
        while queue and not over():
            when, _, what, arguments = heapq.heappop(queue)
            if when > until:
                return
            self.now = when
            what(*arguments)
