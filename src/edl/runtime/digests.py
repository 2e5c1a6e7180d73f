"""Digests of a replica: its settings as text, its state as bytes, in 63 bits.

Owns: which values count as settings, how a value is written so that equal values read alike on
every worker, and how a model is cut into parts. Framework-free: a plug-in hands in plain values and
rows of bytes.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

__all__ = ["combined", "digest_bytes", "flat_settings", "part_of", "slices_of"]

# Deeper, or longer, than any settings are: a registered object may hold anything.
_DEPTH = 6
_LONGEST = 256


def digest_bytes(row: Any) -> int:
    """63 bits of one contiguous piece of memory, such as bytes or an array.

    Never 0, which means "not known" in a record.
    """
    return _number(hashlib.blake2b(row, digest_size=8).digest())


def combined(items: Iterable[tuple[str, str]]) -> int:
    """63 bits of names and values, in order; never 0."""
    text = "\0".join(part for item in items for part in item)
    return digest_bytes(text.encode())


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little") >> 1 or 1


def flat_settings(
    name: str, value: object, scalar: Callable[[Any], object], depth: int = _DEPTH
) -> Iterator[tuple[str, str]]:
    """Every plain value in `value`, by name. What is no plain value is passed over.

    `scalar` gives the number that an array of one element holds, or None for anything else. Numbers
    that are equal are written alike, whatever their type: a value that came from another worker
    may have become a plain float on the way.
    """
    if isinstance(value, (bool, int, float)):
        yield name, _written(value)
    elif value is None or isinstance(value, str):
        yield name, repr(value)[:_LONGEST]
    elif isinstance(value, dict) and depth:
        for key in sorted(value, key=str):
            yield from flat_settings(f"{name} {key}", value[key], scalar, depth - 1)
    elif isinstance(value, (list, tuple)) and depth and len(value) <= _LONGEST:
        for index, each in enumerate(value):
            yield from flat_settings(f"{name}[{index}]", each, scalar, depth - 1)
    else:
        number = scalar(value)
        if isinstance(number, (bool, int, float)):
            yield name, _written(number)


def _written(number: float) -> str:
    """17 digits tell every float from every other; `True`, 1 and 1.0 are one number."""
    if isinstance(number, int) and abs(number) >= 1 << 53:
        return str(int(number))
    return repr(float(number))


def part_of(total: int, part: int, parts: int) -> tuple[int, int]:
    """Where the part begins and ends, when `total` elements are cut into `parts`."""
    return part * total // parts, (part + 1) * total // parts


def slices_of(starts: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Which rows lie between two places: their number, and which of their elements.

    `starts` says where each row begins, and ends with where the last one does.
    """
    index = bisect_right(starts, begin) - 1
    while index < len(starts) - 1 and starts[index] < end:
        low, high = max(begin, starts[index]), min(end, starts[index + 1])
        if low < high:
            yield index, low - starts[index], high - starts[index]
        index += 1
