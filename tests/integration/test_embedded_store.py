"""The embedded store when its server goes, comes back, is foreign, or shares its port.

Also the channel beneath its client.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from edl.errors import PeerError, StoreError, TimedOut, UsageError
from edl.store.base import Versioned, open_store
from edl.store.embedded import MESSAGES, EmbeddedServer, EmbeddedService, EmbeddedStore
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.hub import Hub, Peer

JOB, SECRET = "embedded", b"s3cret"
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    request_id: int


PINGS = Codec([Ping])


class Seen:
    """A notification that remembers, and lets a test wait for what it expects."""

    def __init__(self) -> None:
        self.all: list[Versioned] = []
        self._changed = threading.Condition()

    def __call__(self, news: Versioned) -> None:
        with self._changed:
            self.all.append(news)
            self._changed.notify_all()

    def wait_until(self, holds: Callable[[list[Versioned]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.all), PATIENCE_S), self.all


def test_a_client_and_its_watch_survive_a_restart_of_the_server() -> None:
    first = EmbeddedServer(job=JOB, secret=SECRET)
    first.start()
    store, seen = EmbeddedStore(first.address, job=JOB, secret=SECRET), Seen()
    old = store.compare_and_swap("leader", expected=0, value=b"old").current
    store.watch("leader", seen)
    seen.wait_until(lambda all: all == [old])
    first.stop()

    second = EmbeddedServer(job=JOB, secret=SECRET, port=first.address.port)
    with second:
        assert second.address == first.address
        # The new server starts empty, and the watch says so without being asked.
        seen.wait_until(lambda all: all[-1] == Versioned(None, 0))
        assert store.get("leader") == Versioned(None, 0)
        # What was known of the old server cannot be mistaken for the new one's.
        assert not store.compare_and_swap("leader", expected=old.revision, value=b"late").done
        new = store.compare_and_swap("leader", expected=0, value=b"new")
        assert new.done
        assert new.current.revision > old.revision
        seen.wait_until(lambda all: all[-1] == new.current)
        store.close()


def test_a_call_that_began_in_an_outage_is_answered_by_the_server_that_comes() -> None:
    early = EmbeddedServer(job=JOB, secret=SECRET)
    address = early.address
    early.stop()
    store = EmbeddedStore(address, job=JOB, secret=SECRET, timeout_s=PATIENCE_S)
    results: list[Versioned] = []
    caller = threading.Thread(target=lambda: results.append(store.get("a")))
    caller.start()
    with EmbeddedServer(job=JOB, secret=SECRET, port=address.port):
        caller.join(PATIENCE_S)
        assert results == [Versioned(None, 0)]
        store.close()


def test_a_call_in_an_outage_fails_after_its_time_and_says_why() -> None:
    server = EmbeddedServer(job=JOB, secret=SECRET)
    server.stop()
    store = EmbeddedStore(server.address, job=JOB, secret=SECRET, timeout_s=0.2)
    began = time.monotonic()
    with pytest.raises(StoreError, match=f"{server.address} is unreachable: .*refused"):
        store.get("a")
    assert 0.2 <= time.monotonic() - began < PATIENCE_S
    with pytest.raises(StoreError, match="unreachable"):
        store.watch("a", lambda news: None)
    store.close()


def test_a_wrong_secret_is_told_without_waiting() -> None:
    with EmbeddedServer(job=JOB, secret=SECRET) as server:
        store = EmbeddedStore(server.address, job=JOB, secret=b"wrong", timeout_s=600.0)
        with pytest.raises(StoreError, match="could not prove the secret"):
            store.get("a")
        store.close()


def test_a_server_that_accepts_but_never_answers_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        store = EmbeddedStore(address, job=JOB, secret=SECRET, timeout_s=0.2)
        with pytest.raises(StoreError, match="unreachable"):
            store.get("a")
        store.close()


def test_a_swap_under_way_when_the_server_goes_is_told_to_be_unknown() -> None:
    arrived = threading.Event()
    mute = Hub(
        name="mute",
        job=JOB,
        secret=SECRET,
        codec=Codec(MESSAGES),
        on_message=lambda peer, message: arrived.set(),
    )
    address = mute.listen("127.0.0.1")
    mute.start()
    store = EmbeddedStore(address, job=JOB, secret=SECRET, timeout_s=PATIENCE_S)
    errors: list[StoreError] = []

    def swap() -> None:
        try:
            store.compare_and_swap("a", expected=0, value=b"x")
        except StoreError as error:
            errors.append(error)

    caller = threading.Thread(target=swap)
    caller.start()
    assert arrived.wait(PATIENCE_S)
    mute.stop()
    caller.join(PATIENCE_S)
    assert "may or may not have been done" in str(errors[0])
    store.close()


def test_a_call_waiting_when_the_client_is_closed_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        store = EmbeddedStore(address, job=JOB, secret=SECRET, timeout_s=600.0)
        errors: list[StoreError] = []
        began = threading.Event()

        def get() -> None:
            began.set()
            try:
                store.get("a")
            except StoreError as error:
                errors.append(error)

        caller = threading.Thread(target=get)
        caller.start()
        assert began.wait(PATIENCE_S)
        with mute.accept()[0]:
            store.close()
            caller.join(PATIENCE_S)
        assert "closed" in str(errors[0])


def test_the_service_shares_a_port_with_other_messages() -> None:
    codec = PINGS.extended(MESSAGES)

    def on_message(peer: Peer, message: object) -> None:
        if service.handles(message):
            service.on_message(peer, message)
        else:
            hub.send(peer, message)

    hub = Hub(
        name="launcher",
        job=JOB,
        secret=SECRET,
        codec=codec,
        on_message=on_message,
        on_closed=lambda peer, why: service.on_closed(peer),
        on_tick=lambda: service.on_tick(),
    )
    service = EmbeddedService(hub.send)
    address = hub.listen("127.0.0.1")
    hub.start()
    store = open_store(f"edl://{address}", job=JOB, secret=SECRET)
    assert store.compare_and_swap("a", expected=0, value=b"x").done
    with Channel(address, job=JOB, secret=SECRET, codec=codec) as channel:
        channel.send(Ping(request_id=5))
        assert channel.receive(PATIENCE_S) == Ping(request_id=5)
    store.close()
    hub.stop()


def test_a_taken_port_is_named() -> None:
    server = EmbeddedServer(job=JOB, secret=SECRET)
    with server, pytest.raises(UsageError, match=str(server.address.port)):
        EmbeddedServer(job=JOB, secret=SECRET, port=server.address.port)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1", "127.0.0.1:1", "", "edl:127.0.0.1:1"])
def test_an_unknown_kind_of_store_is_told_what_is_known(url: str) -> None:
    with pytest.raises(UsageError, match="edl://HOST:PORT"):
        open_store(url, job=JOB, secret=SECRET)


@pytest.mark.parametrize("url", ["edl://", "edl://host", "edl://host:port", "edl://h:99999"])
def test_a_url_without_an_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        open_store(url, job=JOB, secret=SECRET)


@pytest.fixture
def echo() -> Iterator[Address]:
    """A hub that sends every message back."""
    hub = Hub(
        name="echo",
        job=JOB,
        secret=SECRET,
        codec=PINGS,
        on_message=lambda peer, message: hub.send(peer, message),
    )
    address = hub.listen("127.0.0.1")
    hub.start()
    yield address
    hub.stop()


def dial(address: Address, timeout_s: float = PATIENCE_S) -> Channel:
    return Channel(address, job=JOB, secret=SECRET, codec=PINGS, timeout_s=timeout_s)


def test_a_channel_that_hears_nothing_times_out_and_stays_usable(echo: Address) -> None:
    with dial(echo) as channel:
        with pytest.raises(TimedOut):
            channel.receive(0.01)
        channel.send(Ping(request_id=1))
        assert channel.receive(None) == Ping(request_id=1)


def test_a_channel_closed_by_another_thread_wakes_the_reader(echo: Address) -> None:
    channel = dial(echo)
    errors: list[BaseException] = []
    began = threading.Event()

    def receive() -> None:
        began.set()
        try:
            channel.receive(None)
        except PeerError as error:
            errors.append(error)

    reader = threading.Thread(target=receive)
    reader.start()
    assert began.wait(PATIENCE_S)
    channel.close()
    reader.join(PATIENCE_S)
    assert "is closed" in str(errors[0])
    with pytest.raises(PeerError):
        channel.send(Ping(request_id=1))


def test_a_channel_to_nobody_says_where() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = Address(*gone.getsockname()[:2])
    with pytest.raises(PeerError, match=f"cannot connect to {address}: Connection refused"):
        dial(address)


def test_a_channel_to_a_stranger_gives_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        with pytest.raises(PeerError, match="no handshake"):
            dial(address, timeout_s=0.1)
