"""State to newcomers on the same machine: through shared memory instead of the loopback.

A broadcast over TCP copies every byte in and out of the kernel once for each newcomer, on the very
cores that train; here the source copies a row into a slot once and each newcomer copies it out.
Owns: a few slots in an anonymous memory file, which newcomers open through the source's process.
Holds: nothing outlives the two processes (there is no name that could be left behind), a slot is
filled again only when everybody has emptied it, and where the file cannot be opened (another
container, another user) everybody agrees to go by TCP.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

import torch

from edl.collective.memory import create_memory, open_memory

__all__ = ["LARGE", "Lane", "Small", "Waitable", "open_lane"]

# Small: the first touch of shared memory costs more than a round of tiny messages.
SLOT = 4 << 20
SLOTS = 3
# Below this a row goes by TCP as ever: it takes less than telling of a slot.
LARGE = 1 << 20

Small = Callable[[torch.Tensor], "Waitable"]


class Waitable(Protocol):
    def wait(self) -> None: ...


class Lane:
    """One member's end. `tell` broadcasts a small tensor, `agree` all-reduces one by minimum."""

    def __init__(
        self, memory: mmap.mmap, *, sends: bool, file: int, tell: Small, agree: Small
    ) -> None:
        self._memory = memory
        self._file = file
        self._sends = sends
        self._tell = tell
        self._agree = agree
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = [whole[i * SLOT : (i + 1) * SLOT] for i in range(SLOTS)]
        self._turn = 0
        self._unread: deque[Waitable] = deque()

    def move(self, row: torch.Tensor) -> None:
        """The source's row into everybody's; rows are flat, on the CPU, at most a slot long."""
        slot = self._slots[self._turn % SLOTS][: row.numel()]
        self._turn += 1
        while len(self._unread) >= SLOTS:
            self._unread.popleft().wait()
        if self._sends:
            slot.copy_(row)
        self._tell(torch.zeros(1, dtype=torch.int64)).wait()
        if not self._sends:
            row.copy_(slot)
        # Not waited for: a slot is needed again only after the others have had their turn.
        self._unread.append(self._agree(torch.ones(1, dtype=torch.int64)))

    def close(self) -> None:
        """Forget it; the memory goes with the last view of it."""
        self._slots = []
        self._unread.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def open_lane(*, sends: bool, tell: Small, agree: Small) -> Lane | None:
    """Everybody of the state's group calls this at the same point; None: go by TCP."""
    size = SLOT * SLOTS
    created = create_memory(size) if sends else None
    file, nonce = (created.file, created.nonce) if created is not None else (-1, 0)
    where = torch.tensor([os.getpid(), file, size, nonce], dtype=torch.int64)
    tell(where).wait()
    memory = created.memory if created is not None else None
    if not sends and where[1] >= 0:
        memory = open_memory(*where.tolist())
    able = torch.tensor([int(memory is not None)], dtype=torch.int64)
    agree(able).wait()
    if memory is None or not int(able.item()):
        if file >= 0:
            os.close(file)
        return None
    return Lane(memory, sends=sends, file=file, tell=tell, agree=agree)
