"""The connections of one group: found, counted, and broken so that a thread that waits wakes.

Gloo has no call to interrupt a collective: a blocked thread waits for the group's own timeout, and
only ring neighbours notice a death. Shutting down the group's connected sockets wakes it at once.
A group's sockets are told from all others of the process by the address and port of its members'
listeners, which are in the values that Gloo publishes at the rendezvous. An address is needed, not
a port alone: other hosts use the same port numbers for connections of their own. Holds: listening
sockets are left alone, because Gloo ends the process when one fails.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterator, Set
from pathlib import Path

from edl.errors import BuildFailed

__all__ = [
    "Endpoint",
    "break_connections",
    "break_dials",
    "close_listeners",
    "connecting_to",
    "connections",
    "endpoint_in",
]

# An IP address as the kernel prints it, without a scope, and a port.
Endpoint = tuple[str, int]

LENGTH = struct.Struct("=Q")
# Of the kernel's headers, absent from Python's socket module.
SO_ATTACH_FILTER = 26
BPF_RETURN_CONSTANT = 0x06
# The state of a socket whose peer has not answered yet, in /proc/net/tcp.
SYN_SENT = "02"
# Gloo's address: a sockaddr_storage, and the number of a pair.
ADDRESS_BYTES = 128 + 8


def endpoint_in(value: bytes) -> Endpoint:
    """Where the member that published this rendezvous value listens.

    The value is the length of a host name, the name, the length of an address, the address, and
    one number for each pair. BuildFailed if it is not: the group could never be broken.
    """
    try:
        (name,) = LENGTH.unpack_from(value)
        (size,) = LENGTH.unpack_from(value, LENGTH.size + name)
        start = 2 * LENGTH.size + name
        if size != ADDRESS_BYTES or len(value) < start + size:
            raise ValueError(f"an address of {size} bytes, expected {ADDRESS_BYTES}")
        family, port = struct.unpack("=H", value[start : start + 2])[0], value[start + 2 :][:2]
        if family == socket.AF_INET:
            host = socket.inet_ntop(family, value[start + 4 : start + 8])
        elif family == socket.AF_INET6:
            host = socket.inet_ntop(family, value[start + 8 : start + 24])
        else:
            raise ValueError(f"an address of family {family}, expected IPv4 or IPv6")
    except (ValueError, struct.error, OverflowError) as error:
        raise BuildFailed(
            "this torch publishes Gloo addresses in a layout that EDL does not know "
            f"({error}; {len(value)} bytes); install torch>=2.13,<2.14"
        ) from error
    return host, struct.unpack(">H", port)[0]


def close_listeners(endpoints: Set[Endpoint]) -> int:
    """Let the kernel drop every new connection to these listeners of this process.

    A group has all its connections once it is built, but Gloo goes on accepting, keeps whatever
    connects, and ends the process when it has no descriptor left for that. The listening socket
    itself must stay. Returns how many listeners were found.
    """
    # A classic BPF program of one instruction: return 0, accept no byte of the packet.
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", BPF_RETURN_CONSTANT, 0, 0, 0))
    program = struct.pack("@HP", 1, ctypes.addressof(instruction))
    closed = 0
    for sock in _internet_sockets():
        with contextlib.suppress(OSError):  # it was closed, or the kernel has no socket filters
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and _endpoint(sock.getsockname()) in endpoints:
                sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
                closed += 1
    return closed


def connections() -> list[tuple[Endpoint, Endpoint]]:
    """This end and the other end of every TCP connection of this process."""
    return [ends for _, ends in _connected()]


def connecting_to() -> set[Endpoint]:
    """The other ends of this process's TCP connections that have had no answer yet."""
    return set(_unanswered().values())


def break_dials(endpoints: Set[Endpoint]) -> None:
    """Let connections to these that have had no answer yet fail now."""
    dials = _unanswered()
    for name in os.listdir("/proc/self/fd") if dials else ():
        sock = _copy_of(int(name))
        if sock is None:
            continue
        with contextlib.closing(sock):
            if dials.get(os.fstat(sock.fileno()).st_ino) in endpoints:
                with contextlib.suppress(OSError):  # it was answered meanwhile
                    sock.shutdown(socket.SHUT_RDWR)


def _unanswered() -> dict[int, Endpoint]:
    """The sockets of this process that wait for an answer, by inode, and to whom they connect."""
    own = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            own.add(os.readlink(f"/proc/self/fd/{name}"))
    found = {}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
            for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == SYN_SENT and f"socket:[{fields[9]}]" in own:
                    found[int(fields[9])] = _endpoint_of_table(fields[2], family)
    return found


def _endpoint_of_table(text: str, family: int) -> Endpoint:
    """The kernel prints an address as hexadecimal words in the machine's byte order."""
    address, _, port = text.partition(":")
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words)), int(port, 16)


def break_connections(endpoints: Set[Endpoint]) -> int:
    """Shut down every connection of this process that has one of these at either end."""
    broken = 0
    for sock, ends in _connected():
        if not endpoints.isdisjoint(ends):
            with contextlib.suppress(OSError):  # the other side was faster
                sock.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def _connected() -> Iterator[tuple[socket.socket, tuple[Endpoint, Endpoint]]]:
    """Copies of the process's connected sockets, valid until the next one is taken."""
    for sock in _internet_sockets():
        try:
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            ends = _endpoint(sock.getsockname()), _endpoint(sock.getpeername())
        except OSError:
            continue  # not connected, or not any more
        yield sock, ends


def _internet_sockets() -> Iterator[socket.socket]:
    """Copies of the process's IPv4 and IPv6 sockets, valid until the next one is taken."""
    for name in os.listdir("/proc/self/fd"):
        sock = _copy_of(int(name))
        if sock is None:
            continue
        with contextlib.closing(sock):
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                yield sock


def _endpoint(name: tuple[str, int] | tuple[str, int, int, int]) -> Endpoint:
    return name[0].partition("%")[0], name[1]


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
