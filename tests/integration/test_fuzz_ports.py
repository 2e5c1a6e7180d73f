"""Hostile conversations with real ports: none gets in, none stays, and honest callers are served.

What `bench/fuzz.py` does to a real job for as long as one likes, for seconds and repeatably.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.store.embedded import EmbeddedServer, EmbeddedStore
from edl.wire.channel import Channel
from edl.wire.hello import GREETING, Hello
from edl.wire.lines import LINES
from tests.contract.servers import until
from tests.integration.fuzzing import fuzzed
from tests.integration.hostile import (
    KINDS,
    Kind,
    Target,
    garbage,
    greeting_of,
    half_proven,
    insider,
    opened,
    record,
    speak,
)
from tests.integration.test_hub import CODEC, HOST, JOB, PATIENCE_S, SECRET, Owner, note
from tests.integration.test_hub import assert_serves as assert_hub_serves

HELLO_S = 0.5


@dataclass(slots=True)
class Port:
    """A hub that echoes, and what a stranger may know about it."""

    owner: Owner
    target: Target

    def serves(self) -> None:
        assert_hub_serves(self.target.address)
        assert not self.owner.errors


@pytest.fixture
def port() -> Iterator[Port]:
    owner = Owner(hello_timeout_s=HELLO_S)
    owner.on_note = owner.hub.send
    address = owner.hub.listen(HOST)
    owner.hub.start()
    recording = record(address, JOB, SECRET)
    # The caller is done with the handshake a moment before the port is, and its frame is nonsense.
    owner.wait(lambda: owner.closed)
    yield Port(owner, Target(address=address, job=JOB, secret=SECRET, recording=recording))
    owner.hub.stop()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_conversation_gets_in_or_leaves_anything_behind(port: Port) -> None:
    before, threads = descriptors(), threading.active_count()
    strangers = [kind for kind in KINDS if kind is not insider]

    @settings(fuzzed, max_examples=250)
    @given(st.sampled_from(strangers), st.integers(0, 2**32), st.booleans())
    def converse(kind: Kind, seed: int, hear_out: bool) -> None:
        speak(kind, port.target, seed, hear_out=hear_out)

    converse()
    # Nobody but the recorded caller has ever been let in.
    assert len(port.owner.opened) == 1
    port.serves()
    until(lambda: descriptors() <= before, "all sockets to be closed")
    assert threading.active_count() <= threads


def test_one_of_ours_that_talks_nonsense_loses_its_connection_alone(port: Port) -> None:
    @settings(fuzzed, max_examples=60)
    @given(st.integers(0, 2**32))
    def converse(seed: int) -> None:
        speak(insider, port.target, seed)

    converse()
    port.serves()
    assert not port.owner.notes[:-1], port.owner.notes


def test_a_handshake_byte_by_byte_has_one_time_limit_for_all(port: Port) -> None:
    """A slow loris: each byte in time, the whole never."""
    with opened(port.target.address) as sock:
        began, sent = time.monotonic(), 0
        sock.settimeout(0.05)
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < PATIENCE_S and sent < GREETING.size:
                sock.sendall(port.target.recording[sent : sent + 1])
                sent += 1
                try:
                    if len(sock.recv(4096)) == 0:
                        break
                except TimeoutError:
                    continue
        assert HELLO_S * 0.9 <= time.monotonic() - began < PATIENCE_S / 2
    port.serves()


def test_hundreds_of_idle_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a handshake timeout that does not help: silent strangers are evicted at the limit."""
    monkeypatch.setattr("edl.wire.strangers.EVICT_AFTER_S", 0.05)
    limit = 64
    owner = Owner(hello_timeout_s=600.0, max_unproven=limit)
    owner.on_note = owner.hub.send
    address = owner.hub.listen(HOST)
    owner.hub.start()
    idle: list[socket.socket] = []
    try:
        # More than twice the limit: the honest caller waits behind them in the backlog.
        idle += [opened(address) for _ in range(2 * limit + 20)]
        with Channel(address, job=JOB, secret=SECRET, codec=CODEC, timeout_s=60.0) as honest:
            honest.send(note(1))
            assert honest.receive(60.0) == note(1)
            live = owner.call(lambda: len(owner.hub._peers))
            assert live <= limit + 1
        idle[0].settimeout(PATIENCE_S)
        while idle[0].recv(4096):
            pass
    finally:
        for sock in idle:
            sock.close()
        owner.hub.stop()


def test_a_bug_of_ours_that_a_stranger_meets_costs_that_connection_alone(
    port: Port, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The owner of a hub that reports an error may end: a worker does. Not at a stranger's wish."""

    def stumble(hello: Hello, data: bytes) -> bytes:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Hello, "feed", stumble)
        speak(garbage, port.target, 1)
    port.serves()
    assert any("wire.handshake failed" in each.getMessage() for each in caplog.records)


def test_a_flood_of_wrong_proofs_leaves_a_few_lines(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="edl.wire"):
        for seed in range(5 * LINES):
            speak(half_proven, port.target, seed)
        port.serves()
    lines = [each for each in caplog.records if "wire.refused" in each.getMessage()]
    # Twice as many if the seconds for which they are counted ended meanwhile.
    assert LINES <= len(lines) <= 2 * LINES + 1
    assert "could not prove the secret" in lines[0].getMessage()


def test_nothing_is_kept_in_memory_for_a_stranger(port: Port) -> None:
    """However much it sends: what is beyond the handshake is not even read."""
    gc.collect()
    with opened(port.target.address) as sock:
        assert len(greeting_of(port.target.address)) == GREETING.size
        before = resident_bytes()
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            sock.sendall(port.target.recording[: GREETING.size])
            for _ in range(64):
                sock.sendall(bytes(1 << 20))
                sent += 1
        assert resident_bytes() - before < 16 << 20
    port.serves()


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def test_the_embedded_store_is_served_through_it_all() -> None:
    with EmbeddedServer(job=JOB, secret=SECRET) as server:
        store = EmbeddedStore(server.address, job=JOB, secret=SECRET)
        recording = record(server.address, JOB, SECRET)
        target = Target(address=server.address, job=JOB, secret=SECRET, recording=recording)
        revision = 0
        for seed, kind in enumerate(KINDS * 5):
            speak(kind, target, seed, hear_out=kind is not insider)
            swap = store.compare_and_swap("leader", expected=revision, value=bytes([seed]))
            assert swap.done
            revision = swap.current.revision
        assert store.get("leader").value == bytes([len(KINDS) * 5 - 1])
        store.close()
