"""Anonymous memory that another process of the same user can open.

Opened as `/proc/PID/fd/N` of its maker: there is no name to guess and none to leave behind, and
the kernel lets only the same user in.
"""

from __future__ import annotations

import mmap
import os
from typing import Any

__all__ = ["made", "opened"]


def made(size: int) -> tuple[int, mmap.mmap | None]:
    """A descriptor and the memory; -1 and None where there is no such thing."""
    make: Any = getattr(os, "memfd_create", None)
    if make is None:
        return -1, None
    file = -1
    try:
        file = make("edl-state")
        os.ftruncate(file, size)
        return file, mmap.mmap(file, size)
    except OSError:
        if file >= 0:
            os.close(file)
        return -1, None


def opened(pid: int, number: int, size: int) -> mmap.mmap | None:
    """What process `pid` made, if it can be reached from here."""
    try:
        file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # Somebody else's file of that number, in another namespace, is not this large by chance.
        if os.fstat(file).st_size != size:
            return None
        return mmap.mmap(file, size)
    except OSError:
        return None
    finally:
        os.close(file)
