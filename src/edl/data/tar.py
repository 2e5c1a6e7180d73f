"""Tar files as WebDataset writes them: members with one name before the first dot are a sample.

    000017.jpg  000017.cls  ->  {"__key__": "000017", "jpg": b"...", "cls": b"..."}

The members' places are found by going over the headers once; `index=` keeps what was found.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Sequence
from typing import Any

from edl.data.files import Urls, expand, open_file, read_range, tried
from edl.data.index import kept_index
from edl.data.source import Source, whole
from edl.errors import DataError, UsageError
from edl.runtime.partitions import Partition, Shard

__all__ = ["Tar"]

_SAMPLES, _BYTES = 1000, 16 << 20

# A sample's key, and each member's extension, place and size.
Row = tuple[str, list[tuple[str, int, int]]]


class Tar(Source):
    """Samples as dictionaries of bytes; `decode` makes something else of one."""

    def __init__(
        self,
        urls: Urls,
        *,
        partition_samples: int | None = None,
        decode: Callable[[dict[str, Any]], Any] | None = None,
        index: str | None = None,
    ) -> None:
        if partition_samples is not None:
            partition_samples = whole("partition_samples", partition_samples)
        self._decode = decode
        found = kept_index(index, kind="tar", urls=expand(urls), make=_members)
        partitions: list[Partition] = []
        self._rows: list[list[Row]] = []
        for url, rows in found.items():
            first = 0
            for run in _runs(rows, partition_samples):
                partitions.append(Partition(url, first, len(run)))
                self._rows.append(run)
                first += len(run)
        if not partitions:
            raise UsageError(
                "Tar: there is not a single sample in these files; a member is named for its "
                "sample and its kind, as in 000017.jpg"
            )
        super().__init__(partitions)

    def read(self, shard: Shard) -> Sequence[Any]:
        start = shard.offset - self.partitions[shard.index].offset
        rows = self._rows[shard.index][start : start + shard.length]
        places = [(at, at + size) for _, members in rows for _, at, size in members]
        begin, end = min(at for at, _ in places), max(end for _, end in places)
        content = read_range(shard.path, begin, end)
        found = []
        for key, members in rows:
            sample: dict[str, Any] = {"__key__": key}
            for extension, at, size in members:
                sample[extension] = content[at - begin : at - begin + size]
            found.append(self._decode(sample) if self._decode is not None else sample)
        return found


def _runs(rows: Sequence[Row], samples: int | None) -> list[list[Row]]:
    """Samples that lie one after another, not too many and not too large."""
    runs: list[list[Row]] = []
    size = 0
    for row in rows:
        key, members = row
        length = sum(each[2] for each in members)
        full = len(runs[-1]) >= (samples or _SAMPLES) or size + length > _BYTES if runs else True
        if full:
            runs.append([])
            size = 0
        runs[-1].append((key, [(str(e), int(a), int(n)) for e, a, n in members]))
        size += length
    return runs


def _members(url: str) -> list[Row]:
    def look() -> list[Row] | DataError:
        try:
            with open_file(url) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                rows = _grouped(tar, url)
                # tarfile takes a header that it cannot read for the end, except for the first.
                file.seek(tar.offset)
                if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
                    raise tarfile.TarError(f"it is damaged at byte {tar.offset}")
                return rows
        except tarfile.TarError as error:
            # What the file says wrongly, it says at every try.
            return DataError(
                f"{url} is no readable tar file: {error} (a compressed one cannot be read in parts)"
            )

    found = tried(look, url)
    if isinstance(found, DataError):
        raise found
    return found


def _grouped(tar: tarfile.TarFile, url: str) -> list[Row]:
    rows: list[Row] = []
    for member in tar:
        if not member.isfile():
            continue
        folder, _, name = member.name.rpartition("/")
        stem, dot, extension = name.partition(".")
        if not dot or not stem:
            continue
        if member.issparse():
            raise tarfile.TarError(f"{member.name} has holes, and so lies in pieces")
        key = f"{folder}/{stem}" if folder else stem
        if not rows or rows[-1][0] != key:
            rows.append((key, []))
        if any(known == extension for known, _, _ in rows[-1][1]):
            raise tarfile.TarError(f"{member.name} is in {url} twice")
        rows[-1][1].append((extension, member.offset_data, member.size))
    return rows
