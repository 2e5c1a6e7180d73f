"""When a checkpoint is taken, and the one thread that writes it.

Training stops for a copy in memory and for nothing else: the copy is written in the background,
one at a time. A copy is held back until the next boundary, because only then is it known that
every worker has committed the step it is of. Owns: the copy in hand, and what is told of the last
checkpoint. Holds: there is never more than one copy in memory, so never two writes; a checkpoint
that fails costs a warning and not the training.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edl.errors import CheckpointError, EdlError
from edl.runtime.clock import now
from edl.runtime.tensorfile import Tensors

__all__ = ["Copied", "Saver", "Standing"]

_log = logging.getLogger("edl.checkpoint")

# Tensors that nobody changes any more, and plain values.
Copied = tuple[Tensors, dict[str, Any]]


class Folder(Protocol):
    """Where checkpoints go; `CheckpointFolder`, or a test's own."""

    def save(self, step: int, tensors: Tensors, extra: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How it stands with a job's checkpoints."""

    step: int | None  # of the last good one that this process wrote, or resumed from
    age_s: float | None  # since that one was taken, or resumed from
    writing: int | None  # the step being written now
    error: str  # why the last attempt failed; empty once one has succeeded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    step: int
    taken_at: float
    content: Copied


class Saver:
    """Takes a checkpoint every so many steps or seconds, whichever comes first."""

    def __init__(
        self,
        folder: Folder,
        *,
        every_steps: int = 1000,
        every_s: float = 600.0,
        resumed: int | None = None,
        clock: Callable[[], float] = now,
        on_done: Callable[[int, str], None] = lambda step, error: None,
    ) -> None:
        """An interval of 0 does not count. `resumed` is the step of the checkpoint gone on from.

        `on_done` hears of every attempt, in the thread that made it; the error is empty if it
        succeeded.
        """
        self._folder = folder
        self._every_steps = every_steps
        self._every_s = every_s
        self._clock = clock
        self._on_done = on_done
        self._tried_step = resumed or 0
        self._tried_at = clock()
        self._held: _Copy | None = None
        self._lock = threading.Lock()  # for what the writer also touches: the fields below
        self._writer: threading.Thread | None = None
        self._writing: int | None = None
        self._good: tuple[int, float] | None = (
            None if resumed is None else (resumed, self._tried_at)
        )
        self._error = ""

    # -- the training thread ---------------------------------------------------------------

    def wants(self, step: int) -> bool:
        """Whether a checkpoint is due when so many steps are done."""
        return self._held is None and self._writing is None and self._due(step)

    def boundary(self, step: int, copy: Callable[[], Copied], *, take: bool = True) -> None:
        """A step was committed here; so the one before is committed everywhere.

        `step` is how many are done. If a checkpoint is due, and may be taken here (`take`), `copy`
        is called before this returns.
        """
        self.stable()
        if take and self.wants(step):
            self._take(step, copy)

    def stable(self) -> None:
        """Every worker has committed what was copied last: it may be written."""
        if self._held is None or self._writing is not None:
            return
        held, self._held = self._held, None
        with self._lock:
            self._writing = held.step
        self._writer = threading.Thread(
            target=self._write, args=(held,), name="edl-checkpoint", daemon=True
        )
        self._writer.start()

    def last(self, step: int, copy: Callable[[], Copied]) -> None:
        """The job stops with this step, here and everywhere: keep it, whatever is due.

        Unless one is being written just now: that one is recent, and nobody waits for two.
        """
        if self._held is None and self._writing is None and step > self._tried_step:
            self._take(step, copy)
        self.stable()

    def _due(self, step: int) -> bool:
        steps, seconds = step - self._tried_step, self._clock() - self._tried_at
        return steps > 0 and (
            0 < self._every_steps <= steps or (self._every_s > 0 and seconds >= self._every_s)
        )

    def _take(self, step: int, copy: Callable[[], Copied]) -> None:
        # A failed attempt counts too: what failed now is tried again in due course, not at once.
        self._tried_step, self._tried_at = step, self._clock()
        try:
            content = copy()
        except Exception as error:
            self._failed(step, error)
            return
        self._held = _Copy(step=step, taken_at=self._tried_at, content=content)
        _log.debug("checkpoint.copied step=%d s=%.3f", step, self._clock() - self._tried_at)

    def standing(self) -> Standing:
        """For `status`; from any thread."""
        with self._lock:
            step, taken_at = self._good or (None, 0.0)
            return Standing(
                step=step,
                age_s=None if step is None else self._clock() - taken_at,
                writing=self._writing,
                error=self._error,
            )

    def close(self, timeout_s: float) -> bool:
        """Wait for the write under way; False if it still runs. What was only copied is dropped."""
        self._held = None
        writer = self._writer
        if writer is None:
            return True
        writer.join(timeout_s)
        if writer.is_alive():
            _log.warning(
                "checkpoint.unfinished step=%s: still being written after %.0f s; the one before "
                "it stays the last",
                self._writing,
                timeout_s,
            )
            return False
        return True

    # -- the writer ------------------------------------------------------------------------

    def _write(self, copied: _Copy) -> None:
        began = self._clock()
        try:
            self._folder.save(copied.step, *copied.content)
        except Exception as error:
            self._failed(copied.step, error)
            return
        with self._lock:
            self._good = copied.step, copied.taken_at
            self._error = ""
            self._writing = None
        _log.info("checkpoint.saved step=%d s=%.3f", copied.step, self._clock() - began)
        self._on_done(copied.step, "")

    def _failed(self, step: int, error: Exception) -> None:
        with self._lock:
            self._error = str(error) or type(error).__name__
            self._writing = None
        if isinstance(error, CheckpointError):
            _log.warning("checkpoint.failed step=%d, training goes on: %s", step, error)
        else:
            # Nobody foresaw this one, so where it came from is told as well.
            known = isinstance(error, EdlError)
            _log.error(
                "checkpoint.failed step=%d, training goes on: %s: %s",
                step,
                type(error).__name__,
                error,
                exc_info=None if known else error,
            )
        self._on_done(step, str(error) or type(error).__name__)
