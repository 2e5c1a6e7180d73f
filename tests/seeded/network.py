"""Connections between processes: in order on one of them, racing between two, sometimes lost.

Every message is really encoded and decoded. A lost connection swallows what is in flight, and
each side learns of it in its own time; a closed one delivers what was sent before it closes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from edl.protocol.messages import MESSAGES, Message
from edl.types import Address, WorkerId
from edl.wire.codec import Codec
from tests.seeded.schedule import Schedule

__all__ = ["Connection", "End", "Network"]

_REMEMBERED = 64
# How long one waits for the other end's hello.
_HELLO_S = 1.0
# The latest that an end notices a lost connection. A calm world has founders that give up after
# little more than this.
_NOTICE_S = 10.0


class End(Protocol):
    """Whoever holds one end of a connection."""

    me: WorkerId
    frozen: bool

    def opened(self, peer: int) -> None: ...

    def heard(self, peer: int, message: Message) -> None: ...

    def closed(self, peer: int, why: str) -> None: ...


class Connection:
    """Two ends with their own numbers for it. Side 0 has dialled side 1."""

    __slots__ = ("ends", "lost", "numbers", "opens", "shut", "until")

    def __init__(self, ends: tuple[End, End], numbers: tuple[int, int]) -> None:
        self.ends = ends
        self.numbers = numbers
        self.shut = [False, False]
        self.lost = False
        self.opens = 0.0
        # When the last message of each sender arrives: later ones never overtake it.
        self.until = [0.0, 0.0]


class Network:
    """All connections of one world."""

    def __init__(
        self,
        schedule: Schedule,
        rng: random.Random,
        delay: Callable[[], float],
        are_cut: Callable[[End, End], bool],
    ) -> None:
        self.schedule = schedule
        self.are_cut = are_cut
        self.rng = rng
        self.delay = delay
        self.connections: list[Connection] = []
        self.touched: set[WorkerId] = set()  # whose connections were lost
        self._codec = Codec(MESSAGES)
        self._listeners: dict[Address, tuple[End, Callable[[], int]]] = {}
        self._links: dict[End, dict[int, tuple[Connection, int]]] = {}
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        self._decoded: dict[bytes, Message] = {}

    def listen(self, address: Address, end: End, number: Callable[[], int]) -> None:
        self._listeners[address] = (end, number)

    def dial(self, end: End, peer: int, address: Address) -> None:
        self.schedule.after(self.delay(), self._connect, end, peer, address)

    def _connect(self, end: End, peer: int, address: Address) -> None:
        found = self._listeners.get(address)
        if found is None:
            self.schedule.after(self.delay(), end.closed, peer, "refused")
            return
        acceptor, number = found
        if acceptor.frozen or self.are_cut(end, acceptor):
            # Nobody says hello at the other end.
            self.schedule.after(_HELLO_S, end.closed, peer, "timed out")
            return
        connection = Connection((end, acceptor), (peer, number()))
        self.connections.append(connection)
        for side in (0, 1):
            held = self._links.setdefault(connection.ends[side], {})
            held[connection.numbers[side]] = (connection, side)
        when = self.schedule.now + self.delay()
        connection.opens = when
        connection.until = [when, when]
        self.schedule.at(when, self._open, connection)

    def _open(self, connection: Connection) -> None:
        if not (connection.shut[0] or connection.lost):
            connection.ends[0].opened(connection.numbers[0])

    def send(self, end: End, peer: int, message: Message) -> bool:
        """False: there is no such connection (any more)."""
        link = self._links.get(end, {}).get(peer)
        if link is None:
            return False
        connection, side = link
        if connection.lost or connection.shut[side]:
            return False
        payload = self._encode(message)
        when = max(connection.until[side], self.schedule.now + self.delay())
        connection.until[side] = when
        self.schedule.at(when, self._deliver, connection, 1 - side, payload)
        return True

    def _deliver(self, connection: Connection, side: int, payload: bytes) -> None:
        if connection.lost or connection.shut[side]:
            return
        message = self._decode(payload)
        connection.ends[side].heard(connection.numbers[side], message)

    def close(self, end: End, peer: int) -> None:
        """After what was sent."""
        link = self._links.get(end, {}).get(peer)
        if link is None:
            return
        connection, side = link
        self._shut(connection, side)
        when = max(connection.until[side], self.schedule.now + self.delay())
        self.schedule.at(when, self._tell_closed, connection, 1 - side, "closed by the other side")

    def lose(self, connection: Connection, why: str) -> None:
        """Both sides lose it, and each notices in its own time."""
        if connection.lost:
            return
        connection.lost = True
        self.touched |= {end.me for end in connection.ends}
        for side in (0, 1):
            slow = 20.0 if self.rng.random() < 0.2 else 1.0
            late = min(self.delay() * slow, _NOTICE_S)
            self.schedule.after(late, self._tell_closed, connection, side, why)

    def cut(self, one: End, other: End) -> None:
        """Two ends do not reach each other any more."""
        for connection in self.open_connections():
            if one in connection.ends and other in connection.ends:
                self.lose(connection, "cut")

    def snap(self, end: End, peer: int) -> None:
        """Lose the connection with what was just sent over it."""
        link = self._links.get(end, {}).get(peer)
        if link is not None:
            self.lose(link[0], "snapped")

    def vanish(self, end: End, address: Address, *, flush: bool) -> None:
        """A process ends: its listener is gone and its connections close."""
        self._listeners.pop(address, None)
        for peer, (connection, side) in list(self._links.get(end, {}).items()):
            if flush:
                self.close(end, peer)
            elif not connection.lost:
                self._shut(connection, side)
                connection.lost = True
                self.schedule.after(self.delay(), self._tell_closed, connection, 1 - side, "reset")

    def open_connections(self) -> list[Connection]:
        """Those that can be lost; the closed ones are forgotten here."""
        self.connections = [c for c in self.connections if not c.lost and not any(c.shut)]
        return self.connections

    def _tell_closed(self, connection: Connection, side: int, why: str) -> None:
        if connection.shut[side]:
            return
        self._shut(connection, side)
        connection.ends[side].closed(connection.numbers[side], why)

    def _shut(self, connection: Connection, side: int) -> None:
        connection.shut[side] = True
        self._links[connection.ends[side]].pop(connection.numbers[side], None)

    # The same message to many: one encoding, and one value, since messages are frozen.

    def _encode(self, message: Message) -> bytes:
        last, payload = self._encoded
        if last is not message:
            payload = self._codec.encode(message)
            self._encoded = (message, payload)
        return payload

    def _decode(self, payload: bytes) -> Message:
        message = self._decoded.get(payload)
        if message is None:
            decoded: Any = self._codec.decode(payload)
            message = decoded
            if len(self._decoded) >= _REMEMBERED:
                self._decoded.clear()
            self._decoded[payload] = decoded
        return message
