"""Named tensors as a file in the safetensors format, without a framework.

Checkpoints are read by people who do not have EDL, so tensors lie in the format that they have a
reader for. It is small: the header's length in eight bytes, the header as JSON, the bytes of every
tensor. Written here and not by the library, because the library wants a second copy of everything
in memory, and a checkpoint is written beside a training that needs it. Holds: what `encode` gives
is read by any safetensors reader; what `decode` accepts has no gap, no overlap and no tensor whose
bytes do not fit its shape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DTYPES", "NAMES", "Array", "Tensors", "decode", "encode", "pieces"]

# Bytes of an element, for the types that every reader of the last years knows.
DTYPES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
# Their names in the format, by those that frameworks have for them.
NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}
_ALIGNMENT = 8
# Other readers refuse longer headers, so we neither write nor believe one.
_HEADER_MAX = 100_000_000
_PIECE = 4 << 20
# The name is reserved by the format. Loaders of whole models look for "pt", which stands for rows
# of numbers in C order, as they are here.
_METADATA = "__metadata__"
_ABOUT = {"format": "pt"}


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """One tensor as plain bytes: C order, little endian, `dtype` by its name in the format."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | memoryview


# Files by their stem (`model`, `state`), tensors by their name.
Tensors = Mapping[str, Mapping[str, Array]]


def encode(arrays: Mapping[str, Array]) -> Iterator[bytes | memoryview]:
    """The file's bytes: first the header, then one item for each tensor that has any."""
    # Wide elements first, so that each tensor starts at a multiple of its element's size.
    ordered = sorted(arrays.items(), key=lambda item: (-DTYPES[item[1].dtype], item[0]))
    header: dict[str, Any] = {_METADATA: _ABOUT}
    end = 0
    for name, array in ordered:
        start, end = end, end + len(array.data)
        if name == _METADATA or end - start != math.prod(array.shape) * DTYPES[array.dtype]:
            raise ValueError(
                f"tensor {name!r} of {array.dtype} {array.shape} with {end - start} bytes"
            )
        header[name] = {
            "dtype": array.dtype,
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _HEADER_MAX:
        raise ValueError(f"a header of {len(text)} bytes, limit {_HEADER_MAX}")
    yield len(text).to_bytes(8, "little") + text
    for _, array in ordered:
        if len(array.data):
            yield array.data


def pieces(parts: Iterator[bytes | memoryview]) -> Iterator[memoryview]:
    """The same bytes in pieces that are written and hashed one at a time, without a copy."""
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]


def decode(blob: bytes | bytearray) -> dict[str, Array]:
    """The tensors of a file, as views into it. Raises ValueError that says what is wrong."""
    if len(blob) < 8:
        raise ValueError(f"{len(blob)} bytes are too few for a header")
    length = int.from_bytes(blob[:8], "little")
    if length > min(_HEADER_MAX, len(blob) - 8):
        raise ValueError(f"a header of {length} bytes in a file of {len(blob)}")
    try:
        header = json.loads(bytes(blob[8 : 8 + length]))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    header.pop(_METADATA, None)
    body = memoryview(blob)[8 + length :]
    found = {name: _array(name, entry, body) for name, entry in header.items()}
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    reached = 0
    for start, end in spans:
        if start != reached:
            raise ValueError(f"a gap or an overlap at byte {min(start, reached)}")
        reached = end
    if reached != len(body):
        raise ValueError(f"{len(body) - reached} bytes belong to no tensor")
    return found


def _array(name: str, entry: object, body: memoryview) -> Array:
    if not isinstance(entry, dict):
        raise ValueError(f"tensor {name!r} is not described")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"tensor {name!r} is of unknown type {dtype!r}")
    if not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r} has shape {shape!r} and offsets {offsets!r}")
    start, end = offsets
    if not start <= end <= len(body) or end - start != math.prod(shape) * DTYPES[dtype]:
        raise ValueError(f"tensor {name!r} of {dtype} {shape} does not fit bytes {start} to {end}")
    return Array(dtype, tuple(shape), body[start:end])


def _counts(value: Any) -> bool:
    """Whether this is a list of plain numbers, none of them negative."""
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
