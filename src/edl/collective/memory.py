"""Anonymous memory that another process of the same user can open.

Opened as `/proc/PID/fd/N` of its creator: there is no name to guess and none to leave behind, and
the kernel lets only the same user in. A process id means another process on another machine or in
another PID namespace, where host names may be equal all the same. So the creator writes a random
nonce behind the data and sends it along; memory with another nonce is not opened.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass
from typing import Any

__all__ = ["SharedMemory", "create_memory", "open_memory"]

_NAME = "edl-state"
_NONCE_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Memory that this process created: its descriptor, and the nonce that proves it."""

    file: int
    nonce: int
    memory: mmap.mmap


def create_memory(size: int) -> SharedMemory | None:
    """Memory for `size` bytes; None where the system has no such thing."""
    make: Any = getattr(os, "memfd_create", None)
    if make is None:
        return None
    file = -1
    try:
        file = make(_NAME)
        os.ftruncate(file, size + _NONCE_BYTES)
        memory = mmap.mmap(file, size + _NONCE_BYTES)
    except OSError:
        if file >= 0:
            os.close(file)
        return None
    nonce = secrets.randbits(63)  # fits an int64
    memory[size:] = nonce.to_bytes(_NONCE_BYTES, "little")
    return SharedMemory(file=file, nonce=nonce, memory=memory)


def open_memory(pid: int, file: int, size: int, nonce: int) -> mmap.mmap | None:
    """What process `pid` created under this nonce, if this process can reach it."""
    path = f"/proc/{pid}/fd/{file}"
    try:
        # Opening another process's terminal, pipe or device may have an effect on it.
        if not os.readlink(path).startswith(f"/memfd:{_NAME}"):
            return None
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.fstat(number).st_size != size + _NONCE_BYTES:
            return None
        memory = mmap.mmap(number, size + _NONCE_BYTES)
    except OSError:
        return None
    finally:
        os.close(number)
    if memory[size:] != nonce.to_bytes(_NONCE_BYTES, "little"):
        memory.close()
        return None
    return memory
