"""Who answers, and who has been silent for too long.

Slow is not dead: an agent that answers is alive however long its script takes, so only answers to
pings count here, and the word of a worker's watchdog that its process runs. Owns: since when each
leaves pings unanswered. Holds: time in which this worker itself slept is nobody's silence.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from edl.types import WorkerId

__all__ = ["Liveness", "Quiet"]

# So many pings go out in the time after which silence counts as death.
_PINGS = 16
# A missing heartbeat is reported after this share of that time, and at least after so many seconds.
_NOTICE_SHARE, _NOTICE_S_MIN = 0.25, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A worker that has not answered for a while, but is not lost."""

    seconds: float
    runs: bool  # its watchdog says that the process runs


class Liveness:
    """Silence of others, as one worker hears it."""

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        # When the first of the pings went out that were not answered. Silence counts from there
        # and not from the last answer: nobody is called dead before the whole of it is over.
        self._asked: dict[WorkerId, float] = {}
        # When a watchdog last said that the process runs.
        self._vouched: dict[WorkerId, float] = {}
        self._looked: float | None = None

    def heard(self, worker: WorkerId) -> None:
        self._asked.pop(worker, None)
        self._vouched.pop(worker, None)

    def vouch(self, worker: WorkerId, now: float) -> None:
        """Its watchdog says that the process runs: silence counts from here."""
        self._vouched[worker] = now

    def quiet(self, now: float) -> dict[WorkerId, Quiet]:
        """Who has not answered for long enough to be mentioned."""
        notice_s = max(self.silence_s * _NOTICE_SHARE, _NOTICE_S_MIN)
        return {
            worker: Quiet(seconds=now - asked, runs=self._runs(worker, now, notice_s))
            for worker, asked in self._asked.items()
            if now - asked >= notice_s
        }

    def _runs(self, worker: WorkerId, now: float, within_s: float) -> bool:
        vouched = self._vouched.get(worker)
        return vouched is not None and now - vouched < within_s

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
        self._vouched = {w: at for w, at in self._vouched.items() if w in self._asked}
        silent = {
            worker: now - at
            for worker, at in self._asked.items()
            if now - max(at, self._vouched.get(worker, at)) >= self.silence_s
        }
        return [worker for worker in workers if worker not in silent], silent
