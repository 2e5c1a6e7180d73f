"""The hub and the channel over real loopback sockets, with honest and dishonest neighbours."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pytest

from edl.errors import PeerError, UsageError, WrongSecret
from edl.runtime.descriptors import raise_descriptor_limit
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.door import PAUSE_S
from edl.wire.hub import Hub, Peer
from edl.wire.strangers import MAX_UNPROVEN, default_limit

JOB, SECRET = "hub", b"s3cret"
PATIENCE_S = 10.0
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    request_id: int
    body: bytes


CODEC = Codec([Note])
T = TypeVar("T")


class Owner:
    """One who owns a hub and writes down what it is told. `on_note` may answer."""

    def __init__(self, *, secret: bytes = SECRET, job: str = JOB, **options: Any) -> None:
        self.notes: list[tuple[Peer, Note]] = []
        self.opened: list[Peer] = []
        self.closed: list[tuple[Peer, str]] = []
        self.errors: list[BaseException] = []
        self.on_note: Callable[[Peer, Note], None] = lambda peer, note: None
        self._changed = threading.Condition()
        self.hub = Hub(
            name="test-hub",
            job=job,
            secret=secret,
            codec=CODEC,
            on_message=self._on_message,
            on_open=lambda peer: self._write_down(self.opened.append, peer),
            on_closed=lambda peer, why: self._write_down(self.closed.append, (peer, why)),
            on_error=lambda error: self._write_down(self.errors.append, error),
            **options,
        )

    def _on_message(self, peer: Peer, message: object) -> None:
        assert isinstance(message, Note)
        self._write_down(self.notes.append, (peer, message))
        self.on_note(peer, message)

    def _write_down(self, append: Callable[[T], None], what: T) -> None:
        with self._changed:
            append(what)
            self._changed.notify_all()

    def send_all(self, peer: Peer, notes: list[Note]) -> None:
        for each in notes:
            self.hub.post(partial(self.hub.send, peer, each))

    def wait(self, holds: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, timeout_s), vars(self)

    def wait_opened(self) -> Peer:
        self.wait(lambda: self.opened)
        return self.opened[0]

    def call(self, fn: Callable[[], T]) -> T:
        """Run in the hub's thread and hand back what it returned."""
        future: Future[T] = Future()
        self.hub.post(lambda: future.set_result(fn()))
        return future.result(PATIENCE_S)


Make = Callable[..., Owner]


@pytest.fixture
def owners() -> Iterator[Make]:
    """Makes owners whose hubs are stopped when the test is over."""
    made: list[Owner] = []

    def make(**options: Any) -> Owner:
        made.append(Owner(**options))
        made[-1].hub.start()
        return made[-1]

    yield make
    for owner in made:
        owner.hub.stop()


def note(number: int = 0, body: bytes = b"") -> Note:
    return Note(request_id=number, body=body)


def dial(address: Address, *, job: str = JOB, secret: bytes = SECRET) -> Channel:
    return Channel(address, job=job, secret=secret, codec=CODEC)


def connected(one: Owner, other: Owner) -> Peer:
    """A connection dialled by `one`, seen from its side."""
    address = other.hub.listen(HOST)
    peer = one.call(lambda: one.hub.connect(address))
    one.wait(lambda: peer in one.opened)
    return peer


def echoes(owner: Owner) -> Address:
    """Let an owner send back what it gets."""
    owner.on_note = owner.hub.send
    return owner.hub.listen(HOST)


def assert_serves(address: Address) -> None:
    with dial(address) as channel:
        channel.send(note(1, b"still there?"))
        assert channel.receive(PATIENCE_S) == note(1, b"still there?")


def read_to_end(sock: socket.socket) -> None:
    """Until the other side closed, whether politely or by a reset."""
    sock.settimeout(PATIENCE_S)
    with suppress(ConnectionError):
        while sock.recv(65536):
            pass


