"""Text files, a line a sample; and JSON lines.

To hand out samples the ledger must know how many there are, so the files are read through once to
find where lines begin; `index=` keeps what was found. Holds: partitions are cut between lines, so
a line belongs to exactly one of them.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edl.data.files import Urls, expand, read_range, size_of
from edl.data.index import kept_index
from edl.data.source import Source, whole
from edl.errors import DataError, UsageError
from edl.runtime.partitions import Partition, Shard

__all__ = ["JsonLines", "Lines"]

_PARTITION = 1 << 20
_READ = 8 << 20

# Where a partition's bytes begin and end, its first sample, how many it has, and its first line.
Row = tuple[int, int, int, int, int]


class Lines(Source):
    """Each line of the files, without its end, as text; `decode` makes a sample of it."""

    # Whether a line with nothing on it is a sample.
    _counts_blank = True

    def __init__(
        self,
        urls: Urls,
        *,
        partition_bytes: int = _PARTITION,
        decode: Callable[[str], Any] | None = None,
        encoding: str = "utf-8",
        index: str | None = None,
    ) -> None:
        self._decode = decode
        self._encoding = _checked(encoding)
        size, blank = whole("partition_bytes", partition_bytes), self._counts_blank
        found = kept_index(
            index,
            kind=f"{'lines' if blank else 'jsonl'}/{size}",
            urls=expand(urls),
            make=lambda url: list(_cut(url, size, blank=blank)),
        )
        rows = [(url, row) for url, rows in found.items() for row in rows]
        self._bytes = [(row[0], row[1]) for _, row in rows]
        self._first_lines = [row[4] for _, row in rows]
        super().__init__([Partition(url, row[2], row[3]) for url, row in rows])

    def read(self, shard: Shard) -> Sequence[Any]:
        # Only what is asked for is decoded: a bad line matters in its own step.
        lines = self._part_of(shard, lambda: self._read(shard.index))
        return [self._decoded(shard.path, number, line) for number, line in lines]

    def _read(self, index: int) -> list[tuple[int, bytes]]:
        """The lines that are samples, with their numbers."""
        content = read_range(self.partitions[index].path, *self._bytes[index])
        lines = enumerate(_lines(content), start=self._first_lines[index] + 1)
        return [pair for pair in lines if self._counts_blank or pair[1].strip()]

    def _decoded(self, path: str, number: int, line: bytes) -> Any:
        try:
            return self._sample(line.removesuffix(b"\r").decode(self._encoding))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from error
        except Exception as error:
            error.add_note(f"This was {path}, line {number}.")
            raise

    def _sample(self, text: str) -> Any:
        return self._decode(text) if self._decode is not None else text


class JsonLines(Lines):
    """One JSON value a line; blank lines are none. `decode` makes a sample of a value."""

    _counts_blank = False

    def __init__(
        self,
        urls: Urls,
        *,
        partition_bytes: int = _PARTITION,
        decode: Callable[[Any], Any] | None = None,
        index: str | None = None,
    ) -> None:
        # Some editors begin a file with a mark that json does not take for nothing.
        super().__init__(
            urls, partition_bytes=partition_bytes, decode=decode, encoding="utf-8-sig", index=index
        )

    def _sample(self, text: str) -> Any:
        value = json.loads(text)
        return self._decode(value) if self._decode is not None else value


def _checked(encoding: str) -> str:
    try:
        name = codecs.lookup(encoding).name
    except LookupError as error:
        raise UsageError(f"encoding={encoding!r} is not known to Python") from error
    if name.startswith(("utf-16", "utf-32")):
        raise UsageError(
            f"encoding={encoding!r}: lines end in one byte; convert the files to UTF-8"
        )
    return name


def _lines(content: bytes) -> list[bytes]:
    return content.removesuffix(b"\n").split(b"\n")


def _cut(url: str, partition_bytes: int, *, blank: bool) -> Iterator[Row]:
    """Partitions of about so many bytes, each of whole lines with a sample among them."""
    start = sample = line = 0
    for content in _runs(url, partition_bytes):
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        samples = lines if blank else sum(1 for each in _lines(content) if each.strip())
        if samples:
            yield start, start + len(content), sample, samples, line
        start, sample, line = start + len(content), sample + samples, line + lines


def _runs(url: str, partition_bytes: int) -> Iterator[bytes]:
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
            yield content[:end]
            content = content[end:]
    if content:
        yield content


def _blocks(url: str) -> Iterator[bytes]:
    size = size_of(url)
    for start in range(0, size, _READ):
        yield read_range(url, start, min(start + _READ, size))
