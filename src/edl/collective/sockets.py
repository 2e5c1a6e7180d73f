"""Breaks the connections of one group, so that whoever waits in it wakes.

Gloo has no call for that: a thread blocked in a collective waits for the group's own timeout, and
only ring neighbours notice a death. Shutting the group's connected sockets wakes it at once. Owns:
how a group's sockets are told from all others of the process: by the ports its members listen on,
which are in what they pin to the rendezvous. Holds: listening sockets are left alone, for Gloo ends
the process when one fails.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct

__all__ = ["break_connections", "ports_in"]


def ports_in(value: bytes, bind: str) -> set[int]:
    """The ports of this address in a rendezvous value."""
    six = ":" in bind
    family = socket.AF_INET6 if six else socket.AF_INET
    try:
        address = socket.inet_pton(family, bind)
    except OSError:
        return set()  # a name; rendezvous values hold numbers, and members are known by these
    between = rb".{4}" if six else b""
    pattern = struct.pack("=H", family) + rb"(..)" + between + re.escape(address)
    found = re.finditer(pattern, value, re.DOTALL)
    return {struct.unpack(">H", match.group(1))[0] for match in found}


def break_connections(ports: set[int]) -> int:
    """Shut every connected socket of this process that has one of these ports at either end."""
    broken = 0
    for name in os.listdir("/proc/self/fd"):
        sock = _copy_of(int(name))
        if sock is None:
            continue
        with contextlib.closing(sock), contextlib.suppress(OSError):
            if sock.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            if {sock.getsockname()[1], sock.getpeername()[1]} & ports:
                sock.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def _copy_of(descriptor: int) -> socket.socket | None:
    """The same socket once more: the descriptor itself stays Gloo's, open or not."""
    try:
        copy = os.dup(descriptor)
    except OSError:
        return None  # it was closed meanwhile
    try:
        return socket.socket(fileno=copy)
    except OSError:
        # No socket. Left open, the copies of a process's files would double with every failure.
        os.close(copy)
        return None
