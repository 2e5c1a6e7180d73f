"""Records of one size: a sample is so many bytes, and lies where its number says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edl.data.files import Urls, expand, read_range, size_of
from edl.data.source import Source, whole
from edl.errors import UsageError
from edl.runtime.partitions import Shard, cut_evenly

__all__ = ["Records", "count_records"]


class Records(Source):
    """Files of fixed-size records; `decode` makes a sample of one record's bytes."""

    def __init__(
        self,
        urls: Urls,
        *,
        record_bytes: int,
        header_bytes: int = 0,
        partition_samples: int | None = None,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        counts = count_records(
            expand(urls),
            record_bytes=record_bytes,
            header_bytes=header_bytes,
            partition_samples=partition_samples,
        )
        self._record = record_bytes
        self._header = header_bytes
        self._decode = decode
        total = sum(counts.values())
        super().__init__(
            [
                part
                for url, count in counts.items()
                for part in cut_evenly(url, count, size=partition_samples, total=total)
            ]
        )

    def read(self, shard: Shard) -> Sequence[Any]:
        size, start = self._record, self._header + shard.offset * self._record
        content = read_range(shard.path, start, start + shard.length * size)
        rows = [content[at : at + size] for at in range(0, len(content), size)]
        return [self._decode(row) for row in rows] if self._decode is not None else rows


def count_records(
    urls: Sequence[str], *, record_bytes: int, header_bytes: int, partition_samples: int | None
) -> dict[str, int]:
    """How many records each file has."""
    record, header = (
        whole("record_bytes", record_bytes),
        whole("header_bytes", header_bytes, least=0),
    )
    if partition_samples is not None:
        whole("partition_samples", partition_samples)
    counts = {}
    for url in urls:
        size = size_of(url) - header
        if size < 0:
            raise UsageError(f"{url} has {size + header} bytes, fewer than header_bytes={header}")
        if size % record:
            raise UsageError(
                f"{url} has {size} bytes of records, which is no multiple of record_bytes={record}"
            )
        counts[url] = size // record
    return counts
