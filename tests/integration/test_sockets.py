"""The connections of a dead group are broken, and nothing else of the process is touched."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl.collective import gloo
from edl.collective.rank_value import own_key
from edl.collective.sockets import Endpoint, break_connections, connecting_to, endpoint_in
from edl.errors import BuildFailed
from edl.runtime.board import Board, Entry
from edl.runtime.framework import BuildOptions
from tests.contract.servers import until
from tests.integration.rings import build_ring, generation_of, members


@contextlib.contextmanager
def connected(
    host: str = "127.0.0.1", port: int = 0
) -> Iterator[tuple[socket.socket, socket.socket, Endpoint]]:
    """Both ends of a connection, and where one of them listened."""
    with socket.create_server((host, port)) as server:
        where = server.getsockname()
        with socket.create_connection(where) as near:
            far, _ = server.accept()
            with far:
                yield near, far, where


def test_only_the_connections_of_these_listeners_are_broken() -> None:
    with connected() as (doomed, _, where), connected() as (spared, other, _):
        assert break_connections({where}) == 2  # both ends are in this process
        assert doomed.recv(1) == b""
        spared.sendall(b"x")
        assert other.recv(1) == b"x"


@contextlib.contextmanager
def unanswering(host: str = "127.0.0.1") -> Iterator[Endpoint]:
    """A port whose packets are dropped: its queue of connections is full, and nobody accepts."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server((host, 0), backlog=0))
        where: Endpoint = server.getsockname()
        while where not in connecting_to():
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(where)
        yield where


def test_a_connection_that_nobody_answers_is_known_by_its_other_end() -> None:
    with unanswering() as silent, connected() as (_, _, answered):
        found = connecting_to()
        assert silent in found
        assert answered not in found
    until(lambda: silent not in connecting_to(), "the connections to be closed", 5.0)


def test_a_peer_that_never_answers_is_named_within_the_time_limit() -> None:
    """Gloo waits five times its timeout for a connection, and does not say to whom."""
    limit_s = 2.0
    with unanswering() as (host, port):
        generation = generation_of(members(2), newcomers=0)

        def answer(entry: Entry) -> None:
            """The peer's value is like this member's own, but for where it listens."""
            start = len(entry.common) - 136
            address = struct.pack(">H", port) + socket.inet_aton(host)
            value = entry.common[: start + 2] + address + entry.common[start + 8 :] + entry.parts
            board.offer(own_key(entry.group, 1), value)

        board = Board(lambda key, value: None, answer)
        # Of two members the one with the greater address connects to the other.
        options = BuildOptions(
            bind="127.0.0.2", timeout_s=limit_s, proof_timeout_s=limit_s, secret=b"secret"
        )
        began = time.monotonic()
        with pytest.raises(BuildFailed) as failed:
            gloo.build_group(generation, generation.workers()[0], board, options)
        assert failed.value.unreached == ("w1",)
        assert time.monotonic() - began < 2 * limit_s


def test_a_group_that_is_built_takes_no_more_connections() -> None:
    before = listening()
    groups = build_ring(3, newcomers=1)
    listeners = listening() - before
    try:
        assert len(listeners) >= 3
        for where in listeners:
            with pytest.raises(TimeoutError):
                socket.create_connection(where, timeout=0.3)
    finally:
        for group in groups:
            group.drop()


def listening() -> set[Endpoint]:
    """Where this process listens."""
    return {
        (each.laddr.ip, each.laddr.port)
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }


def test_a_listening_socket_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert break_connections({("127.0.0.1", port)}) == 0
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()


def test_breaking_leaves_no_descriptors_behind(tmp_path: Path) -> None:
    """Files, pipes and the like are looked at too; a worker lives through many failures."""
    with connected() as (_, _, where), (tmp_path / "file").open("w"):
        ends = os.pipe()
        try:
            before = sorted(os.listdir("/proc/self/fd"))
            for _ in range(3):
                break_connections({where})
            assert sorted(os.listdir("/proc/self/fd")) == before
        finally:
            for end in ends:
                os.close(end)


@pytest.mark.parametrize("listeners", [set(), {("127.0.0.1", 1)}])
def test_no_listener_no_break(listeners: set[Endpoint]) -> None:
    with connected() as (near, far, _):
        assert break_connections(listeners) == 0
        near.sendall(b"x")
        assert far.recv(1) == b"x"


def test_a_connection_of_another_address_with_an_equal_port_is_left_alone() -> None:
    """Another host's ephemeral ports have the same numbers as our listeners."""
    with connected() as (doomed, _, where), connected("127.0.0.2", where[1]) as (spared, other, _):
        assert break_connections({where}) == 2
        assert doomed.recv(1) == b""
        spared.sendall(b"x")
        assert other.recv(1) == b"x"


def published(address: bytes, *, host: bytes = b"vm", pairs: int = 2) -> bytes:
    """A rendezvous value as torch 2.13 makes it."""
    length = struct.Struct("=Q").pack
    address = address.ljust(128, b"\xcc") + b"\xff" * 8
    numbers = b"".join(length(number) for number in range(pairs))
    return length(len(host)) + host + length(len(address)) + address + numbers


def test_an_endpoint_is_read_from_what_gloo_publishes() -> None:
    four = struct.pack("=H", socket.AF_INET) + struct.pack(">H", 7007) + bytes([10, 0, 0, 9])
    assert endpoint_in(published(four)) == ("10.0.0.9", 7007)
    six = socket.inet_pton(socket.AF_INET6, "fd00::9")
    six = struct.pack("=H", socket.AF_INET6) + struct.pack(">H", 7007) + bytes(4) + six
    assert endpoint_in(published(six, host=b"a-much-longer-name")) == ("fd00::9", 7007)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x" * 7,
        b"\xff" * 200,
        published(struct.pack("=H", socket.AF_UNIX) + b"/tmp/socket"),
        published(struct.pack("=H", socket.AF_INET))[:60],
    ],
)
def test_another_layout_is_refused(value: bytes) -> None:
    with pytest.raises(BuildFailed, match="layout that EDL does not know"):
        endpoint_in(value)


def test_a_group_whose_connections_cannot_be_found_is_not_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if Gloo listened elsewhere than where it says: `break_` would wake nobody."""
    monkeypatch.setattr(gloo, "endpoint_in", lambda value: ("127.0.0.3", endpoint_in(value)[1]))
    with pytest.raises(BuildFailed, match="0 connections of group 'control'"):
        build_ring(2)
