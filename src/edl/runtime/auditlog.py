"""The committed log of a job's data, as bytes: which samples each step used.

One file a worker, `audit/WORKER.log` in the job's folder, appended to at every commit. Since every
worker holds the whole ledger, each writes what everybody used, so any log that survives tells of
all. Owns: the format. An entry is a few unsigned varints, the first one its kind:

    OPEN length JSON            what data it is; the file's first entry
    PLACE run generation step epoch position
                                what comes next belongs here
    RANGE count                 a step used the next `count` positions of the epoch's order
    PIECES n (partition offset length) * n
                                a step used these pieces of partitions
    EPOCH left                  the epoch is over, with so many samples unused

Holds: an entry is written at once, so a killed worker leaves whole entries, and at most one torn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

__all__ = ["FORMAT", "Entry", "Kind", "Torn", "entries", "header", "pack"]

FORMAT = 1


class Kind(IntEnum):
    """What an entry tells."""

    OPEN = 1
    PLACE = 2
    RANGE = 3
    PIECES = 4
    EPOCH = 5


_FIXED = {Kind.PLACE: 5, Kind.RANGE: 1, Kind.EPOCH: 1}
_KINDS = {int(kind): kind for kind in Kind}


class Torn(Exception):
    """The bytes end inside an entry, or are no log at all; `at` is where that entry begins."""

    def __init__(self, at: int, why: str) -> None:
        super().__init__(f"{why} at byte {at}")
        self.at = at


@dataclass(slots=True)
class Entry:
    """One entry; `values` are its numbers, without the kind."""

    kind: Kind
    values: Sequence[int]
    began: int  # where it lies among the bytes
    ended: int
    data: dict[str, Any] | None = None


def pack(kind: Kind, values: Iterable[int]) -> bytes:
    """An entry of plain numbers."""
    out = bytearray()
    for value in (int(kind), *values):
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return bytes(out)


def header(data: dict[str, Any]) -> bytes:
    """The file's first entry."""
    text = json.dumps({"format": FORMAT, **data}, sort_keys=True).encode()
    return pack(Kind.OPEN, [len(text)]) + text


def entries(content: bytes, at: int = 0) -> Iterator[Entry]:
    """Every whole entry from there on, in order; Torn after the last one if there is a rest."""
    while at < len(content):
        began = at
        kind, at = _number(content, at, began)
        if kind == Kind.OPEN:
            length, at = _number(content, at, began)
            at += length
            yield _opened(content[at - length : at], length, began, at)
            continue
        if kind == Kind.PIECES:
            count, at = _number(content, at, began)
            count *= 3
        elif kind in _FIXED:
            count = _FIXED[Kind(kind)]
        else:
            raise Torn(began, f"an entry of kind {kind}, which no version writes,")
        values = []
        try:
            for _ in range(count):
                # Spelled out, and not by `_number`: this is the inner loop of an audit.
                byte = value = content[at]
                at += 1
                if byte > 0x7F:
                    value, shift = byte & 0x7F, 7
                    while (byte := content[at]) > 0x7F:
                        value |= (byte & 0x7F) << shift
                        at, shift = at + 1, shift + 7
                        if shift > 63:
                            raise Torn(began, "a number of more than 63 bits")
                    value |= byte << shift
                    at += 1
                values.append(value)
        except IndexError:
            raise Torn(began, "the file ends inside an entry") from None
        yield Entry(_KINDS[kind], values, began, at)


def _opened(text: bytes, length: int, began: int, ended: int) -> Entry:
    if len(text) < length:
        raise Torn(began, "the file ends inside an entry")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Torn(began, "the head is no JSON") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise Torn(began, f"the head says no format {FORMAT}")
    return Entry(Kind.OPEN, (), began, ended, data)


def _number(content: bytes, at: int, began: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(content):
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise Torn(began, "a number of more than 63 bits")
    raise Torn(began, "the file ends inside an entry")
