"""Whether a job that nobody survived is started again, and when.

Pure. Owns: how often that was done, and how the last attempt ended. Holds: what would happen again
is not tried again (the same exception at the same step, or one before any step); without a
checkpoint, a job that has trained is never begun anew behind its user's back; `most` restarts in a
row that get no further than the ones before are the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.launch.notes import Note

__all__ = ["Again", "Enough", "Restarts"]

# Before the first restart, doubled for each that got no further, up to the most.
PAUSE_S, PAUSE_S_MAX = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Again:
    """Start it again after a pause."""

    pause_s: float
    number: int  # the how manieth restart of this job it is


@dataclass(frozen=True, slots=True)
class Enough:
    """Leave it; `why` is empty where nobody would have expected a restart."""

    why: str


class Restarts:
    """`checkpoint`: whether this job writes any."""

    def __init__(self, *, most: int, checkpoint: bool) -> None:
        self._most = most
        self._checkpoint = checkpoint
        self._in_a_row = 0
        self._furthest = 0
        self._last: Note | None = None
        self.count = 0

    def possible(self, *, began: bool) -> bool:
        """Whether `decide` may answer `Again`. `began`: whether the job trained."""
        return self._most > 0 and (self._checkpoint or not began)

    def decide(
        self, *, began: bool, over: bool, step: int, cause: Note | None, twice: bool
    ) -> Again | Enough:
        """After an attempt that failed.

        `began`: whether it trained; `over`: whether it had come to its end; `step`: how far it
        came; `cause`: what ended it, None for a signal; `twice`: a batch raised on two workers.
        """
        if not self._most:
            return Enough("")
        why = self._hopeless(began=began, cause=cause, twice=twice)
        if over:
            why = "its training was complete"
        if step > self._furthest:
            self._in_a_row, self._furthest = 0, step
        self._last = cause
        return Enough(why) if why else self._once_more()

    def without_slots(self) -> Again | Enough:
        """Other jobs hold the slots for this restart, so it failed: pause, and try once more."""
        return self._once_more()

    def _once_more(self) -> Again | Enough:
        if self._in_a_row >= self._most:
            return Enough(
                f"{self._in_a_row} restarts in a row got no further than step {self._furthest}"
            )
        pause_s = min(PAUSE_S * 2**self._in_a_row, PAUSE_S_MAX)
        self._in_a_row += 1
        self.count += 1
        return Again(pause_s, self.count)

    def _hopeless(self, *, began: bool, cause: Note | None, twice: bool) -> str:
        if twice:
            return "another worker would fail on that batch too"
        if cause is not None and cause.diverged:
            return "the same script would diverge again"
        if cause is not None and cause.own:
            if not cause.step:
                return f"{cause.kind} before any step was done would happen again"
            if cause == self._last:
                return f"{cause.kind} at step {cause.step} happened again"
        if began and not self._checkpoint:
            return "without --checkpoint there is nothing to go on from"
        return ""
