"""Reads shards in a thread of its own, so that the training never waits for storage.

The paper's double buffer: while the loop uses the samples of one buffer the next ones are being
read, and a new shard is drawn as soon as a buffer is free. Owns: the buffers. Holds: samples come
out in the order in which their shards were drawn; an error of the reading function is raised where
its samples would have come out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edl.errors import UsageError
from edl.runtime.partitions import Shard

__all__ = ["Producer"]

_BUFFERS = 2


class Producer:
    """An iterator over samples."""

    def __init__(
        self, draw: Callable[[], Shard | None], read: Callable[[Shard], Iterable[Any]]
    ) -> None:
        self._draw = draw
        self._read = read
        self._changed = threading.Condition()
        self._full: deque[list[Any] | BaseException | None] = deque()
        self._closed = False
        threading.Thread(target=self._produce, name="edl-read", daemon=True).start()

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self._changed:
                while not self._full:
                    self._changed.wait()
                buffer = self._full.popleft()
                self._changed.notify_all()
            if isinstance(buffer, BaseException):
                raise buffer
            if buffer is None:
                return
            yield from buffer

    def close(self) -> None:
        """Nobody wants what comes next; the thread ends by itself when its read returns."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _produce(self) -> None:
        while True:
            shard = self._draw()
            samples: list[Any] | BaseException | None = None
            if shard is not None:
                samples = self._samples(shard)
            with self._changed:
                while len(self._full) >= _BUFFERS and not self._closed:
                    self._changed.wait()
                self._full.append(samples)
                self._changed.notify_all()
                if self._closed or not isinstance(samples, list):
                    return

    def _samples(self, shard: Shard) -> list[Any] | BaseException:
        try:
            samples = list(self._read(shard))
        except BaseException as error:
            return error
        if len(samples) != shard.length:
            return UsageError(
                f"the reading function gave {len(samples)} samples of a shard of {shard.length} "
                f"({shard.path!r}, from {shard.offset} on)"
            )
        return samples
