"""Listening sockets of a hub.

Owns: the listeners and their registration in the loop. Invariant: while the hub is full or the
process is out of descriptors nothing is accepted; callers wait in the kernel's backlog, and the
listener is looked at again after `PAUSE_S`.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from functools import partial

from edl.types import Address
from edl.wire.lines import LimitedLines
from edl.wire.loop import READ, Loop
from edl.wire.stream import listening, reason, tune

__all__ = ["Door"]

log = logging.getLogger("edl.wire")

ACCEPTS_PER_TURN = 64
PAUSE_S = 0.1


class Door:
    """Hands each new connection, non-blocking and tuned, to `on_accepted`.

    `is_full` is asked before each accept; `make_room` is called at the end of each pause.
    """

    def __init__(
        self,
        loop: Loop,
        on_accepted: Callable[[socket.socket, str], None],
        *,
        is_full: Callable[[], bool],
        make_room: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_accepted = on_accepted
        self._is_full = is_full
        self._make_room = make_room
        self._listeners: list[socket.socket] = []
        self._closed = False
        # While descriptors are short, one line for each pause would fill the disk.
        self._pauses = LimitedLines(log, "wire.accept paused")

    def listen(self, host: str, port: int) -> Address:
        """Any thread: the port is bound at once, callers are let in by the loop."""
        sock = listening(host, port)
        address = Address(*sock.getsockname()[:2])
        self._listeners.append(sock)
        self._loop.post(partial(self._open, sock))
        return address

    def close(self) -> None:
        self._closed = True
        while self._listeners:
            sock = self._listeners.pop()
            self._loop.unregister(sock)
            sock.close()

    def _open(self, listener: socket.socket) -> None:
        if self._closed:
            self.close()  # a listener that was made while the hub stopped
        else:
            self._loop.register(listener, READ, partial(self._on_knock, listener))

    def _on_knock(self, listener: socket.socket, mask: int) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._closed:
                return
            if self._is_full():
                self._pause(listener)
                return
            try:
                sock, where = listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue  # the caller hung up before it was let in
            except OSError as error:
                code = errno.errorcode.get(error.errno or 0)
                self._pauses.log(logging.WARNING, f"code={code} why={reason(error)!r}")
                self._pause(listener)
                return
            try:
                sock.setblocking(False)
                tune(sock)
            except OSError:
                sock.close()
                continue
            self._on_accepted(sock, str(Address(*where[:2])))

    def _pause(self, listener: socket.socket) -> None:
        self._loop.unregister(listener)
        self._loop.call_later(PAUSE_S, partial(self._reopen, listener))

    def _reopen(self, listener: socket.socket) -> None:
        if not self._closed:
            self._make_room()
            self._open(listener)