def test_messages_pass_both_ways_in_order(owners: Make) -> None:
    one, other = owners(), owners()
    other.on_note = other.hub.send
    peer = connected(one, other)
    assert peer.open
    one.send_all(peer, [note(number) for number in range(500)])
    one.wait(lambda: len(one.notes) == 500)
    assert [message.request_id for _, message in one.notes] == list(range(500))
    assert {id(sender) for sender, _ in one.notes} == {id(peer)}


def test_a_tag_is_the_owners_own(owners: Make) -> None:
    one, other = owners(), owners()
    address = other.hub.listen(HOST)
    peer = one.call(lambda: one.hub.connect(address, tag="worker-3"))
    one.wait(lambda: one.opened == [peer])
    other.wait(lambda: other.opened)
    assert peer.tag == "worker-3"
    assert peer.name == str(address)
    assert other.opened[0].tag is None


def test_what_is_sent_before_the_handshake_arrives_after_it(owners: Make) -> None:
    one, other = owners(), owners()
    address = other.hub.listen(HOST)

    def hurry() -> Peer:
        peer = one.hub.connect(address)
        one.hub.send(peer, note(1))
        one.hub.send(peer, note(2))
        one.hub.close(peer)
        return peer

    peer = one.call(hurry)
    other.wait(lambda: len(other.notes) == 2)
    one.wait(lambda: one.closed == [(peer, "closed by this side")])
    assert [message.request_id for _, message in other.notes] == [1, 2]


def test_a_megabyte_of_noise_harms_nobody(owners: Make) -> None:
    owner = owners()
    address = echoes(owner)
    with dial(address) as old:
        with socket.create_connection((address.host, address.port)) as noisy:
            with suppress(ConnectionError):
                noisy.sendall(random.Random(0).randbytes(1_000_000))
            read_to_end(noisy)
        old.send(note(7))
        assert old.receive(PATIENCE_S) == note(7)
    assert_serves(address)
    assert owner.errors == []


def test_noise_after_the_handshake_closes_that_connection_only(owners: Make) -> None:
    owner = owners()
    address = echoes(owner)
    with dial(address) as noisy:
        noisy._sock.setblocking(True)
        noisy._sock.sendall((5).to_bytes(4, "big") + b"\xffnope")
        owner.wait(lambda: owner.closed)
        with pytest.raises(PeerError):
            noisy.receive(PATIENCE_S)
    assert "unknown message" in owner.closed[0][1]
    assert_serves(address)


def test_an_oversized_frame_closes_that_connection_only(owners: Make) -> None:
    owner = owners(max_frame=1000)
    address = echoes(owner)
    with dial(address) as greedy:
        greedy.send(note(1, b"x" * 1001))
        owner.wait(lambda: owner.closed)
    assert "the limit is 1000" in owner.closed[0][1]
    assert owner.notes == []
    assert_serves(address)


def test_ten_megabytes_arrive_intact(owners: Make) -> None:
    owner = owners()
    body = os.urandom(10_000_000)
    with dial(echoes(owner)) as channel:
        sender = threading.Thread(target=channel.send, args=(note(1, body),))
        sender.start()
        assert channel.receive(PATIENCE_S) == note(1, body)
        sender.join(PATIENCE_S)


def test_a_slow_reader_holds_nobody_up(owners: Make) -> None:
    owner = owners()
    address = owner.hub.listen(HOST)
    with dial(address) as slow:
        peer = owner.wait_opened()
        # Far more than the kernel takes: the rest is queued, and `call` returns all the same.
        body = bytes(1_000_000)
        owner.send_all(peer, [note(number, body) for number in range(40)])
        owner.on_note = owner.hub.send
        assert_serves(address)
        got = [slow.receive(PATIENCE_S) for _ in range(40)]
    assert got == [note(number, body) for number in range(40)]


