"""One connection of a hub, from the first packet to the last.

Only the hub's thread touches what is beneath `open`. Invariants: `raw` carries handshake bytes and
then frames; frames that were sent before the handshake was over wait in `early`, because nothing
may leave before the other side has proved the secret; `queued` is the size of both in bytes.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from itertools import islice

from edl.wire.hello import Hello
from edl.wire.stream import FrameReader
from edl.wire.tls import Cipher, SealedHello

__all__ = ["Peer"]

# As many pieces as one system call takes without harm; more pieces wait for the next turn.
PIECES = 64


class Peer:
    """An authenticated connection, opaque to its users but for `name`, `tag` and `open`."""

    __slots__ = (
        "broken",
        "cipher",
        "closing",
        "connecting",
        "deadline",
        "early",
        "gone",
        "hello",
        "inbound",
        "interest",
        "last_heard",
        "name",
        "open",
        "queued",
        "raw",
        "reader",
        "sock",
        "tag",
        "why",
    )

    def __init__(
        self,
        sock: socket.socket | None,
        *,
        name: str,
        tag: object,
        inbound: bool,
        hello: Hello | SealedHello,
        max_frame: int,
    ) -> None:
        self.name = name
        self.tag = tag
        self.open = False
        self.sock = sock
        self.inbound = inbound
        self.connecting = not inbound
        self.hello: Hello | SealedHello | None = hello
        # Between `reader` or the frames to send and the socket; None without TLS.
        self.cipher: Cipher | None = None
        self.reader = FrameReader(max_frame)
        self.raw: deque[memoryview] = deque()
        self.early: list[bytes] = []
        self.queued = 0
        self.interest = 0
        # While it is unproven; see `Strangers`.
        self.deadline = 0.0
        self.last_heard = 0.0
        # Asked to close: what is queued leaves, what arrives is thrown away.
        self.closing = False
        self.why = ""
        # A write failed: what the other side sent before that is still to be read.
        self.broken = False
        self.gone = False

    def __repr__(self) -> str:
        return f"<Peer {self.name} {'open' if self.open else 'closed'}>"

    def enqueue(self, data: bytes | memoryview) -> None:
        """Send this after everything that is queued already."""
        self.raw.append(memoryview(data))
        self.queued += len(data)

    def hold(self, data: bytes) -> None:
        """Send this once the other side has proved the secret."""
        self.early.append(data)
        self.queued += len(data)

    def release(self, seal: Callable[[bytes], bytes]) -> None:
        """Queue what was held."""
        held, self.early = self.early, []
        self.queued -= sum(map(len, held))
        for data in held:
            self.enqueue(seal(data))

    def discard(self) -> None:
        """Drop what is queued: it will not be sent."""
        self.raw.clear()
        self.early.clear()
        self.queued = 0

    def write(self) -> None:
        """Hand the kernel what it takes now. Raises OSError, but never blocks."""
        assert self.sock is not None
        if not self.raw:
            return
        try:
            sent = self.sock.sendmsg(list(islice(self.raw, PIECES)))
        except BlockingIOError:
            return
        self.queued -= sent
        while sent:
            head = self.raw[0]
            if sent < len(head):
                self.raw[0] = head[sent:]
                return
            sent -= len(head)
            self.raw.popleft()
