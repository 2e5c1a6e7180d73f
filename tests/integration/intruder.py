"""A stranger that takes a rank's place in a Gloo group, as any local user can.

Gloo assigns an incoming connection to the pair whose number the connector sends (8 bytes), and the
first connection with a number wins. The stranger needs neither the job's secret nor its user: it
finds listening ports in /proc/net/tcp. An `Intruder` opens at most `limit` connections, keeps all
bytes that it receives, and closes everything on `close`.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Intruder", "listeners_of", "port_in"]

LISTEN = "0A"
# A worker has fewer pairs than this in any group of the tests.
PAIRS = 4


def port_in(value: bytes) -> int:
    """The loopback port in a rendezvous value."""
    found = re.search(struct.pack("=H", socket.AF_INET) + b"(..)\x7f\0\0\1", value, re.DOTALL)
    assert found is not None, value
    port: int = struct.unpack(">H", found.group(1))[0]
    return port


def listeners_of(pids: Iterable[int]) -> set[int]:
    """The loopback ports that these processes listen on; other jobs are to be left alone."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process ended
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):  # the descriptor was closed
                    inodes.add(os.readlink(entry.path))
    ports = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        host, _, port = fields[1].partition(":")
        if fields[3] == LISTEN and host == "0100007F" and f"socket:[{fields[9]}]" in inodes:
            ports.add(int(port, 16))
    return ports


class Intruder:
    """Connections that pretend to be honest ranks, and every byte that was sent to them."""

    def __init__(self, *, limit: int = 200) -> None:
        self._limit = limit
        self._socks: list[socket.socket] = []
        self._received: dict[socket.socket, bytearray] = {}
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def take_places(self, port: int) -> None:
        """Connect to a listener once for each of the first pair numbers."""
        for number in range(PAIRS):
            with self._lock:
                if len(self._socks) >= self._limit:
                    return
            try:
                sock = socket.create_connection(("127.0.0.1", port), 1.0)
                sock.sendall(struct.pack("=q", number))
            except OSError:
                return  # the listener was closed
            sock.settimeout(None)
            with self._lock:
                self._socks.append(sock)
                self._received[sock] = bytearray()
            reader = threading.Thread(target=self._read, args=(sock,), daemon=True)
            self._readers.append(reader)
            reader.start()

    def _read(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := sock.recv(1 << 16):
                with self._lock:
                    self._received[sock] += data

    def received(self) -> list[bytes]:
        """The bytes that each connection received; connections without any are left out."""
        with self._lock:
            return [bytes(data) for data in self._received.values() if data]

    def close(self) -> None:
        with self._lock:
            socks = list(self._socks)
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for reader in self._readers:
            reader.join(5.0)
        for sock in self._socks:
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
