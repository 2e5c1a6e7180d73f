"""Log lines that outsiders, or a lasting fault, could otherwise write without limit.

Owns: how many lines of one kind were written of late. Invariant: at most `LINES` of them in
`LINES_S`; the next one after that says how many were left out.
"""

from __future__ import annotations

import logging
import time

__all__ = ["LINES", "LINES_S", "LimitedLines"]

# So many lines, and then none until the time is over.
LINES, LINES_S = 20, 10.0


class LimitedLines:
    """Lines of one kind. For one thread."""

    def __init__(self, log: logging.Logger, kind: str) -> None:
        self._log = log
        self._kind = kind
        self._written = 0
        self._left_out = 0
        self._until = 0.0

    def log(self, level: int, text: str) -> None:
        if not self._log.isEnabledFor(level):
            return
        now = time.monotonic()
        if now >= self._until:
            if self._left_out:
                self._log.log(level, "%s more=%d, not listed", self._kind, self._left_out)
            self._written = self._left_out = 0
            self._until = now + LINES_S
        if self._written < LINES:
            self._written += 1
            self._log.log(level, "%s %s", self._kind, text)
        else:
            self._left_out += 1