def test_close_sends_what_is_queued_first(owners: Make) -> None:
    owner = owners()
    with dial(owner.hub.listen(HOST)) as channel:
        peer = owner.wait_opened()
        body = bytes(500_000)

        def send_and_close() -> None:
            for number in range(20):
                owner.hub.send(peer, note(number, body))
            owner.hub.close(peer)
            owner.hub.close(peer)
            assert not peer.open
            owner.hub.send(peer, note(99))

        owner.call(send_and_close)
        # Input that nobody reads any more must not make the kernel throw our output away.
        channel.send(note(0, bytes(10_000)))
        for number in range(20):
            assert channel.receive(PATIENCE_S) == note(number, body)
        with pytest.raises(PeerError, match="closed the connection"):
            channel.receive(PATIENCE_S)
    owner.wait(lambda: owner.closed)
    assert owner.closed == [(peer, "closed by this side")]
    assert owner.errors == []
    assert owner.notes == []


def test_stop_sends_what_is_queued_first() -> None:
    owner = Owner()
    address = owner.hub.listen(HOST)
    owner.hub.start()
    with dial(address) as channel:
        peer = owner.wait_opened()
        body = bytes(500_000)
        owner.send_all(peer, [note(number, body) for number in range(20)])
        got: list[object] = []
        reader = threading.Thread(
            target=lambda: got.extend(channel.receive(PATIENCE_S) for _ in range(20))
        )
        reader.start()
        owner.hub.stop(flush_s=PATIENCE_S)
        reader.join(PATIENCE_S)
        assert got == [note(number, body) for number in range(20)]
        assert owner.closed == [(peer, "this hub stopped")]
    with pytest.raises(PeerError, match="cannot connect"):
        dial(address)
    owner.hub.stop()


def test_stop_does_not_wait_for_one_who_never_reads() -> None:
    owner = Owner()
    address = owner.hub.listen(HOST)
    owner.hub.start()
    with dial(address):
        peer = owner.wait_opened()
        owner.call(lambda: owner.hub.send(peer, note(1, bytes(30_000_000))))
        owner.hub.stop(flush_s=0.1)
        assert owner.closed == [(peer, "this hub stopped")]


def test_a_hub_may_be_stopped_from_its_own_thread_and_before_its_start() -> None:
    owner = Owner()
    owner.hub.start()
    owner.hub.post(owner.hub.stop)
    owner.hub.stop()
    unborn = Owner()
    address = unborn.hub.listen(HOST)
    unborn.hub.stop()
    with socket.create_server((address.host, address.port)) as again:
        assert again.getsockname()[1] == address.port


def test_a_refused_connect_is_told_by_on_closed(owners: Make) -> None:
    with socket.create_server((HOST, 0)) as gone:
        address = Address(*gone.getsockname()[:2])
    owner = owners()
    peer = owner.call(lambda: owner.hub.connect(address))
    owner.wait(lambda: owner.closed)
    assert owner.closed == [(peer, f"cannot connect to {address}: Connection refused")]
    assert owner.opened == []
    assert not peer.open


def test_what_the_caller_cannot_ask_is_refused_to_it(owners: Make) -> None:
    one, other = owners(max_frame=1000), owners()
    peer = connected(one, other)
    one.send_all(peer, [note(1, b"x" * 1001), note(2)])
    other.wait(lambda: other.notes)
    assert [type(error) for error in one.errors] == [UsageError]
    named = one.call(lambda: one.hub.connect(Address("node.invalid", 1)))
    one.wait(lambda: one.closed and one.closed[0][0] is named)
    taken = one.hub.listen(HOST)
    with pytest.raises(UsageError, match=str(taken)):
        other.hub.listen(HOST, taken.port)


