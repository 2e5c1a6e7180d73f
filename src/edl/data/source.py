"""What every reader is: partitions, and a way to read a part of one.

Owns: the samples of the last few partitions that were read whole, since steps use them bit by bit.
Holds: a copy in another process starts with none; threads that want one partition read it once.
"""

from __future__ import annotations

import operator
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from edl.errors import DataError, UsageError
from edl.runtime.partitions import Partition, Shard, listed_partitions

__all__ = ["Source", "whole"]

# A worker reads one partition at a time, and near an epoch's end the tails of a few.
_KEPT = 4


def whole(name: str, value: Any, *, least: int = 1) -> int:
    """An argument that counts something; UsageError for what is no whole number from `least` on."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise UsageError(f"{name}={value!r}: give a whole number, at least {least}")
    return number


class Source(ABC):
    """Partitioned samples. Derive from it, or give `edl.DataLoader` one of the readers."""

    def __init__(self, partitions: Sequence[Partition]) -> None:
        given = list(partitions)
        if not given:
            raise UsageError(f"{type(self).__name__}: there is not a single sample in these files")
        self.partitions = listed_partitions(given)
        self._begin()

    def _begin(self) -> None:
        self._kept: OrderedDict[int, Sequence[Any]] = OrderedDict()
        self._reading: dict[int, Future[Sequence[Any]]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(part.length for part in self.partitions)

    @abstractmethod
    def read(self, shard: Shard) -> Sequence[Any]:
        """The shard's samples, in order."""

    def _whole(self, index: int, read: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """All samples of a partition, read once while it is in use."""
        with self._lock:
            if index in self._kept:
                self._kept.move_to_end(index)
                return self._kept[index]
            reading = self._reading.get(index)
            mine: Future[Sequence[Any]] = Future()
            if reading is None:
                self._reading[index] = mine
        if reading is not None:
            return reading.result()
        try:
            samples = self._checked(index, read())
        except BaseException as error:
            mine.set_exception(error)
            with self._lock:
                del self._reading[index]
            raise
        with self._lock:
            self._kept[index] = samples
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
            del self._reading[index]
        mine.set_result(samples)
        return samples

    def _checked(self, index: int, samples: Sequence[Any]) -> Sequence[Any]:
        part = self.partitions[index]
        if len(samples) != part.length:
            raise DataError(
                f"{part.path} has {len(samples)} samples where it had {part.length} when it was "
                f"indexed (from {part.offset} on); index it again"
            )
        return samples

    def _part_of(self, shard: Shard, read: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        start = shard.offset - self.partitions[shard.index].offset
        return self._whole(shard.index, read)[start : start + shard.length]

    def __getstate__(self) -> dict[str, Any]:
        own = ("_kept", "_reading", "_lock")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
