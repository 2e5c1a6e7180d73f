"""Partitions of a dataset: metadata that says where samples lie, and nothing of what they are.

Owns: what a partition and a shard are, how a list of them is read from what a user gives, and what
is refused. Holds: no sample is in two partitions.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from edl.errors import UsageError

__all__ = [
    "Partition",
    "Shard",
    "cut_evenly",
    "is_manifest",
    "listed_partitions",
    "read_manifest",
    "shard_of",
]

# Far more partitions than workers: whoever is faster takes the next one sooner, and what a leaver
# has not read is little.
PARTITIONS = 1024


@dataclass(frozen=True, slots=True)
class Partition:
    """A run of samples in a file; what an offset counts is the reader's business."""

    path: str
    offset: int
    length: int


class Shard(NamedTuple):
    """Consecutive samples of one partition, to be read now. `index` names the partition.

    A plain tuple, as other frameworks' pipelines take it.
    """

    path: str
    offset: int
    length: int
    epoch: int
    index: int  # type: ignore[assignment]


def shard_of(
    partitions: Sequence[Partition], index: int, offset: int, length: int, *, epoch: int
) -> Shard:
    """Samples of one partition, counted from its own beginning, as a shard to be read."""
    whole = partitions[index]
    return Shard(whole.path, whole.offset + offset, length, epoch, index)


def listed_partitions(given: Iterable[Partition | Sequence[Any]]) -> list[Partition]:
    """Partitions as a user lists them; UsageError for what cannot be meant."""
    found = []
    for number, one in enumerate(given):
        try:
            part = _listed(one if isinstance(one, Partition) else Partition(*one))
        except TypeError as error:
            raise UsageError(
                f"partition {number} is {one!r}; expected (path, offset, length) with whole numbers"
            ) from error
        if part.length < 1 or part.offset < 0:
            raise UsageError(
                f"partition {number} has offset {part.offset} and length {part.length} in "
                f"{part.path!r}; an offset is at least 0 and a length at least 1"
            )
        found.append(part)
    if not found:
        raise UsageError(
            "no partitions: give a list of (path, offset, length) that has at least one"
        )
    _refuse_overlaps(found)
    return found


def _listed(part: Partition) -> Partition:
    """With plain values, whatever whole numbers it was given; TypeError if they are none."""
    if isinstance(part.offset, bool) or isinstance(part.length, bool):
        raise TypeError("a bool counts nothing")
    path = os.fspath(part.path)
    if not isinstance(path, str):
        raise TypeError("a path is text")
    return Partition(path, operator.index(part.offset), operator.index(part.length))


def _refuse_overlaps(partitions: Sequence[Partition]) -> None:
    ordered = sorted(partitions, key=lambda part: (part.path, part.offset))
    for one, other in pairwise(ordered):
        if one.path == other.path and one.offset + one.length > other.offset:
            raise UsageError(
                f"partitions ({one.path!r}, {one.offset}, {one.length}) and ({other.path!r}, "
                f"{other.offset}, {other.length}) overlap: some samples would be used twice an "
                "epoch; list each once"
            )


def cut_evenly(path: str, samples: int, *, size: int | None, total: int) -> list[Partition]:
    """One file as partitions of `size` samples; without it, as its part of `total` allows."""
    length = size or max(1, -(-total // PARTITIONS))
    return [
        Partition(path, start, min(length, samples - start)) for start in range(0, samples, length)
    ]


def read_manifest(text: str, where: str) -> list[Partition]:
    """A list of partitions as JSON, as JSON lines, or as CSV with or without a head."""
    try:
        rows = _rows(text)
        return listed_partitions([Partition(p, _number(o), _number(n)) for p, o, n in rows])
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{where} is no list of partitions ({error}); expected path, offset and length in "
            "JSON, JSON lines or CSV"
        ) from error


def _rows(text: str) -> list[Sequence[Any]]:
    stripped = text.lstrip()
    if stripped.startswith("["):
        try:
            return [_row(each) for each in json.loads(text)]
        except json.JSONDecodeError:
            return [_row(json.loads(line)) for line in text.splitlines() if line.strip()]
    if stripped.startswith("{"):
        return [_row(json.loads(line)) for line in text.splitlines() if line.strip()]
    rows: list[Sequence[Any]] = [row for row in csv.reader(io.StringIO(text)) if row]
    return rows[1:] if rows and rows[0][:1] == ["path"] else rows


def _number(value: Any) -> Any:
    """What CSV has as text; in JSON a number is one, and nothing else is."""
    return int(value) if isinstance(value, str) else value


def _row(each: Any) -> Sequence[Any]:
    return [each["path"], each["offset"], each["length"]] if isinstance(each, dict) else each


def is_manifest(path: str) -> bool:
    return Path(path).suffix in (".json", ".jsonl", ".csv") and "*" not in path
