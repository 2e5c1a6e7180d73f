"""One connection of a hub, from the first packet to the last.

Only the hub's thread touches what is beneath `open`. Holds: `raw` carries handshake bytes and then
frames; frames that were sent before the handshake was over wait in `early`, because nothing may
leave before the other side has proved the secret.
"""

from __future__ import annotations

import socket
from collections import deque
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
        "name",
        "open",
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
        self.interest = 0
        self.deadline = 0.0
        # Asked to close: what is queued leaves, what arrives is thrown away.
        self.closing = False
        self.why = ""
        # A write failed: what the other side sent before that is still to be read.
        self.broken = False
        self.gone = False

    def __repr__(self) -> str:
        return f"<Peer {self.name} {'open' if self.open else 'closed'}>"

    def write(self) -> None:
        """Hand the kernel what it takes now. Raises OSError, but never blocks."""
        assert self.sock is not None
        if not self.raw:
            return
        try:
            sent = self.sock.sendmsg(list(islice(self.raw, PIECES)))
        except BlockingIOError:
            return
        while sent:
            head = self.raw[0]
            if sent < len(head):
                self.raw[0] = head[sent:]
                return
            sent -= len(head)
            self.raw.popleft()
