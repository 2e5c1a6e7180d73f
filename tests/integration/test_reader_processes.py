"""Readers in other processes, forked or spawned: a copy reads what the original reads."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem

from edl.data import JsonLines, Lines, Parquet, Records, Source, Tar
from tests.unit.specimens import as_number, numbers, parquet_bytes, read_all, tar_bytes

pytestmark = pytest.mark.paired


def x_of(row: dict[str, Any]) -> int:
    return int(row["x"])


def readers(folder: Path, prefix: str = "") -> list[Source]:
    (folder / "a.records").write_bytes(numbers(1, 2, 3))
    (folder / "a.txt").write_bytes(b"1\n2\n3")
    (folder / "a.jsonl").write_bytes(b'{"x": 1}\n\n{"x": 2}\n{"x": 3}\n')
    (folder / "a.parquet").write_bytes(parquet_bytes([1, 2, 3], group=2))
    (folder / "a.tar").write_bytes(tar_bytes({f"{n}.x": str(n).encode() for n in (1, 2, 3)}))
    place = f"{prefix}{folder}"
    return [
        Records(f"{place}/*.records", record_bytes=4, partition_samples=2, decode=as_number),
        Lines(f"{place}/*.txt", partition_bytes=2, decode=int),
        JsonLines(f"{place}/*.jsonl", decode=x_of),
        Parquet(f"{place}/*.parquet", decode=x_of),
        Tar(f"{place}/*.tar", decode=x_of),
    ]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_reader_works_in_another_process(tmp_path: Path, method: str) -> None:
    made = readers(tmp_path)
    # What this process has read, and the threads it used for that, must not matter to the other.
    here = [read_all(reader) for reader in made]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as other:
        there = list(other.map(read_all, made))
    assert here == there == [[1, 2, 3]] * 5


class Asynchronous(AsyncFileSystemWrapper):  # type: ignore[misc]
    """A disk behind an event loop in a thread, as the drivers of S3, GCS and HTTP are made."""

    protocol = "asynchronous"

    def __init__(self, **options: Any) -> None:
        super().__init__(LocalFileSystem(), **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(path.removeprefix("asynchronous://")))


def test_drivers_with_an_event_loop_work_after_a_fork(tmp_path: Path) -> None:
    fsspec.register_implementation("asynchronous", Asynchronous, clobber=True)
    made = readers(tmp_path, "asynchronous://")
    assert [read_all(reader) for reader in made] == [[1, 2, 3]] * 5
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as other:
        assert list(other.map(read_all, made)) == [[1, 2, 3]] * 5
