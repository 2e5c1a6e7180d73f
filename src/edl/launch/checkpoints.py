"""News of a job's checkpoints for its history: saved, failed, gone on from.

Owns: what of it was told. Holds: each is told once.
"""

from __future__ import annotations

from edl.launch.jobs import JobFolder
from edl.runtime.standing import Noted, read_noted

__all__ = ["CheckpointNews"]

News = tuple[str, int, dict[str, str | int | float]]


class CheckpointNews:
    """`poll` now and then: (event, step, fields) of what is new."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._told = Noted()

    def poll(self) -> list[News]:
        now, told = read_noted(self._folder.path), self._told
        if now is None or now == told:
            return []
        self._told = now
        found: list[News] = []
        if now.resumed is not None and now.resumed_by != told.resumed_by:
            who: dict[str, str | int | float] = {"worker": now.resumed_by}
            found.append(("job.resumed", now.resumed, {"from_step": now.resumed, **who}))
        elif now.step is not None and now.saved_at != told.saved_at:
            found.append(("checkpoint.saved", now.step, {}))
        if now.error and (now.error, now.failed_step) != (told.error, told.failed_step):
            found.append(("checkpoint.failed", now.failed_step, {"why": now.error}))
        return found
