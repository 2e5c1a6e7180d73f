"""Conversations that no honest neighbour holds, for tests and for `bench/fuzz.py`.

Each is one connection to one port. Whoever holds it may know nothing, or have listened to an honest
conversation, or know the job's name; only `insider` knows the secret, and stands for a worker with
a bug. Holds: a conversation ends by itself within seconds, whatever the port does.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from edl.types import Address
from edl.wire.hello import GREETING, HELLO_BYTES, MAGIC, NONCE_BYTES, Hello

__all__ = ["KINDS", "Kind", "Target", "greeting_of", "record", "speak"]

PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A port, and what is known about it."""

    address: Address
    job: str
    secret: bytes
    recording: bytes  # all that an honest dialler once said


def opened(address: Address) -> socket.socket:
    sock = socket.create_connection((address.host, address.port), PATIENCE_S)
    sock.settimeout(PATIENCE_S)
    return sock


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := sock.recv(size - len(data))):
        data += part
    return data


def greeting_of(address: Address) -> bytes:
    """The first bytes a port says unasked; empty if it says nothing in half a second.

    A collective's listener does not even accept once its group is built.
    """
    try:
        sock = socket.create_connection((address.host, address.port), 0.5)
    except TimeoutError:
        return b""
    with sock:
        try:
            return read(sock, GREETING.size)
        except OSError:
            return b""


def prove(sock: socket.socket, job: str, secret: bytes) -> bytes:
    """An honest handshake; returns what this side said."""
    hello = Hello("dial", job=job, secret=secret, nonce=secrets.token_bytes(NONCE_BYTES))
    hello.bind_address(sock)
    said = hello.greeting
    sock.sendall(hello.greeting)
    while not hello.done:
        data = sock.recv(hello.wanted)
        if not data:
            raise ConnectionError("the port closed an honest handshake")
        answer = hello.feed(data)
        sock.sendall(answer)
        said += answer
    return said


def record(address: Address, job: str, secret: bytes) -> bytes:
    """What one who listens on the way hears from an honest dialler."""
    with opened(address) as sock:
        said = prove(sock, job, secret)
        body = struct.pack(">I", 12) + b"\x08StoreGet\x80\x80\x80"
        sock.sendall(body)
        return said + body


def drain(sock: socket.socket) -> None:
    """Hear the port out until it closes: it must, and soon."""
    with contextlib.suppress(ConnectionError):
        while sock.recv(65536):
            pass


# --- the kinds ---


def garbage(sock: socket.socket, target: Target, dice: random.Random) -> None:
    sock.sendall(dice.randbytes(dice.choice((1, 7, 58, 90, 4096, 70_000))))


def almost_magic(sock: socket.socket, target: Target, dice: random.Random) -> None:
    sock.sendall(MAGIC[: dice.randrange(len(MAGIC) + 1)] + dice.randbytes(dice.randrange(200)))


def truncated(sock: socket.socket, target: Target, dice: random.Random) -> None:
    sock.sendall(target.recording[: dice.randrange(len(target.recording))])
    if dice.random() < 0.5:
        sock.shutdown(socket.SHUT_WR)


def replayed(sock: socket.socket, target: Target, dice: random.Random) -> None:
    sock.sendall(target.recording)


def flipped(sock: socket.socket, target: Target, dice: random.Random) -> None:
    data = bytearray(target.recording)
    for _ in range(dice.randrange(1, 5)):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    sock.sendall(data)


def half_proven(sock: socket.socket, target: Target, dice: random.Random) -> None:
    """The right greeting, which anybody can copy from the port's own, and a guessed proof."""
    theirs = read(sock, GREETING.size)
    sock.sendall(theirs[: -NONCE_BYTES or None] + dice.randbytes(NONCE_BYTES))
    sock.sendall(dice.randbytes(HELLO_BYTES - GREETING.size))


def mirrored(sock: socket.socket, target: Target, dice: random.Random) -> None:
    """Whatever the port says is said back to it."""
    sock.sendall(read(sock, GREETING.size))
    sock.sendall(read(sock, HELLO_BYTES - GREETING.size))


def oversized(sock: socket.socket, target: Target, dice: random.Random) -> None:
    """A frame of 4 GB is announced, and some of it sent, before any proof."""
    sock.sendall(target.recording[: GREETING.size])
    sock.sendall(struct.pack(">I", 0xFFFFFFFF) + dice.randbytes(300_000))


def insider(sock: socket.socket, target: Target, dice: random.Random) -> None:
    """Proves the secret, and then sends frames that mean nothing or never end."""
    prove(sock, target.job, target.secret)
    size = dice.choice((0, 1, 20, 3000))
    body = dice.randbytes(size)
    lie = dice.choice((size, size, size + 5, 0x7FFFFFFF))
    sock.sendall(struct.pack(">I", lie) + body)
    sock.shutdown(socket.SHUT_WR)


def gone(sock: socket.socket, target: Target, dice: random.Random) -> None:
    """A reset in the middle of anything."""
    sock.sendall(target.recording[: dice.randrange(len(target.recording))])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


Kind = Callable[[socket.socket, Target, random.Random], None]
KINDS: tuple[Kind, ...] = (
    garbage,
    almost_magic,
    truncated,
    replayed,
    flipped,
    half_proven,
    mirrored,
    oversized,
    insider,
    gone,
)


def speak(kind: Kind, target: Target, seed: int, *, hear_out: bool = True) -> None:
    """Hold one such conversation. A port that closes early is doing what it should.

    Without `hear_out` the connection is dropped when all is said.
    """
    with opened(target.address) as sock:
        try:
            kind(sock, target, random.Random(seed))
            if hear_out and sock.fileno() >= 0:
                drain(sock)
        except OSError:
            return  # reset, out of time, or closed before we were
