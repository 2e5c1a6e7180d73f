"""Connections that have not proved the secret yet: how many, how long, and what is said of them.

Anybody may knock at a port, so this is where a stranger's means end: each has a time for all of its
handshake, not one per byte, the oldest makes room when there are too many, and a flood of them
leaves a few lines in the log and not a full disk. Owns: who is unproven, and one timer for all.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from edl.errors import WrongSecret
from edl.wire.loop import Loop
from edl.wire.peer import Peer

__all__ = ["Strangers"]

log = logging.getLogger("edl.wire")

MAX_STRANGERS = 256
# So many lines, and then none until the time is over.
LINES, LINES_S = 20, 10.0


class Strangers:
    """In the loop's thread. `drop` ends a connection and says why."""

    def __init__(self, loop: Loop, *, timeout_s: float, drop: Callable[[Peer, str], None]) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._drop = drop
        # In the order of their deadlines, since all have the same time.
        self._unproven: dict[Peer, None] = {}
        self._timing = False
        self._lines = 0
        self._kept_back = 0
        self._lines_until = 0.0

    def add(self, peer: Peer) -> None:
        peer.deadline = time.monotonic() + self._timeout_s
        self._unproven[peer] = None
        if not self._timing:
            # One timer for all of them: a flood of callers must not fill the heap.
            self._timing = True
            self._loop.call_later(self._timeout_s, self._drop_overdue)
        if len(self._unproven) > MAX_STRANGERS:
            inbound = [each for each in self._unproven if each.inbound]
            # The oldest goes: an honest caller proves itself in a moment, a dishonest one waits.
            if len(inbound) > MAX_STRANGERS:
                why = f"more than {MAX_STRANGERS} connections without a proof"
                self.refuse(inbound[0], why)

    def remove(self, peer: Peer) -> None:
        self._unproven.pop(peer, None)

    def refuse(self, peer: Peer, why: str, error: Exception | None = None) -> None:
        """End it, and leave a line: a wrong proof is worth a look, a wrong number is not."""
        level = logging.WARNING if isinstance(error, WrongSecret) else logging.INFO
        if peer.inbound or level == logging.WARNING:
            self._note(level, peer.name, why)
        self._drop(peer, why)

    def stumbled(self, peer: Peer) -> bool:
        """Whether the error at hand, a bug of ours, was met by one without a proof."""
        if peer.hello is None:
            return False
        log.exception("wire.handshake failed peer=%s", peer.name)
        return True

    def _drop_overdue(self) -> None:
        self._timing = False
        now = time.monotonic()
        for peer in list(self._unproven):
            if peer.deadline > now:
                self._timing = True
                self._loop.call_later(peer.deadline - now, self._drop_overdue)
                return
            what = "connect" if peer.connecting else "handshake"
            self.refuse(peer, f"no {what} with {peer.name} within {self._timeout_s} s")

    def _note(self, level: int, name: str, why: str) -> None:
        if not log.isEnabledFor(level):
            return
        now = time.monotonic()
        if now >= self._lines_until:
            if self._kept_back:
                log.log(level, "wire.refused more=%d connections, not listed", self._kept_back)
            self._lines = self._kept_back = 0
            self._lines_until = now + LINES_S
        if self._lines < LINES:
            self._lines += 1
            log.log(level, "wire.refused peer=%s why=%r", name, why)
        else:
            self._kept_back += 1
