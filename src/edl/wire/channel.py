"""One blocking, authenticated connection, for clients that have nothing else to wait for.

One thread may send while another receives. Owns: its socket. Holds: a channel that failed in the
middle of a message is closed, since nobody could find the next message's beginning.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

from edl.errors import PeerError, TimedOut
from edl.types import Address
from edl.wire.codec import Codec
from edl.wire.hello import Hello
from edl.wire.stream import MAX_FRAME, FrameReader, dialled_itself, frame, reason, tune
from edl.wire.tls import SealedHello, Tls, introduce

__all__ = ["Channel"]

CHUNK_BYTES = 64 * 1024


class Channel:
    """Connects and proves the secret when made; PeerError or WrongSecret when it cannot."""

    def __init__(
        self,
        address: Address,
        *,
        job: str,
        secret: bytes,
        codec: Codec,
        timeout_s: float = 5.0,
        max_frame: int = MAX_FRAME,
        tls: Tls | None = None,
    ) -> None:
        self.name = str(address)
        self._codec = codec
        self._timeout_s = timeout_s
        self._max_frame = max_frame
        self._reader = FrameReader(max_frame)
        self._inbox: deque[object] = deque()
        self._sending = threading.Lock()
        self._receiving = threading.Lock()
        self._closed = False
        hello = introduce("dial", job=job, secret=secret, tls=tls)
        self._sock = _connected(address, hello, timeout_s)
        self._cipher = hello.cipher
        if hello.rest:
            self._take(hello.rest, sealed=False)

    def send(self, message: object) -> None:
        """Returns when the kernel has all of it. PeerError when closed, or not taken in time."""
        whole = frame(self._codec.encode(message), max_frame=self._max_frame)
        deadline = time.monotonic() + self._timeout_s
        with self._sending:
            # Sealed here, for records must leave in the order in which they were sealed.
            data = memoryview(whole if self._cipher is None else self._cipher.seal(whole))
            while data:
                self._check_open()
                try:
                    data = data[self._sock.send(data) :]
                except BlockingIOError:
                    if not self._wait(select.POLLOUT, deadline):
                        self._shut()
                        raise PeerError(
                            f"{self.name} took no data for {self._timeout_s} s; closed"
                        ) from None
                except OSError as error:
                    raise PeerError(f"lost {self.name}: {reason(error)}") from error

    def receive(self, timeout_s: float | None) -> object:
        """The next message; None waits for ever. TimedOut leaves the channel usable."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._receiving:
            while not self._inbox:
                self._check_open()
                if not self._wait(select.POLLIN, deadline):
                    raise TimedOut(f"{self.name} sent nothing for {timeout_s} s")
                self._read()
            return self._inbox.popleft()

    def close(self) -> None:
        """Any thread; one that waits in `receive` or `send` gets PeerError."""
        self._shut()
        # The descriptor goes only when nobody waits on it, for its number may be used again.
        with self._receiving, self._sending:
            self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerError(f"lost {self.name}: {reason(error)}") from error
        if not chunk:
            self._check_open()
            raise PeerError(f"{self.name} closed the connection")
        self._take(chunk)

    def _take(self, chunk: bytes, *, sealed: bool = True) -> None:
        try:
            plain = self._cipher.open(chunk) if sealed and self._cipher is not None else chunk
            for payload in self._reader.feed(plain):
                self._inbox.append(self._codec.decode(payload))
        except PeerError:
            self._shut()
            raise

    def _wait(self, event: int, deadline: float | None) -> bool:
        """Whether the socket became ready; also true when it failed or was shut."""
        poll = select.poll()
        poll.register(self._sock, event)
        if deadline is None:
            return bool(poll.poll())
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))

    def _check_open(self) -> None:
        if self._closed:
            raise PeerError(f"the channel to {self.name} is closed")

    def _shut(self) -> None:
        self._closed = True
        # It may not be connected any more.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)


def _connected(address: Address, hello: Hello | SealedHello, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    try:
        sock = socket.create_connection((address.host, address.port), timeout_s)
    except (OSError, OverflowError, UnicodeError) as error:
        raise PeerError(f"cannot connect to {address}: {reason(error)}") from error
    try:
        if dialled_itself(sock):
            raise PeerError(f"cannot connect to {address}: nobody listens there")
        tune(sock)
        hello.bind_address(sock)
        _greet(sock, hello, deadline)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise PeerError(f"no handshake with {address}: {reason(error)}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def _greet(sock: socket.socket, hello: Hello | SealedHello, deadline: float) -> None:
    sock.sendall(hello.greeting)
    while not hello.done:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left)
        chunk = sock.recv(hello.wanted)
        if not chunk:
            raise ConnectionError("the other side closed the connection")
        try:
            sock.sendall(hello.feed(chunk))
        except PeerError:
            sock.sendall(hello.last_words)
            raise
