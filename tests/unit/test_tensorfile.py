"""Tensors as safetensors files: what is written can be read, and nonsense cannot."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from edl.runtime.tensorfile import DTYPES, Array, decode, encode, pieces


def blob_of(arrays: dict[str, Array]) -> bytes:
    return b"".join(bytes(part) for part in encode(arrays))


def file_of(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def plain(arrays: dict[str, Array]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (a.dtype, a.shape, bytes(a.data)) for name, a in arrays.items()}


MIXED = {
    "flag": Array("BOOL", (3,), b"\1\0\1"),
    "wide": Array("F64", (2,), bytes(range(16))),
    "half": Array("BF16", (1, 3), bytes(range(6))),
    "scalar": Array("F32", (), b"abcd"),
    "empty": Array("I64", (0, 4), b""),
}


def test_a_file_is_read_back() -> None:
    assert plain(decode(blob_of(MIXED))) == plain(MIXED)
    assert decode(blob_of({})) == {}


def test_the_library_reads_what_is_written() -> None:
    wanted = {name: array for name, array in MIXED.items() if array.dtype != "BF16"}
    found = safetensors.numpy.load(blob_of(wanted))
    assert {name: (row.shape, row.tobytes()) for name, row in found.items()} == {
        name: (array.shape, array.data) for name, array in wanted.items()
    }
    assert found["wide"].dtype == np.float64
    assert found["flag"].dtype == np.bool_


def test_what_the_library_writes_is_read() -> None:
    row = np.arange(2, dtype=np.float32)
    blob = safetensors.numpy.save({"a": row, "b": np.zeros((0, 3), np.int8)}, {"note": "mine"})
    assert plain(decode(blob)) == {"a": ("F32", (2,), row.tobytes()), "b": ("I8", (0, 3), b"")}


def test_each_tensor_starts_at_a_multiple_of_its_elements() -> None:
    blob = blob_of(MIXED)
    length = struct.unpack("<Q", blob[:8])[0]
    header = json.loads(blob[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    for entry in header.values():
        assert (8 + length + entry["data_offsets"][0]) % DTYPES[entry["dtype"]] == 0


def test_pieces_are_the_same_bytes() -> None:
    parts: list[bytes | memoryview] = [b"", b"abc", memoryview(bytes(9 << 20))]
    cut = list(pieces(iter(parts)))
    assert max(len(piece) for piece in cut) == 4 << 20
    assert b"".join(cut) == b"".join(parts)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": Array("F32", (2,), b"1234")}, "'a' of F32"),
        ({"__metadata__": Array("U8", (1,), b"1")}, "__metadata__"),
    ],
)
def test_what_does_not_fit_is_not_written(arrays: dict[str, Array], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        blob_of(arrays)


def entry(start: int, end: int, **changed: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end], **changed}


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "too few"),
        (struct.pack("<Q", 99) + b"{}", "header of 99"),
        (file_of(b"[" * 100_000), "no JSON"),
        (file_of(b"\xff\xfe"), "no JSON"),
        (file_of([]), "no JSON object"),
        (file_of({"a": 1}), "not described"),
        (file_of({"a": entry(0, 2, dtype="F3")}, b"12"), "unknown type 'F3'"),
        (file_of({"a": entry(0, 2, dtype=[])}, b"12"), "unknown type"),
        (file_of({"a": entry(0, 2, shape=[True, 2])}, b"12"), "has shape"),
        (file_of({"a": entry(0, 2, shape=[-2])}, b"12"), "has shape"),
        (file_of({"a": entry(0, 2, data_offsets=[0])}, b"12"), "offsets"),
        (file_of({"a": entry(0, 3)}, b"12"), "does not fit"),
        (file_of({"a": entry(0, 2, shape=[3])}, b"12"), "does not fit"),
        (file_of({"a": entry(0, 1), "b": entry(0, 1)}, b"1"), "gap or an overlap"),
        (file_of({"a": entry(1, 2)}, b"12"), "gap or an overlap"),
        (file_of({"a": entry(0, 1)}, b"12"), "belong to no tensor"),
    ],
)
def test_nonsense_is_refused_in_words(blob: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(blob)


@given(st.binary(max_size=64), st.integers(0, 200), st.integers(0, 255))
def test_whatever_the_bytes_nothing_but_a_value_error(noise: bytes, at: int, value: int) -> None:
    spoiled = bytearray(blob_of(MIXED))
    spoiled[at % len(spoiled)] = value
    for blob in (noise, bytes(spoiled), bytes(spoiled[: at % len(spoiled)])):
        try:
            found: object = decode(blob)
        except ValueError as error:
            found = error
        assert isinstance(found, (dict, ValueError))