@pytest.mark.parametrize("foreign", [{"secret": b"other"}, {"job": "other"}])
def test_one_without_the_secret_is_refused_on_both_sides(
    owners: Make, foreign: dict[str, Any]
) -> None:
    one, other = owners(**foreign), owners()
    address = echoes(other)
    peer = one.call(lambda: one.hub.connect(address))
    one.wait(lambda: one.closed)
    assert one.closed[0][0] is peer
    assert one.opened == other.opened == []
    assert other.closed == []
    with pytest.raises(WrongSecret):
        dial(address, **foreign)
    assert_serves(address)


def test_a_silent_stranger_is_dropped_in_time(owners: Make) -> None:
    owner = owners(hello_timeout_s=0.1)
    address = echoes(owner)
    with socket.create_connection((address.host, address.port)) as silent:
        read_to_end(silent)
    assert_serves(address)
    assert len(owner.closed) <= 1


def test_a_mute_listener_is_given_up_in_time(owners: Make) -> None:
    owner = owners(hello_timeout_s=0.1)
    with socket.create_server((HOST, 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        peer = owner.call(lambda: owner.hub.connect(address))
        owner.wait(lambda: owner.closed)
    assert owner.closed == [(peer, f"no handshake with {address} within 0.1 s")]


def test_at_the_limit_only_silent_strangers_are_evicted(
    owners: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.wire.strangers.EVICT_AFTER_S", 600.0)
    owner = owners(hello_timeout_s=600.0, max_unproven=8)
    address = echoes(owner)
    with contextlib.ExitStack() as stack:

        def connect() -> socket.socket:
            return stack.enter_context(socket.create_connection((address.host, address.port)))

        inside = [connect() for _ in range(8)]
        for stranger in inside:
            # The greeting shows that the hub has accepted this one.
            assert stranger.recv(1)
        waiting = connect()
        waiting.setblocking(False)
        paused_turns(owner, 3)
        # Nobody was evicted, and the last one waits in the backlog.
        assert owner.call(lambda: len(owner.hub._peers)) == 8
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
        monkeypatch.setattr("edl.wire.strangers.EVICT_AFTER_S", 0.0)
        for stranger in inside:
            read_to_end(stranger)
        waiting.settimeout(PATIENCE_S)
        assert waiting.recv(1)
    assert_serves(address)


def paused_turns(owner: Owner, count: int) -> None:
    """Wait until the hub has looked at its full port this many times."""
    for _ in range(count):
        passed = threading.Event()
        owner.hub.post(partial(owner.hub.call_later, PAUSE_S, passed.set))
        assert passed.wait(PATIENCE_S)


@pytest.mark.parametrize("max_unproven", [None, 64], ids=["default limit", "limit of 64"])
def test_of_a_thousand_honest_dialers_at_once_none_is_refused(
    owners: Make, monkeypatch: pytest.MonkeyPatch, max_unproven: int | None
) -> None:
    """All followers dial a new leader at the same moment."""
    dialers = 1000
    if raise_descriptor_limit() < 4 * dialers:
        pytest.skip("this machine's hard limit allows too few descriptors")
    # A machine that stalls for a while must not look like a thousand strangers.
    monkeypatch.setattr("edl.wire.strangers.EVICT_AFTER_S", 600.0)
    leader = owners(hello_timeout_s=600.0, max_unproven=max_unproven)
    followers = owners(hello_timeout_s=600.0)
    address = echoes(leader)

    def dial_all() -> None:
        for number in range(dialers):
            followers.hub.send(followers.hub.connect(address), note(number))

    followers.hub.post(dial_all)
    followers.wait(lambda: len(followers.notes) == dialers or followers.closed, 120.0)
    assert followers.closed == leader.closed == []
    assert len(leader.opened) == len(followers.opened) == dialers
    assert {message.request_id for _, message in followers.notes} == set(range(dialers))
    assert leader.errors == followers.errors == []


def test_the_limit_of_unproven_connections_follows_that_of_descriptors() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, limits[1]))
        assert default_limit() == 250
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert default_limit() <= MAX_UNPROVEN


def test_a_peer_that_never_reads_is_disconnected(owners: Make) -> None:
    limit, body = 4_000_000, bytes(100_000)
    owner = owners(max_queued=limit)
    address = owner.hub.listen(HOST)
    with dial(address) as deaf, dial(address):
        owner.wait(lambda: len(owner.opened) == 2)
        deaf.send(note(1))
        owner.wait(lambda: owner.notes)
        peer = owner.notes[0][0]
        other = next(each for each in owner.opened if each is not peer)
        queued = 0
        for number in range(1000):
            owner.call(partial(owner.hub.send, peer, note(number, body)))
            queued = max(queued, owner.call(lambda: peer.queued))
            if owner.closed:
                break
        owner.wait(lambda: owner.closed)
        # One message more than the limit, at most.
        assert limit < queued < limit + 2 * len(body)
        assert [each for each, _ in owner.closed] == [peer]
        assert "does not read" in owner.closed[0][1]
        assert str(limit) in owner.closed[0][1]
        assert owner.call(lambda: len(peer.raw)) == 0
        assert other.open


def test_what_waits_for_a_handshake_is_limited_too(owners: Make) -> None:
    owner = owners(max_queued=1_000_000, hello_timeout_s=600.0)
    with socket.create_server((HOST, 0)) as mute:
        address = Address(*mute.getsockname()[:2])
        peer = owner.call(lambda: owner.hub.connect(address))
        owner.send_all(peer, [note(number, bytes(100_000)) for number in range(12)])
        owner.wait(lambda: owner.closed)
    assert owner.closed[0][0] is peer
    assert "does not read" in owner.closed[0][1]


def test_a_queue_that_drains_is_counted_down(owners: Make) -> None:
    owner = owners(max_queued=1_000_000)
    with dial(owner.hub.listen(HOST)) as reader:
        peer = owner.wait_opened()
        # Each round fills the queue beyond the limit; all of them together are far beyond it.
        for round_ in range(5):
            body = bytes(6_000_000)
            owner.call(partial(owner.hub.send, peer, note(round_, body)))
            assert reader.receive(60.0) == note(round_, body)
        assert owner.call(lambda: peer.queued) == 0
        assert owner.closed == []


def test_a_broadcast_is_encoded_once(owners: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []
    encode = Codec.encode

    def counting(codec: Codec, message: object) -> bytes:
        encoded.append(message)
        return encode(codec, message)

    owner = owners()
    address = owner.hub.listen(HOST)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(dial(address)) for _ in range(5)]
        owner.wait(lambda: len(owner.opened) == 5)
        with monkeypatch.context() as patch:
            patch.setattr(Codec, "encode", counting)
            owner.call(lambda: owner.hub.broadcast(owner.opened, note(7, b"to all")))
        assert [reader.receive(PATIENCE_S) for reader in readers] == [note(7, b"to all")] * 5
    assert encoded == [note(7, b"to all")]


def test_a_callback_that_fails_does_not_end_the_hub(owners: Make) -> None:
    owner = owners()
    address = owner.hub.listen(HOST)

    def fail_once(peer: Peer, message: Note) -> None:
        owner.on_note = owner.hub.send
        raise RuntimeError("a fault of the owner")

    owner.on_note = fail_once
    with dial(address) as channel:
        channel.send(note(1))
        channel.send(note(2))
        assert channel.receive(PATIENCE_S) == note(2)
    assert [str(error) for error in owner.errors] == ["a fault of the owner"]
    assert_serves(address)


def test_one_who_went_without_a_word_is_told_by_on_closed(owners: Make) -> None:
    owner = owners()
    channel = dial(owner.hub.listen(HOST))
    channel.send(note(1))
    channel.close()
    owner.wait(lambda: owner.closed)
    # What it said before it went was heard.
    assert [message for _, message in owner.notes] == [note(1)]
    assert owner.closed[0][0] is owner.notes[0][0]
