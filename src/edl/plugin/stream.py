"""A stream of samples, seen as a dataset that can be asked for any of them.

Every worker reads the whole stream and keeps what is its own, so it must be the same stream on each
of them, and it must say how long it is. Owns: how far the stream was read in this process. Holds:
whoever asks for samples in order reads the stream once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from itertools import islice
from typing import Any

from edl.errors import UsageError

__all__ = ["StreamView"]


class StreamView:
    """Samples by (epoch, index)."""

    def __init__(self, dataset: Any, *, shuffle: bool) -> None:
        name = type(dataset).__name__
        if not isinstance(dataset, Sized):
            raise UsageError(
                f"edl.DataLoader needs to know how many samples an epoch has: give {name} a "
                "__len__, or use partitions (edl.elastic_shard_generator)"
            )
        if shuffle:
            raise UsageError(
                f"{name} is a stream, which EDL cannot shuffle: give shuffle=False, and shuffle in "
                "its __iter__ by a seed and the epoch that set_epoch(epoch) tells"
            )
        self._dataset: Any = dataset
        self._epoch = -1
        self._next = 0
        self._stream: Iterator[Any] = iter(())

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, samples: Sequence[tuple[int, int]]) -> list[Any]:
        found = []
        for epoch, index in samples:
            if epoch != self._epoch or index < self._next:
                self._begin(epoch)
            skipped = index - self._next
            item = list(islice(self._stream, skipped, skipped + 1))
            if not item:
                raise UsageError(
                    f"{type(self._dataset).__name__} says that it has {len(self)} samples, but "
                    f"ends before sample {index}"
                )
            found += item
            self._next = index + 1
        return found

    def _begin(self, epoch: int) -> None:
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        self._epoch, self._next, self._stream = epoch, 0, iter(self._dataset)
