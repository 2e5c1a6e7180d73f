"""When a leader may go, once its job is over.

A job's history is told by its leader, and a launcher that has not found the leader yet, as one that
leads since a moment ago, would never hear how the job ended. Owns: since when the end is in the
store. Holds: whoever listens by then hears everything; nobody is waited for longer than `TOLD_S`,
for a launcher may be gone.
"""

from __future__ import annotations

from edl.protocol.chronicle import Chronicle
from edl.protocol.effects import Effect, MayGo

__all__ = ["TOLD_S", "Closing"]

TOLD_S = 2.0


class Closing:
    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._due: float | None = None

    def on_recorded(self, now: float) -> list[Effect]:
        """The store has the job's end."""
        self._due = now + TOLD_S if self._due is None else self._due
        return self.on_tick(now)

    def on_tick(self, now: float) -> list[Effect]:
        if self._due is None or (now < self._due and not self._chronicle.subscribers()):
            return []
        return [MayGo()]
