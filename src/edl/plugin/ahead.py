"""Batches fetched ahead, though nobody knows for sure which will be wanted.

What is asked for is a forecast of this worker's next batches. Owns: what was asked for and has not
come yet. Holds: a batch is handed out only if it is the one that the step's plan names; after
something unforeseen, such as a lost worker, what was fetched in vain is dropped and the forecast is
made anew. So nothing is lost and nothing comes twice, whatever was guessed; and a sample that
cannot be read matters in the step that it is for, and nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Protocol

from edl.runtime.clock import now

__all__ = ["Ahead", "ByThreads", "Foresee", "Request"]


# Batches that threads read ahead: at least, and at most, since they all lie in memory.
_LEAST, _MOST = 4, 16
# By how many of the last batches that is judged.
_RECENT = 32
_INSTANT_S = 1e-4


@dataclass(frozen=True, slots=True)
class Request:
    """One batch to fetch: what the dataset is asked for, and how it is recognised."""

    key: Hashable
    step: int
    samples: list[Any]


Foresee = Callable[[], Iterator[Request]]


class Ahead(Protocol):
    """The batches of one worker."""

    def get(self, key: Hashable) -> Any:
        """The batch that has this key; waits for it."""
        ...

    def steps_beyond(self, step: int) -> int:
        """How many steps after this one have been asked for."""
        ...

    def next_come(self) -> tuple[Hashable, int] | None:
        """The key and step of the next batch, if it is there: `get` would hardly wait for it."""
        ...


class ByThreads:
    """Threads of this process, for reading that mostly waits.

    As many batches are under way as are used in the time that one of them takes to read; so a
    storage that answers late, though it answers many at once, is not felt.
    """

    def __init__(self, foresee: Foresee, read: Callable[[list[Any]], Any]) -> None:
        self._foresee = foresee
        self._read = read
        self._depth = _LEAST
        self._threads = ThreadPoolExecutor(_MOST, thread_name_prefix="edl-read")
        self._coming: Iterator[Request] = iter(())
        self._asked: deque[tuple[Request, Future[Any]]] = deque()
        self._reading_s: deque[float] = deque(maxlen=_RECENT)
        self._using_s: deque[float] = deque(maxlen=_RECENT)
        self._handed_at: float | None = None

    def steps_beyond(self, step: int) -> int:
        return max(0, self._asked[-1][0].step - step) if self._asked else 0

    def next_come(self) -> tuple[Hashable, int] | None:
        if not self._asked or not self._asked[0][1].done():
            return None
        request = self._asked[0][0]
        return request.key, request.step

    def get(self, key: Hashable) -> Any:
        if self._handed_at is not None:
            self._using_s.append(now() - self._handed_at)
            self._depth = self._enough()
        if not any(request.key == key for request, _ in self._asked):
            for _, future in self._asked:
                future.cancel()
            self._asked.clear()
            self._coming = self._foresee()
            self._fill()
        while self._asked:
            request, future = self._asked.popleft()
            self._fill()
            if request.key == key:
                batch = future.result()
                self._handed_at = now()
                return batch
            future.cancel()
        raise AssertionError(f"the forecast lacks the batch {key}, which it was made for")

    def _enough(self) -> int:
        # The longest: a partition is read in the step that first needs it, the others find it.
        longest = max(self._reading_s, default=0.0)
        return max(_LEAST, min(_MOST, ceil(longest / max(median(self._using_s), _INSTANT_S)) + 2))

    def _fill(self) -> None:
        while len(self._asked) < self._depth:
            request = next(self._coming, None)
            if request is None:
                return
            self._asked.append((request, self._threads.submit(self._timed, request.samples)))

    def _timed(self, samples: list[Any]) -> Any:
        began = now()
        try:
            return self._read(samples)
        finally:
            self._reading_s.append(now() - began)
