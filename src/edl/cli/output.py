"""Which lines of the workers' logs the terminal shows.

One worker's by default: rank 0's, for scripts print there. Who that is turns out only when the job
has been founded, and may change when it leaves. Owns: how far each log was read, and lines that
may still have to be shown. Holds: no line is shown twice.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from edl.launch.jobs import JobFolder
from edl.launch.logs import Tail

__all__ = ["MODES", "Output"]

log = logging.getLogger("edl.cli")

MODES = ("one", "all", "none")
KEPT_LINES = 500


class Output:
    """`poll` now and then; it returns what is new as (worker, line)."""

    def __init__(self, folder: JobFolder, mode: str) -> None:
        self._folder = folder
        self._mode = mode
        self._tails: dict[str, Tail] = {}
        self._hidden: dict[str, deque[tuple[float, str]]] = {}
        self._shown: deque[str] = deque(maxlen=KEPT_LINES)
        self._current: str | None = None
        self._settled = False
        self._last_shown = 0.0

    def poll(self, rank_zero: str | None, *, rest: bool = False) -> list[tuple[str, str]]:
        """`rest`: nobody writes any more, so show half lines too."""
        if self._mode == "none":
            return []
        fresh = self._read(rest)
        if self._mode == "all":
            return fresh
        workers = self._folder.workers()
        wanted = rank_zero if rank_zero in workers else self._current
        wanted = wanted or (workers[0] if workers else None)
        lines: list[str] = []
        if wanted != self._current and wanted is not None:
            if self._current is not None:
                lines += self._catch_up(wanted)
            self._current = wanted
        self._settled = self._settled or rank_zero is not None
        for worker, line in fresh:
            if worker == self._current:
                lines.append(line)
            else:
                kept = self._hidden.setdefault(worker, deque(maxlen=KEPT_LINES))
                kept.append((time.monotonic(), line))
        if lines:
            self._last_shown = time.monotonic()
            self._shown.extend(lines)
        return [(self._current or "", line) for line in lines]

    def _read(self, rest: bool) -> list[tuple[str, str]]:
        found = []
        for worker in self._folder.workers():
            tail = self._tails.setdefault(worker, Tail(self._folder.log(worker)))
            try:
                lines = tail.lines(rest=rest)
            except OSError as error:
                # Showing a log is no reason to end the job.
                log.warning("log of worker %s cannot be read: %s", worker, error)
                continue
            # A progress bar overwrites its line: only its last state is worth a line here.
            found += [(worker, line.rstrip("\r").rpartition("\r")[2]) for line in lines]
        return found

    def _catch_up(self, worker: str) -> list[str]:
        """What the new one has said that the old one has not said for it."""
        kept = list(self._hidden.pop(worker, ()))
        if self._settled:
            return [line for at, line in kept if at >= self._last_shown]
        lines = [line for _, line in kept]
        same = 0
        for mine, theirs in zip(self._shown, lines, strict=False):
            if mine != theirs:
                break
            same += 1
        return lines[same:]
