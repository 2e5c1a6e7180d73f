"""What a job was last seen to be: all that is left to tell when nobody answers for it any more.

`seen.json` in the job's folder, written by the launcher every few seconds and at the end. A
launcher that was killed leaves its last one.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace

from edl.launch.jobs import JobFolder, Result, write_json
from edl.protocol.messages import Status

__all__ = ["Lookout", "Seen", "bare_status", "last_status"]

log = logging.getLogger("edl.launch")

# To write it more often would tell little more.
EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The figures of a job's last status."""

    step: int = 0
    epoch: int = 0
    epochs: int = 0
    generation: int = 0
    batch: int = 0
    workers: int = 0
    restarts: int = 0
    waiting: str = ""  # for which members, when none of those left answers

    @staticmethod
    def of(status: Status, *, restarts: int = 0) -> Seen:
        return Seen(
            restarts=restarts,
            step=status.step,
            epoch=status.epoch,
            epochs=status.epochs,
            generation=status.generation,
            batch=status.batch,
            workers=sum(worker.rank >= 0 for worker in status.workers),
        )

    @staticmethod
    def read(folder: JobFolder) -> Seen:
        """What was written last; nothing but zeros if nothing was."""
        try:
            return Seen(**json.loads((folder.path / "seen.json").read_text()))
        except (OSError, ValueError, TypeError):
            return Seen()

    def write(self, folder: JobFolder) -> None:
        write_json(folder.path / "seen.json", asdict(self))


class Lookout:
    """Writes what is seen. `now` is monotonic seconds."""

    def __init__(self, folder: JobFolder) -> None:
        self.last = Seen()
        self._folder = folder
        self._next = 0.0

    def glance(self, status: Status, *, restarts: int, now: float) -> None:
        """Now and then only."""
        if status.generation and now >= self._next:
            self._next = now + EVERY_S
            self.see(Seen.of(status, restarts=restarts))

    def wait(self, waiting: str, now: float) -> None:
        """What the job waits for; written when that begins and ends, and now and then."""
        changed = bool(waiting) != bool(self.last.waiting)
        if changed or (waiting and now >= self._next):
            self._next = now + EVERY_S
            self.see(replace(self.last, waiting=waiting))

    def see(self, seen: Seen) -> None:
        self.last = seen
        try:
            seen.write(self._folder)
        except OSError as error:
            log.error("launch.seen not written why=%r", str(error))


def last_status(folder: JobFolder, result: Result | None) -> Status:
    """Of a job that is over; without a result its launcher was killed."""
    seen = Seen.read(folder)
    return bare_status(
        result.state if result else "killed",
        seen=seen,
        step=max(result.steps if result else 0, seen.step),
        adjustments=len(result.adjustments) if result else 0,
    )


def bare_status(
    state: str, *, seen: Seen | None = None, step: int = 0, adjustments: int = 0
) -> Status:
    """A status without a leader to give it."""
    known = seen or Seen()
    return Status(
        request_id="",
        state=state,
        step=step,
        epoch=known.epoch,
        epochs=known.epochs,
        generation=known.generation,
        batch=known.batch,
        throughput=0.0,
        step_s=0.0,
        workers=(),
        adjustment=None,
        report={},
        adjustments=adjustments,
        trained_s=0.0,
        trained_samples=0,
    )
