"""A watchdog alone, with a real process, connections and stores, in place of a whole job."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from edl.protocol.election import LEADER_KEY, write_leader
from edl.protocol.messages import MESSAGES, Alive
from edl.runtime.heartbeats import Charge
from edl.runtime.watchdog import Watchdog
from edl.store.base import Store, open_store
from edl.store.embedded import EmbeddedServer
from edl.types import Address, WorkerId
from edl.wire.codec import Codec
from edl.wire.hub import Hub
from tests.contract.servers import Etcd, free_port, until

JOB, SECRET = "guarded", b"s3cret"
HOST = "127.0.0.1"
RECONNECT_S = 2.0


class Leader:
    """Listens, and writes down when each heartbeat came."""

    def __init__(self) -> None:
        self.heard: list[float] = []
        self.hub = Hub(
            name="test-leader",
            job=JOB,
            secret=SECRET,
            codec=Codec(MESSAGES),
            on_message=self._on_message,
        )
        self.address = self.hub.listen(HOST)
        self.hub.start()

    def _on_message(self, peer: object, message: object) -> None:
        assert message == Alive(worker=WorkerId("w2"), generation=0)
        self.heard.append(time.monotonic())


@pytest.fixture
def leader() -> Iterator[Leader]:
    made = Leader()
    yield made
    made.hub.stop()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(job=JOB, secret=SECRET) as made:
        yield made


@pytest.fixture
def dark() -> Iterator[tuple[Address, ...]]:
    """Hosts that take connections and never say anything."""
    listeners = [socket.create_server((HOST, 0)) for _ in range(3)]
    yield tuple(Address(*each.getsockname()[:2]) for each in listeners)
    for each in listeners:
        each.close()


Guard = Callable[..., Watchdog]


@pytest.fixture
def guard() -> Iterator[Guard]:
    """Starts watchdogs of this very process, which is running."""
    made: list[Watchdog] = []

    def begin(store: str, *, lease_s: float = 1.5) -> Watchdog:
        charge = Charge(
            job=JOB,
            worker="w2",
            pid=os.getpid(),
            secret=SECRET.hex(),
            store=store,
            lease="w2-lease",
            lease_s=lease_s,
            silence_s=4.0,
            reconnect_s=RECONNECT_S,
            unresponsive_s=60.0,
        )
        made.append(Watchdog(charge))
        made[-1].start()
        return made[-1]

    yield begin
    for each in made:
        each.stop()


def client(url: str) -> Store:
    return open_store(url, job=JOB, secret=SECRET)


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_a_host_that_does_not_answer_delays_neither_heartbeats_nor_the_lease(
    guard: Guard, server: EmbeddedServer, leader: Leader, dark: tuple[Address, ...]
) -> None:
    store = client(server.url)
    store.keep_alive("w2-lease", 10.0)
    assert store.compare_and_swap("mine", expected=0, value=b"w2", lease="w2-lease").done
    dog = guard(server.url)
    dog.beat(time.monotonic(), lambda: (*dark, leader.address), leads=True)
    until(lambda: len(leader.heard) >= 10, "heartbeats")
    assert max(gaps(leader.heard)) < 1.0
    assert store.get("mine").value == b"w2"
    store.close()


def test_the_next_leader_hears_the_watchdog_before_it_gives_the_worker_up(
    guard: Guard, server: EmbeddedServer, leader: Leader
) -> None:
    gone = Address(HOST, free_port())
    dog = guard(server.url)
    dog.beat(time.monotonic(), lambda: (gone,), leads=False)
    store = client(server.url)
    named = write_leader(WorkerId("w1"), leader.address)
    # The watchdog process has started, read its charge and the one heartbeat, and speaks.
    assert store.compare_and_swap(LEADER_KEY, expected=0, value=named).done
    until(lambda: bool(leader.heard), "the first heartbeat")
    # While it speaks, it notices a change of office at once.
    last = Leader()
    at = time.monotonic()
    revision = store.get(LEADER_KEY).revision
    named = write_leader(WorkerId("w3"), last.address)
    assert store.compare_and_swap(LEADER_KEY, expected=revision, value=named).done
    until(lambda: bool(last.heard), "a heartbeat at the one after it")
    assert last.heard[0] - at < RECONNECT_S / 2
    last.hub.stop()
    store.close()


def test_a_watchdog_that_fell_silent_does_not_revoke_the_lease(
    guard: Guard, leader: Leader, tmp_path: Path
) -> None:
    """etcd does not know its shorter time: its client would end the lease by itself."""
    lease_s = 1.2
    with Etcd(tmp_path / "etcd") as etcd:
        store = client(etcd.url)
        store.keep_alive("w2-lease", 60.0)
        assert store.compare_and_swap("mine", expected=0, value=b"w2", lease="w2-lease").done
        dog = guard(etcd.url, lease_s=lease_s)
        dog.beat(time.monotonic(), lambda: (leader.address,), leads=True)
        until(lambda: len(leader.heard) >= 10, "heartbeats")
        # The agent runs again.
        end = time.monotonic() + 2 * lease_s
        while time.monotonic() < end:
            dog.beat(time.monotonic(), lambda: (leader.address,), leads=True)
            store.keep_alive("w2-lease", 60.0)
            threading.Event().wait(0.1)
        assert store.get("mine").value == b"w2"
        store.close()


class SlowPipe:
    """A pipe's end. Another thread calls `stop` just when its descriptor is looked up."""

    def __init__(self, dog: Watchdog) -> None:
        self._read, self._write = os.pipe()
        self._closed = False
        self._stopping = threading.Thread(target=dog.stop)

    def fileno(self) -> int:
        self._stopping.start()
        self._stopping.join(0.2)
        if self._closed:
            raise ValueError("I/O operation on closed file")
        return self._write

    def close(self) -> None:
        self._closed = True
        os.close(self._write)

    def check(self) -> None:
        self._stopping.join()
        assert self._closed
        assert os.read(self._read, 100)
        os.close(self._read)


def test_a_heartbeat_and_the_end_of_the_watchdog_do_not_meet(
    guard: Guard, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    dog = guard(server.url)
    process = dog._process
    assert isinstance(process, subprocess.Popen)
    assert process.stdin is not None
    process.stdin.close()
    pipe = SlowPipe(dog)
    monkeypatch.setattr(process, "stdin", pipe)
    dog.beat(time.monotonic(), tuple, leads=False)
    pipe.check()
