"""The first step with newcomers: the elders reduce among themselves, one hands the result over.

Newcomers have no share in that step, so they need not be in its reduction, which would be slower
by each of them. The elders sum their gradients as before and go on; the source copies the sum
aside, and newcomers take it from there and make the same update. Owns: the room that the sum is
put in, shared memory if everybody is on one machine. Holds: what newcomers take equals what the
elders hold bit for bit; the room is filled again only after a round in the whole group that a
newcomer enters when it has taken what was there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence

import torch

from edl.collective.errands import Errand
from edl.collective.lane import Small
from edl.collective.memory import create_memory, open_memory

__all__ = ["Relay"]

_CHUNK = 4 << 20
_ALIGNED = 64


class _Room:
    """Where the source puts what it hands over."""

    def __init__(self, size: int, number: int, *, shared: bool) -> None:
        self.size, self.number = max(1, size), number
        created = create_memory(self.size) if shared else None
        if created is None:
            self.file, self.nonce = -1, 0
            self._bytes = torch.empty(self.size, dtype=torch.uint8)
        else:
            self.file, self.nonce = created.file, created.nonce
            # Without the nonce behind the data, which must stay.
            self._bytes = torch.frombuffer(created.memory, dtype=torch.uint8, count=self.size)
        self._lock = threading.Lock()
        self._used = False

    def touch(self) -> None:
        """Let the system find the memory now; that may take longer than to fill it.

        Ends when the room is used.
        """
        for chunk in self._bytes.split(_CHUNK):
            with self._lock:
                if self._used:
                    return
                chunk.zero_()

    def use(self) -> None:
        with self._lock:
            self._used = True

    def put(self, rows: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        self.use()
        parts, start = [], 0
        for row in rows:
            flat = row.view(torch.uint8)
            part = self._bytes[start : start + flat.numel()]
            part.copy_(flat)
            parts.append(part)
            start += _padded(flat.numel())
        return parts

    def __del__(self) -> None:
        if self.file >= 0:
            os.close(self.file)


class Relay:
    """One member's end. `reduce` and `spread` are the elders' own, `tell` goes from the source to
    the newcomers, `agree` is their minimum, and `beside` does things in order in the background.
    """

    def __init__(
        self,
        *,
        hands: bool,
        takes: bool,
        together: bool,
        reduce: Small,
        spread: Small,
        tell: Small,
        agree: Small,
        beside: Callable[[Callable[[], None]], Errand[None]],
    ) -> None:
        self.hands = hands  # this member is the source
        self.takes = takes  # this member is a newcomer
        self.all_reduce = reduce
        self.broadcast = spread
        self._together = together
        self._tell = tell
        self._agree = agree
        self._beside = beside
        self._room: _Room | None = None
        self._touching: threading.Thread | None = None
        self._known = -1  # the number of the room that all have tried to open
        self._mapped: torch.Tensor | None = None

    # -- the source ------------------------------------------------------------------------

    def prepare(self, sizes: Iterable[int]) -> None:
        """Make room for rows of so many bytes; its memory is touched until the step needs it.

        On a thread of its own: the switch is some steps away, and nobody waits for this.
        """
        room = self._made_room(sizes)
        if room is not None:
            self._touching = threading.Thread(target=room.touch, name="edl-touch", daemon=True)
            self._touching.start()

    def reserve(self, sizes: Iterable[int]) -> None:
        """The same inside the step, if there is no such room: behind its computation."""
        room = self._made_room(sizes)
        if room is not None:
            self._beside(room.touch)

    def _made_room(self, sizes: Iterable[int]) -> _Room | None:
        size = sum(map(_padded, sizes))
        if self._room is not None and self._room.size >= size:
            return None
        number = self._room.number + 1 if self._room is not None else 0
        self._room = _Room(size, number, shared=self._together)
        return self._room

    def hand(self, rows: Iterable[torch.Tensor]) -> None:
        """Copy these flat rows now; newcomers are told in the background."""
        room = self._room
        assert room is not None
        parts = room.put(rows)

        def tell() -> None:
            where = [os.getpid(), room.file, room.size, room.nonce, room.number]
            self._tell(torch.tensor(where)).wait()
            if not self._in_memory(room.number, room.file, lambda: True):
                for part in parts:
                    self._tell(part).wait()

        self._beside(tell)

    # -- newcomers -------------------------------------------------------------------------

    def take(self, rows: Sequence[torch.Tensor]) -> None:
        """What the source handed over, into these flat rows."""
        self._beside(lambda: self._taken(rows)).wait()

    def _taken(self, rows: Sequence[torch.Tensor]) -> None:
        where = torch.zeros(5, dtype=torch.int64)
        self._tell(where).wait()
        pid, file, size, nonce, number = where.tolist()

        def can_open() -> bool:
            held = open_memory(pid, file, size, nonce)
            self._mapped = None if held is None else torch.frombuffer(held, dtype=torch.uint8)
            return held is not None

        mapped = self._mapped if self._in_memory(number, file, can_open) else None
        start = 0
        for row in rows:
            flat = row.view(torch.uint8)
            if mapped is not None:
                flat.copy_(mapped[start : start + flat.numel()])
                start += _padded(flat.numel())
                continue
            landing = torch.empty(flat.shape, dtype=torch.uint8) if row.is_cuda else flat
            self._tell(landing).wait()
            if landing is not flat:
                flat.copy_(landing)

    # -- both ------------------------------------------------------------------------------

    def pass_on(self, tensor: torch.Tensor) -> None:
        """Give newcomers the source's tensor; the source does not wait, and leaves it alone."""
        errand = self._beside(lambda: self._tell(tensor).wait())
        if self.takes:
            errand.wait()

    def close(self) -> None:
        """Give the memory back."""
        room, self._room, self._mapped = self._room, None, None
        if room is not None:
            room.use()
        if self._touching is not None:
            self._touching.join()
            # A thread that has ended still knows what it was to do.
            self._touching = None

    def _in_memory(self, number: int, file: int, can_open: Callable[[], bool]) -> bool:
        """Whether all of them see the source's room; asked once for each room."""
        if file >= 0 and number != self._known:
            self._known = number
            able = torch.tensor([int(can_open())], dtype=torch.int64)
            self._agree(able).wait()
            self._together = bool(able.item())
        return file >= 0 and self._together


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
