"""Reading ahead: a partition once, and as many batches as the storage's answer takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edl.data.source import Source
from edl.errors import DataError
from edl.plugin.ahead import ByThreads, Request
from edl.runtime.partitions import Partition, Shard


class Counted(Source):
    """Three samples, and how often they were read."""

    def __init__(self) -> None:
        super().__init__([Partition("a", 0, 3)])
        self.reads = 0
        self.go = threading.Event()
        self.found: Sequence[Any] = (1, 2, 3)

    def read(self, shard: Shard) -> Sequence[Any]:
        return self._part_of(shard, self._all)

    def _all(self) -> Sequence[Any]:
        self.reads += 1
        self.go.wait()
        return self.found


def part(offset: int) -> Shard:
    return Shard(path="a", offset=offset, length=1, epoch=0, index=0)


def test_threads_that_want_one_partition_read_it_once() -> None:
    source = Counted()
    with ThreadPoolExecutor(3) as threads:
        coming = [threads.submit(source.read, part(offset)) for offset in range(3)]
        source.go.set()
        assert [list(each.result()) for each in coming] == [[1], [2], [3]]
    assert source.reads == 1


def test_a_partition_that_could_not_be_read_is_tried_again() -> None:
    source = Counted()
    source.go.set()
    source.found = (1,)
    with pytest.raises(DataError, match="has 1 samples where it had 3"):
        source.read(part(0))
    source.found = (1, 2, 3)
    assert list(source.read(part(2))) == [3]


def requests() -> Iterator[Request]:
    return (Request(step, step, [step]) for step in range(100))


@pytest.mark.parametrize(
    ("reading_s", "using_s", "depth"),
    [(0.001, 0.02, 4), (0.02, 0.02, 4), (0.1, 0.02, 7), (0.1, 0.0, 16), (9.0, 0.02, 16)],
)
def test_as_many_are_read_ahead_as_are_used_meanwhile(
    reading_s: float, using_s: float, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = threading.local()

    def now() -> float:
        return float(getattr(clock, "at", 0.0))

    def read(samples: list[int]) -> list[int]:
        clock.at = now() + reading_s
        return samples

    monkeypatch.setattr("edl.plugin.ahead.now", now)
    ahead = ByThreads(requests, read)
    for step in range(40):
        assert ahead.get(step) == [step]
        clock.at = now() + using_s
    assert ahead.steps_beyond(39) == depth
