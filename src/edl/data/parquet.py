"""Parquet files: a row is a sample, and a row group a partition."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from edl.data.files import Urls, expand, open_file, read_range, tried
from edl.data.source import Source
from edl.errors import DataError, UsageError
from edl.runtime.partitions import Partition, Shard

__all__ = ["Parquet"]

# To read so many bytes in vain takes less than another request.
_GAP = 1 << 20


class Parquet(Source):
    """Rows as dictionaries; `columns` names those to read (all); `decode` makes samples of them."""

    def __init__(
        self,
        urls: Urls,
        *,
        columns: Sequence[str] | None = None,
        decode: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        if isinstance(columns, str) or (columns is not None and not columns):
            raise UsageError(f"columns={columns!r}: give a list of names, or leave it out for all")
        self._columns = list(columns) if columns is not None else None
        self._decode = decode
        partitions: list[Partition] = []
        self._groups: list[int] = []
        self._about: dict[str, Any] = {}  # each file's footer, so that it is read once
        for url in expand(urls):
            first = 0
            for group, rows in enumerate(self._rows(url)):
                if rows:
                    partitions.append(Partition(url, first, rows))
                    self._groups.append(group)
                first += rows
        super().__init__(partitions)

    def read(self, shard: Shard) -> Sequence[Any]:
        rows = self._part_of(shard, lambda: self._read(shard.index))
        return [self._decode(row) for row in rows] if self._decode is not None else rows

    def _rows(self, url: str) -> list[int]:
        parquet = _pyarrow()

        def look() -> list[int]:
            with open_file(url) as file:
                about = parquet.ParquetFile(file)
                known = set(about.schema_arrow.names)
                # A part of a nested column is named with dots.
                absent = {
                    name
                    for name in self._columns or ()
                    if not {name, name.partition(".")[0]} & known
                }
                if absent:
                    raise UsageError(
                        f"{url} has no column {min(absent)!r}; it has "
                        f"{', '.join(about.schema_arrow.names)}"
                    )
                self._about[url] = about.metadata
                groups = range(about.metadata.num_row_groups)
                return [about.metadata.row_group(group).num_rows for group in groups]

        return list(_readable(look, url))

    def _read(self, index: int) -> list[Any]:
        parquet, url = _pyarrow(), self.partitions[index].path
        about, group = self._about[url], self._groups[index]

        def look() -> list[Any]:
            with _Held(url, about.row_group(group), self._columns) as held:
                table = parquet.ParquetFile(held, metadata=about).read_row_group(
                    group, columns=self._columns
                )
            return list(table.to_pylist())

        return list(_readable(look, url))


class _Held(io.RawIOBase):
    """A file of which the bytes of one row group are held, asked for in as few requests as go.

    A Parquet file by itself asks for its footer and for one column after another; behind a
    network, each of these waits for an answer.
    """

    def __init__(self, url: str, group: Any, columns: Sequence[str] | None) -> None:
        self._url = url
        self._at = 0
        self._ranges: list[tuple[int, bytes]] = []
        for start, end in _spans(group, columns):
            self._ranges.append((start, read_range(url, start, end)))
        self._size = max((start + len(held) for start, held in self._ranges), default=0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at
        end = self._size if size < 0 else min(begin + size, self._size)
        for start, held in self._ranges:
            if start <= begin and end <= start + len(held):
                self._at = end
                return held[begin - start : end - start]
        # Some writers' footers are not exact.
        self._at = end
        return read_range(self._url, begin, end)


def _spans(group: Any, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    """Where the columns lie, with little gaps between them closed."""
    places = []
    for number in range(group.num_columns):
        column = group.column(number)
        # A column of records is several, named by a path that begins with its name.
        if columns is not None and not any(
            column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.")
            for name in columns
        ):
            continue
        first = column.data_page_offset
        if column.has_dictionary_page and column.dictionary_page_offset:
            first = min(first, column.dictionary_page_offset)
        places.append((first, first + column.total_compressed_size))
    spans: list[tuple[int, int]] = []
    for start, end in sorted(places):
        if spans and start - spans[-1][1] <= _GAP:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def _readable(look: Any, url: str) -> Any:
    import pyarrow

    def once() -> Any:
        try:
            return look()
        except pyarrow.ArrowInvalid as error:
            return DataError(f"{url} is no readable Parquet file: {error}")
        except (UsageError, DataError) as error:
            return error

    # What the file says wrongly, it says at every try.
    found = tried(once, url)
    if isinstance(found, Exception):
        raise found
    return found


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet files need pyarrow: pip install 'edl-elastic[data]'") from error
    return pyarrow.parquet
