"""Files of samples, made in the tests, and what a reader reads from them."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

from edl.data import Source
from edl.plugin.views import view_of

__all__ = ["Write", "as_number", "numbers", "parquet_bytes", "read_all", "tar_bytes"]

Write = Callable[[str, bytes], str]


def read_all(source: Source) -> list[Any]:
    """Every sample, a few at a time, by way of what the loader asks."""
    view = view_of(source, batch=3, seed=0, shuffle=False, drop_last=False, epochs=1)
    found: list[Any] = []
    for index, part in enumerate(source.partitions):
        for start in range(0, part.length, 2):
            found += view.dataset.__getitems__([(0, index, start, min(2, part.length - start))])
    assert len(found) == len(source)
    return found


def parquet_bytes(values: list[int], *, group: int = 3) -> bytes:
    sink = io.BytesIO()
    table = arrow.table({"x": values, "y": [{"z": value} for value in values]})
    parquet.write_table(table, sink, row_group_size=group)
    return sink.getvalue()


def tar_bytes(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def numbers(*values: int) -> bytes:
    return b"".join(struct.pack("<i", value) for value in values)


def as_number(record: bytes) -> int:
    return int(struct.unpack("<i", record)[0])
