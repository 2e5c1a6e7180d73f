"""Every decoder of what others may send, given bytes that nobody would send on purpose.

The examples are always the same ones (`derandomize`), so a run that passes here passes everywhere;
`bench/fuzz.py` is the one that looks for new trouble. Each test states the one error that may come
out, because whoever calls the decoder catches that one alone.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from edl.errors import PeerError, StoreError, UsageError
from edl.launch.base import MOST_AT_ONCE
from edl.launch.messages import MESSAGES as LAUNCH_MESSAGES
from edl.launch.messages import port_codec
from edl.launch.service import LaunchService
from edl.launch.slots import SlotBook
from edl.protocol.election import read_leader
from edl.protocol.messages import MESSAGES as PROTOCOL_MESSAGES
from edl.protocol.messages import AdjustmentRecord
from edl.runtime.manifest import Manifest, Part, Unfit, parse
from edl.runtime.tensorfile import Array, decode, encode
from edl.store.embedded import EmbeddedService
from edl.store.service import MESSAGES as STORE_MESSAGES
from edl.store.url import StoreUrl
from edl.types import Address, Gpu, WorkerId
from edl.wire.hello import HELLO_BYTES, Hello, Role
from edl.wire.hub import Peer
from edl.wire.stream import FrameReader, frame
from tests.integration.fuzzing import JSON, damaged, fuzzed

CODEC = port_codec()
EVERY_MESSAGE: tuple[type, ...] = (*PROTOCOL_MESSAGES, *STORE_MESSAGES, *LAUNCH_MESSAGES)


def messages(types: tuple[type, ...] = EVERY_MESSAGE) -> st.SearchStrategy[Any]:
    return st.sampled_from(types).flatmap(st.from_type)


@st.composite
def encoded(draw: st.DrawFn) -> bytes:
    try:
        return CODEC.encode(draw(messages()))
    except OverflowError:
        assume(False)  # a whole number of more than 64 bits, which no message of ours has
        raise


# --- the wire ---


@fuzzed
@given(encoded())
def test_every_message_survives_the_round_trip(payload: bytes) -> None:
    # Bytes, not messages, are compared: a NaN is not equal to itself.
    assert CODEC.encode(CODEC.decode(payload)) == payload


@settings(fuzzed, max_examples=300)
@given(st.one_of(st.binary(max_size=200), damaged(encoded())))
def test_a_payload_is_a_message_or_a_peer_error(payload: bytes) -> None:
    with suppress(PeerError):
        assert type(CODEC.decode(payload)) in EVERY_MESSAGE


@fuzzed
@given(st.sampled_from(EVERY_MESSAGE), st.integers(0x80, 0xFF), st.integers(1, 3000))
def test_deep_nesting_is_a_peer_error(cls: type, byte: int, depth: int) -> None:
    name = cls.__name__.encode()
    with suppress(PeerError):
        decoded = CODEC.decode(bytes([len(name)]) + name + bytes([byte]) * depth)
        assert type(decoded) is cls


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    whole = st.lists(st.binary(max_size=300), max_size=6).map(
        lambda payloads: b"".join(frame(each, max_frame=1000) for each in payloads)
    )
    data = draw(st.one_of(whole, damaged(whole), st.binary(max_size=400)))
    return data, draw(st.lists(st.integers(1, 50), min_size=1, max_size=8))


def cut(data: bytes, sizes: list[int]) -> tuple[list[bytes], str]:
    """The payloads that come out of a stream in such pieces, and the error that ended it."""
    reader, found, at, turn = FrameReader(1000), [], 0, 0
    try:
        while at < len(data):
            size = sizes[turn % len(sizes)]
            for payload in reader.feed(data[at : at + size]):
                found.append(bytes(payload))  # noqa: PERF401 (kept also if the next one raises)
            at, turn = at + size, turn + 1
    except PeerError as error:
        return found, str(error)
    return found, ""


@fuzzed
@given(streams())
def test_frames_do_not_depend_on_how_the_stream_is_cut(stream: tuple[bytes, list[int]]) -> None:
    data, sizes = stream
    assert cut(data, sizes) == cut(data, [1]) == cut(data, [max(1, len(data))])


@fuzzed
@given(
    st.sampled_from(["dial", "listen"]),
    damaged(st.just(b"".join([b"EDL-wire", bytes(HELLO_BYTES)]))) | st.binary(max_size=200),
    st.integers(1, 60),
)
def test_no_bytes_but_the_proof_end_a_handshake(role: Role, noise: bytes, size: int) -> None:
    side = Hello(role, job="fuzz", secret=b"s3cret", nonce=bytes(32))
    heard = 0
    with suppress(PeerError):
        while noise and side.wanted:
            part, noise = noise[: min(size, side.wanted)], noise[min(size, side.wanted) :]
            heard += len(part)
            side.feed(part)
    assert not side.done
    assert heard <= HELLO_BYTES


# --- what a peer that knows the secret may say: it is one of ours, but perhaps a broken one ---


def a_peer() -> Peer:
    hello = Hello("listen", job="fuzz", secret=b"s3cret", nonce=bytes(32))
    return Peer(None, name="fuzz", tag=None, inbound=True, hello=hello, max_frame=1000)


@fuzzed
@given(st.lists(messages(STORE_MESSAGES), max_size=12))
def test_the_store_answers_or_ignores_whatever_is_well_formed(said: list[object]) -> None:
    answers: list[object] = []
    service = EmbeddedService(lambda peer, answer: answers.append(answer), first_revision=1)
    peer = a_peer()
    for message in said:
        if service.handles(message):
            service.on_message(peer, message)
        service.on_tick()
    service.on_closed(peer)
    for answer in answers:
        assert type(answer) in EVERY_MESSAGE
        with suppress(OverflowError):
            CODEC.encode(answer)


class QuietFloor:
    """A launcher that starts nothing."""

    def over(self) -> str:
        return ""

    def away(self) -> str:
        return ""

    def outcome(self, request_id: str) -> AdjustmentRecord | None:
        return None

    def start(self, joiners: object, request_id: str) -> None:
        return None

    def give_up(self, request_id: str) -> None:
        return None

    def alive(self) -> tuple[WorkerId, ...]:
        return ()

    def end(self, why: str, *, force: bool) -> None:
        return None


@fuzzed
@given(st.lists(messages(LAUNCH_MESSAGES), max_size=12))
def test_the_launcher_answers_or_ignores_whatever_is_well_formed(said: list[object]) -> None:
    answers: list[object] = []
    slots = SlotBook({}, limit=MOST_AT_ONCE)
    service = LaunchService(QuietFloor(), slots, lambda peer, answer: answers.append(answer))
    peer = a_peer()
    for now, message in enumerate(said):
        if service.handles(message):
            service.on_message(peer, message, float(now))
        service.on_tick(float(now))
    service.on_closed(peer)
    assert all(type(answer) in EVERY_MESSAGE for answer in answers)


# --- checkpoints ---

ARRAYS = {
    "weight": Array("F32", (2, 3), bytes(24)),
    "bias": Array("F64", (3,), bytes(24)),
    "flags": Array("BOOL", (5,), bytes(5)),
}
TENSOR_FILE = b"".join(bytes(part) for part in encode(ARRAYS))
MANIFEST = Manifest(
    step=7,
    time=1.5,
    parts={"model": Part(file="model.safetensors", size=10, checksum="ab")},
    extra={"ledger": {"cursor": [1, 2, 3]}},
).encode()
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "nothing"]) | JSON,
        "shape": st.lists(st.integers(-2, 2**70), max_size=4) | JSON,
        "data_offsets": st.lists(st.integers(-2, 2**70), max_size=3) | JSON,
    },
)


def with_header(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(64)


@settings(fuzzed, max_examples=300)
@given(
    st.one_of(
        damaged(st.just(TENSOR_FILE)),
        st.binary(max_size=64),
        st.dictionaries(st.text(max_size=6), ENTRIES | JSON, max_size=4).map(with_header),
        JSON.map(with_header),
    )
)
def test_a_tensor_file_is_whole_or_a_value_error(blob: bytes) -> None:
    with suppress(ValueError):
        for array in decode(blob).values():
            assert len(array.data) <= len(blob)


@settings(fuzzed, max_examples=300)
@given(
    st.one_of(
        damaged(st.just(MANIFEST)),
        st.binary(max_size=64),
        JSON.map(lambda value: json.dumps(value).encode()),
        st.integers(1, 100_000).map(lambda depth: b"[" * depth),
    )
)
def test_a_manifest_is_the_one_written_or_unfit(content: bytes) -> None:
    with suppress(Unfit):
        # Only its layout may have changed: the values are those of its checksum.
        assert parse(content).encode() == MANIFEST


# --- addresses and URLs, from people and from stores ---


@settings(fuzzed, max_examples=300)
@given(
    st.text(max_size=60)
    | st.from_regex(r"etcds?://[a-z:@/\[\]0-9,.%?&=#\\]{0,60}", fullmatch=True)
    | st.builds("etcd://{}:{}@{}:{}/{}?{}".format, *[st.text(max_size=6)] * 6)
)
def test_a_url_is_understood_or_a_usage_error(url: str) -> None:
    options = frozenset({"ca", "cert", "key"})
    with suppress(UsageError):
        parsed = StoreUrl.parse(url, login=True, options=options)
        assert parsed.servers
        assert all(0 < server.port < 65536 for server in parsed.servers)
    for kind in (Address, Gpu):
        with suppress(UsageError):
            assert str(kind.parse(url))


@fuzzed
@given(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_the_leaders_key_is_an_address_or_a_store_error(value: bytes) -> None:
    with suppress(StoreError):
        assert read_leader(value, 1).token == 1
