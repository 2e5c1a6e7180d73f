"""Sockets whose last byte is written but not yet known to have arrived.

To close a socket that has unread input makes the kernel reset the connection and throw away what
it has not sent yet. So a socket that we close stays for a moment, half closed and read empty, until
the other side closes too. Holds: no socket stays longer than the time it was given.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial

from edl.wire.loop import READ, Loop

__all__ = ["Linger"]

CHUNK_BYTES = 64 * 1024


class Linger:
    """Takes registered sockets over from their owner and closes them in good time."""

    def __init__(self, loop: Loop, on_empty: Callable[[], None]) -> None:
        self._loop = loop
        self._on_empty = on_empty
        self._socks: set[socket.socket] = set()

    def __bool__(self) -> bool:
        return bool(self._socks)

    def take(self, sock: socket.socket, bound_s: float) -> None:
        """Raises OSError when the connection is gone already; the socket is then not taken."""
        sock.shutdown(socket.SHUT_WR)
        self._loop.modify(sock, READ, partial(self._on_leftover, sock))
        self._socks.add(sock)
        self._loop.call_later(bound_s, partial(self._forget, sock))

    def close(self) -> None:
        for sock in list(self._socks):
            self._forget(sock)

    def _on_leftover(self, sock: socket.socket, mask: int) -> None:
        try:
            if sock.recv(CHUNK_BYTES):
                return
        except BlockingIOError:
            return
        except OSError:
            pass  # reset: the other side is gone, which is all we wait for
        self._forget(sock)

    def _forget(self, sock: socket.socket) -> None:
        if sock in self._socks:
            self._socks.discard(sock)
            self._loop.unregister(sock)
            sock.close()
            if not self._socks:
                self._on_empty()
