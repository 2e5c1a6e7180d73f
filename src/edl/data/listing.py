"""Partitions for `elastic_shard_generator`, from whatever a user has: a list, files, a manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edl.data.files import expand, read_range, size_of
from edl.data.records import count_records
from edl.data.source import Source
from edl.runtime.partitions import (
    Partition,
    cut_evenly,
    is_manifest,
    listed_partitions,
    read_manifest,
)

__all__ = ["Given", "list_partitions"]

Given = str | Source | Iterable[str | Partition | Sequence[object]]


def list_partitions(
    given: Given,
    *,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    partition_samples: int | None = None,
) -> list[Partition]:
    """What a user gives, as partitions.

    A path or URL, with * and ? if need be, or a list of them: files of records if `record_bytes`
    says how large one is, else every file is one sample. A path that ends in .json, .jsonl or .csv
    is a manifest. Anything else is a list of partitions (path, offset, length), or a reader.
    """
    if isinstance(given, Source):
        return list(given.partitions)
    if isinstance(given, str) and record_bytes is None and is_manifest(given):
        return read_manifest(read_range(given, 0, size_of(given)).decode(), given)
    entries = [given] if isinstance(given, str) else list(given)
    if not entries or not all(isinstance(entry, str) for entry in entries):
        return listed_partitions(entries)
    urls = expand([str(entry) for entry in entries])
    if record_bytes is None:
        return [Partition(url, 0, 1) for url in urls]
    counts = count_records(
        urls,
        record_bytes=record_bytes,
        header_bytes=header_bytes,
        partition_samples=partition_samples,
    )
    total = sum(counts.values())
    found = [
        part
        for url, count in counts.items()
        for part in cut_evenly(url, count, size=partition_samples, total=total)
    ]
    return listed_partitions(found)
