"""Framed TCP without Nagle: what the hub and the channel share.

A frame is a 4-byte big-endian length and a payload. The reader is pure: bytes in, payloads out.
Holds: no frame above the limit is ever allocated.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator

from edl.errors import PeerError, UsageError
from edl.types import Address

__all__ = [
    "MAX_FRAME",
    "FrameReader",
    "dialled_itself",
    "dialling",
    "frame",
    "listening",
    "reason",
    "tune",
]

MAX_FRAME = 64 * 1024 * 1024
HEADER = struct.Struct(">I")
# Callers wait here while a hub is busy or at its limit; the kernel's somaxconn may lower it.
BACKLOG = 4096
# A machine that vanished without a word is noticed by the kernel after about half a minute.
KEEP_IDLE_S, KEEP_INTERVAL_S, KEEP_COUNT = 15, 5, 3


def frame(payload: bytes, *, max_frame: int) -> bytes:
    if len(payload) > max_frame:
        raise UsageError(
            f"a message of {len(payload)} bytes is above the frame limit of {max_frame}; "
            "send it in parts"
        )
    return HEADER.pack(len(payload)) + payload


class FrameReader:
    """Cuts a stream into payloads. A payload is valid until the next `feed`."""

    def __init__(self, max_frame: int) -> None:
        self._max_frame = max_frame
        self._header = bytearray()
        self._body: bytearray | None = None
        self._filled = 0

    @property
    def inside(self) -> bool:
        """Whether the stream stopped in the middle of a frame."""
        return self._body is not None or bool(self._header)

    def feed(self, data: bytes | memoryview) -> Iterator[memoryview]:
        view = memoryview(data)
        if self._body is None and not self._header and len(view) > HEADER.size:
            # By far the most usual: one read is one message.
            (size,) = HEADER.unpack_from(view)
            if size == len(view) - HEADER.size and size <= self._max_frame:
                yield view[HEADER.size :]
                return
        while view:
            if self._body is not None:
                view = self._fill(self._body, view)
                if self._filled == len(self._body):
                    body, self._body = self._body, None
                    yield memoryview(body)
                continue
            size, view = self._take_header(view)
            if size is None:
                return
            if size <= len(view):
                # The whole payload is here: no copy is needed.
                payload, view = view[:size], view[size:]
                yield payload
            else:
                self._body, self._filled = bytearray(size), 0

    def _take_header(self, view: memoryview) -> tuple[int | None, memoryview]:
        missing = HEADER.size - len(self._header)
        self._header += view[:missing]
        if len(self._header) < HEADER.size:
            return None, view[missing:]
        (size,) = HEADER.unpack(self._header)
        self._header.clear()
        if size > self._max_frame:
            raise PeerError(f"a frame of {size} bytes arrived; the limit is {self._max_frame}")
        return size, view[missing:]

    def _fill(self, body: bytearray, view: memoryview) -> memoryview:
        part = view[: len(body) - self._filled]
        body[self._filled : self._filled + len(part)] = part
        self._filled += len(part)
        return view[len(part) :]


def tune(sock: socket.socket) -> None:
    """Small messages leave at once, and a machine that vanished is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEP_IDLE_S),
        ("TCP_KEEPINTVL", KEEP_INTERVAL_S),
        ("TCP_KEEPCNT", KEEP_COUNT),
    ):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def listening(host: str, port: int) -> socket.socket:
    """A bound, listening, non-blocking socket; UsageError names what is in the way."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot listen on host {host!r}: {reason(error)}") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except (OSError, OverflowError) as error:
        sock.close()
        hint = "; choose another port, or 0 for any" if _is_taken(error) else ""
        raise UsageError(
            f"cannot listen on {Address(host, port)}: {reason(error)}{hint}"
        ) from error
    return sock


def _is_taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


def dialling(address: Address) -> socket.socket:
    """A non-blocking socket that begins to connect.

    Names are refused: to resolve one could block the caller for seconds.
    """
    family, kind, proto, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setblocking(False)
        tune(sock)
        failure = sock.connect_ex(where)
        if failure not in (0, errno.EINPROGRESS):
            raise OSError(failure, "")
    except BaseException:
        sock.close()
        raise
    return sock


def dialled_itself(sock: socket.socket) -> bool:
    """Whether TCP connected a socket to itself.

    That happens on one machine when a port without a listener is dialled again and again, and the
    kernel picks that same port as the source; left open it would keep the listener off its port.
    """
    if sock.getsockname() != sock.getpeername():
        return False
    # A reset instead of the usual close, so that the port is free at once.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return True


def reason(error: BaseException) -> str:
    """The words of an error without its number."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
