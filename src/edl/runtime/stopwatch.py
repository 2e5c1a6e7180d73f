"""How long a worker computes in a step, without waiting for others.

A synchronous step takes everybody the same time, so only what a worker does by itself tells who is
slow. Owns: the present step's times. Holds: from where its batch is read to the end of its last
backward, less all that was waiting; a step that has not got there says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl.runtime.clock import now

__all__ = ["Stopwatch"]


class Stopwatch:
    """One worker's, for one step after another."""

    def __init__(self, clock: Callable[[], float] = now) -> None:
        self._clock = clock
        self._began = clock()
        self._waited_s = 0.0
        self.compute_s = 0.0  # of the last step; 0: not known

    def freed(self) -> None:
        """A step is over. In a loop of the script's own, the next one's batch is made now."""
        self._began, self._waited_s = self._clock(), 0.0

    def opened(self, *, own_loop: bool) -> None:
        """A step opens. A loop of the script's own has read and may have computed by then."""
        if not own_loop:
            self.freed()
        self.compute_s = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - began

    def computed(self) -> None:
        """A backward is at its end; if another one follows, that counts too."""
        self.compute_s = max(0.0, self._clock() - self._began - self._waited_s)
