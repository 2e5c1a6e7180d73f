"""Who answers, and who has been silent for too long.

Slow is not dead: an agent that answers is alive however long its script takes, so only answers to
pings count here. Owns: since when each leaves pings unanswered. Holds: time in which this worker
itself slept is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Collection

from edl.types import WorkerId

__all__ = ["Liveness"]

# So many pings go out in the time after which silence counts as death.
_PINGS = 16


class Liveness:
    """Silence of others, as one worker hears it."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        # When the first of the pings went out that were not answered. Silence counts from there
        # and not from the last answer: nobody is called dead before the whole of it is over.
        self._asked: dict[WorkerId, float] = {}
        self._looked: float | None = None

    def heard(self, worker: WorkerId) -> None:
        self._asked.pop(worker, None)

    def look(
        self, workers: Collection[WorkerId], now: float
    ) -> tuple[list[WorkerId], dict[WorkerId, float]]:
        """Whom to ping now, and who has been silent for too long (and for how long)."""
        pause = self.silence_s / _PINGS
        since = now - self._looked if self._looked is not None else 0.0
        if self._looked is not None and since < pause:
            return [], {}
        if since > 2 * pause + 1.0:
            # This worker slept: what was said meanwhile still waits to be heard.
            self._asked.clear()
        self._looked = now
        self._asked = {worker: self._asked.get(worker, now) for worker in workers}
        silent = {w: now - at for w, at in self._asked.items() if now - at >= self.silence_s}
        return [worker for worker in workers if worker not in silent], silent
