"""Parquet files: a row is a sample, and a row group a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edl.data.files import Urls, expand, open_file, tried
from edl.data.source import Source
from edl.errors import DataError, UsageError
from edl.runtime.partitions import Partition, Shard

__all__ = ["Parquet"]


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
                groups = range(about.metadata.num_row_groups)
                return [about.metadata.row_group(group).num_rows for group in groups]

        return list(_readable(look, url))

    def _read(self, index: int) -> list[Any]:
        parquet, url = _pyarrow(), self.partitions[index].path

        def look() -> list[Any]:
            with open_file(url) as file:
                table = parquet.ParquetFile(file).read_row_group(
                    self._groups[index], columns=self._columns
                )
            return list(table.to_pylist())

        return list(_readable(look, url))


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
