"""The connections of a dead group are broken, and nothing else of the process is touched."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.collective.sockets import break_connections


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket, int]]:
    """Both ends of a connection, and the port that one of them listened on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as near:
            far, _ = server.accept()
            with far:
                yield near, far, port


def test_only_the_connections_of_these_ports_are_broken() -> None:
    with connected() as (doomed, _, port), connected() as (spared, other, _):
        assert break_connections({port}) == 2  # both ends are in this process
        assert doomed.recv(1) == b""
        spared.sendall(b"x")
        assert other.recv(1) == b"x"


def test_a_listening_socket_is_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert break_connections({port}) == 0
        with socket.create_connection(("127.0.0.1", port)):
            server.accept()[0].close()


def test_breaking_leaves_no_descriptors_behind(tmp_path: Path) -> None:
    """Files, pipes and the like are looked at too; a worker lives through many failures."""
    with connected() as (_, _, port), (tmp_path / "file").open("w"):
        ends = os.pipe()
        try:
            before = sorted(os.listdir("/proc/self/fd"))
            for _ in range(3):
                break_connections({port})
            assert sorted(os.listdir("/proc/self/fd")) == before
        finally:
            for end in ends:
                os.close(end)


@pytest.mark.parametrize("ports", [set(), {1}])
def test_no_port_no_break(ports: set[int]) -> None:
    with connected() as (near, far, _):
        assert break_connections(ports) == 0
        near.sendall(b"x")
        assert far.recv(1) == b"x"
