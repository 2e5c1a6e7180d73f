"""Messages survive the round trip, and no bytes do worse than raise PeerError."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import PeerError
from edl.types import Address
from edl.wire.codec import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    request_id: int
    ratio: float
    blob: bytes
    text: str | None
    parts: tuple[Part, ...]
    only: Part | None
    flags: dict[str, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    values: list[int]


CODEC = Codec([Sample, Numbers])

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
PARTS = st.builds(
    Part, name=st.text(), address=st.builds(Address, host=st.text(), port=st.integers(0, 65535))
)
SAMPLES = st.builds(
    Sample,
    request_id=INT64,
    ratio=st.floats(allow_nan=False),
    blob=st.binary(),
    text=st.none() | st.text(),
    parts=st.lists(PARTS).map(tuple),
    only=st.none() | PARTS,
    flags=st.dictionaries(st.text(), st.booleans()),
)


@given(SAMPLES | st.builds(Numbers, values=st.lists(INT64)))
def test_a_message_comes_back_as_it_was(message: object) -> None:
    assert CODEC.decode(CODEC.encode(message)) == message
    assert CODEC.decode(memoryview(bytearray(CODEC.encode(message)))) == message


@given(st.binary())
def test_random_bytes_only_ever_raise_peer_error(payload: bytes) -> None:
    with pytest.raises(PeerError):
        CODEC.decode(payload)


@given(st.sampled_from([b"\x06Sample", b"\x07Numbers"]), st.binary())
def test_random_fields_are_a_message_or_peer_error(prefix: bytes, body: bytes) -> None:
    try:
        message = CODEC.decode(prefix + body)
    except PeerError:
        return
    assert isinstance(message, Sample | Numbers)


@given(SAMPLES, st.data())
def test_a_message_cut_short_is_refused(message: object, data: st.DataObject) -> None:
    payload = CODEC.encode(message)
    cut = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(PeerError):
        CODEC.decode(payload[:cut])


def test_a_count_that_lies_is_refused() -> None:
    with pytest.raises(PeerError):
        CODEC.decode(b"\x07Numbers" + b"\x81\xa6values\xdd\xff\xff\xff\xff")


def test_a_deep_nesting_is_refused() -> None:
    with pytest.raises(PeerError):
        CODEC.decode(b"\x07Numbers" + b"\x81\xa1x" + b"\x91" * 100_000)


def test_bytes_after_the_message_are_refused() -> None:
    with pytest.raises(PeerError):
        CODEC.decode(CODEC.encode(Numbers(values=[1])) + b"\0")


def test_an_unknown_message_is_named() -> None:
    with pytest.raises(PeerError, match="Numbers"):
        Codec([Sample]).decode(CODEC.encode(Numbers(values=[])))


def test_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(PeerError, match="Numbers"):
        CODEC.decode(b"\x07Numbers" + b"\x81\xa6values\x91\xa1x")


def test_an_extended_codec_knows_both_and_the_old_one_does_not() -> None:
    small = Codec([Numbers])
    large = small.extended([Sample, Numbers])
    message = Sample(request_id=1, ratio=0.5, blob=b"", text=None, parts=(), only=None, flags={})
    assert large.decode(large.encode(message)) == message
    with pytest.raises(TypeError, match="Sample"):
        small.encode(message)


def test_two_classes_of_one_name_cannot_share_a_codec() -> None:
    other = make_dataclass("Numbers", [("x", int)], frozen=True)
    with pytest.raises(TypeError, match="Numbers"):
        Codec([Numbers, other])


def test_only_dataclasses_travel() -> None:
    with pytest.raises(TypeError, match="dataclass"):
        Codec([int])
