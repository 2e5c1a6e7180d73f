"""Connections that have not proved the secret yet: how many, how long, and what is logged of them.

Anybody may connect to a port, so this is where a stranger's means end. Each connection has one
time limit for its whole handshake. The number of inbound ones is limited: at the limit the
listeners stop accepting for a moment, callers wait in the kernel's backlog, and connections that
have been silent for `EVICT_AFTER_S` are closed to make room. A flood leaves a few lines in the log,
not a full disk.

Owns: which connections are unproven, and one timer for all of them. Invariant: a caller that goes
on with its handshake is not refused, however many others connect at the same time.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Callable

from edl.errors import WrongSecret
from edl.wire.lines import LINES_S, LimitedLines
from edl.wire.loop import Loop
from edl.wire.peer import Peer

__all__ = ["Strangers", "default_limit"]

log = logging.getLogger("edl.wire")

# The limit where descriptors are plentiful: more than the workers of a large job, all of which
# dial a new leader at once.
MAX_UNPROVEN = 2048
# Honest callers answer within milliseconds; this allows for a busy machine and a long way.
EVICT_AFTER_S = 1.0


def default_limit() -> int:
    """At most a quarter of the descriptors that this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_UNPROVEN
    return max(1, min(MAX_UNPROVEN, soft // 4))


class Strangers:
    """Runs in the loop's thread. `drop` closes a connection with a reason."""

    def __init__(
        self, loop: Loop, *, timeout_s: float, limit: int, drop: Callable[[Peer, str], None]
    ) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._limit = limit
        self._drop = drop
        # In the order of their deadlines, since all have the same time.
        self._unproven: dict[Peer, None] = {}
        self._inbound = 0
        self._timing = False
        self._refusals = LimitedLines(log, "wire.refused")
        self._full_logged_until = 0.0

    @property
    def full(self) -> bool:
        """Whether no other inbound connection may be accepted now."""
        return self._inbound >= self._limit

    def add(self, peer: Peer) -> None:
        peer.last_heard = time.monotonic()
        peer.deadline = peer.last_heard + self._timeout_s
        self._unproven[peer] = None
        self._inbound += peer.inbound
        if not self._timing:
            # One timer for all of them: a flood of callers must not fill the heap.
            self._timing = True
            self._loop.call_later(self._timeout_s, self._drop_overdue)

    def heard(self, peer: Peer) -> None:
        """The peer sent a part of its handshake."""
        peer.last_heard = time.monotonic()

    def make_room(self) -> None:
        """Close the inbound connections that have been silent for too long.

        Called between two turns of the loop, when everything that had arrived has been read: a
        process that was itself held up must not blame its callers.
        """
        now = time.monotonic()
        if self.full and now >= self._full_logged_until:
            self._full_logged_until = now + LINES_S
            log.warning("wire.accept paused unproven=%d limit=%d", self._inbound, self._limit)
        silent = [
            peer
            for peer in self._unproven
            if peer.inbound and now - peer.last_heard > EVICT_AFTER_S
        ]
        for peer in silent:
            self.refuse(peer, f"no proof for {EVICT_AFTER_S:g} s while other callers wait")

    def remove(self, peer: Peer) -> None:
        if peer in self._unproven:
            del self._unproven[peer]
            self._inbound -= peer.inbound

    def refuse(self, peer: Peer, why: str, error: Exception | None = None) -> None:
        """End it, and leave a line: a wrong proof is worth a look, a wrong number is not."""
        level = logging.WARNING if isinstance(error, WrongSecret) else logging.INFO
        if peer.inbound or level == logging.WARNING:
            self._refusals.log(level, f"peer={peer.name} why={why!r}")
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
