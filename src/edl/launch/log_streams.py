"""A worker's output when the disk of its log is full: what does not fit is dropped.

Python raises an OSError where a script prints, or when its process ends. All workers of a job share
one disk, so all of them would fail at once, and nobody would be left to go on.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import Any

__all__ = ["drop_what_does_not_fit"]

FULL = (errno.ENOSPC, errno.EDQUOT)


class DroppingFile(io.RawIOBase):
    """Writes to a descriptor that it does not own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            if error.errno not in FULL:
                raise
            return memoryview(data).nbytes


def drop_what_does_not_fit() -> None:
    """From here on `print` does not fail for want of space, if output goes to a file."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            continue
        stream.flush()
        raw = DroppingFile(stream.fileno())
        # The old stream stays in sys.__stdout__ or sys.__stderr__, and keeps the descriptor open.
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                raw if stream.write_through else io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            ),
        )
