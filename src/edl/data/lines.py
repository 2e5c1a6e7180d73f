"""Text files, a line a sample; and JSON lines.

To hand out samples the ledger must know how many there are, so the files are read through once to
find where lines begin; `index=` keeps what was found. Holds: partitions are cut between lines, so
a line belongs to exactly one of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edl.data.files import expand, read_range, size_of
from edl.data.index import kept_index
from edl.data.source import Source
from edl.errors import DataError
from edl.runtime.partitions import Partition, Shard

__all__ = ["JsonLines", "Lines"]

_PARTITION = 1 << 20
_READ = 8 << 20

# Where a partition's bytes begin and end, its first line and how many it has.
Row = tuple[int, int, int, int]


class Lines(Source):
    """Each line of the files, without its end, as text; `decode` makes a sample of it."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        partition_bytes: int = _PARTITION,
        decode: Callable[[str], Any] | None = None,
        encoding: str = "utf-8",
        index: str | None = None,
    ) -> None:
        self._decode = decode
        self._encoding = encoding
        found = kept_index(
            index,
            kind=f"lines/{partition_bytes}",
            urls=expand(urls),
            make=lambda url: list(_cut(url, partition_bytes)),
        )
        rows = [(url, row) for url, rows in found.items() for row in rows]
        self._bytes = [(row[0], row[1]) for _, row in rows]
        super().__init__([Partition(url, row[2], row[3]) for url, row in rows])

    def read(self, shard: Shard) -> Sequence[Any]:
        return self._part_of(shard, lambda: self._read(shard.index))

    def _read(self, index: int) -> list[Any]:
        part, (start, end) = self.partitions[index], self._bytes[index]
        content = read_range(part.path, start, end)
        lines = content.removesuffix(b"\n").split(b"\n")
        found = []
        for number, line in enumerate(lines, start=part.offset + 1):
            try:
                text = line.removesuffix(b"\r").decode(self._encoding)
                found.append(self._decode(text) if self._decode is not None else text)
            except ValueError as error:
                raise DataError(f"{part.path}, line {number}: {error}") from error
        return found


class JsonLines(Lines):
    """One JSON value a line."""

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        partition_bytes: int = _PARTITION,
        index: str | None = None,
    ) -> None:
        super().__init__(urls, partition_bytes=partition_bytes, decode=json.loads, index=index)


def _cut(url: str, partition_bytes: int) -> Iterator[Row]:
    """Partitions of about so many bytes, each of whole lines."""
    start = first = 0
    content = b""
    for block in _blocks(url):
        content += block
        while len(content) >= partition_bytes:
            end = content.rfind(b"\n", 0, partition_bytes) + 1
            if not end:
                # A line longer than a partition is one all the same.
                end = content.find(b"\n", partition_bytes) + 1
            if not end:
                break
            lines = content.count(b"\n", 0, end)
            yield start, start + end, first, lines
            start, first, content = start + end, first + lines, content[end:]
    if content:
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        yield start, start + len(content), first, lines


def _blocks(url: str) -> Iterator[bytes]:
    size = size_of(url)
    for start in range(0, size, _READ):
        yield read_range(url, start, min(start + _READ, size))
