"""Batches fetched ahead, though nobody knows for sure which will be wanted.

What is asked for is a forecast of this worker's next batches. Owns: what was asked for and has not
come yet. Holds: a batch is handed out only if it is the one that the step's plan names; after
something unforeseen, such as a lost worker, what was fetched in vain is dropped and the forecast is
made anew. So nothing is lost and nothing comes twice, whatever was guessed; and a sample that
cannot be read matters in the step that it is for, and nowhere else.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Protocol

from torch.utils.data import DataLoader

from edl.runtime.clock import now
from edl.runtime.lifeline import die_with_parent, die_with_process

__all__ = ["Ahead", "ByProcesses", "ByThreads", "Request"]


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


class _Feed:
    """The batch sampler that torch's loader draws from; it may go on after it had ended."""

    def __init__(self, foresee: Foresee) -> None:
        self._foresee = foresee
        self._coming: Iterator[Request] = iter(())
        self.asked: deque[Request] = deque()

    def begin_anew(self) -> None:
        self._coming = self._foresee()

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> list[Any]:
        request = next(self._coming)
        self.asked.append(request)
        return request.samples


@dataclass(frozen=True, slots=True)
class _Begin:
    """What a loader process does first: it ties itself to the trainer, whose sockets it may have.

    torch lets it look for its parent every 5 s, and not while it reads a sample.
    """

    trainer: int
    is_child: bool  # of the trainer's main thread
    then: Callable[[int], None] | None

    def __call__(self, number: int) -> None:
        if self.is_child:
            die_with_parent(self.trainer)
        else:
            die_with_process(self.trainer)
        if self.then is not None:
            self.then(number)


class ByProcesses:
    """torch's own DataLoader does the work: processes, pinned memory, errors with tracebacks."""

    def __init__(
        self,
        foresee: Foresee,
        *,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        **options: Any,
    ) -> None:
        """`options` are those of torch's DataLoader. The same thread then calls `get`."""
        self._feed = _Feed(foresee)
        is_child = (
            _start_method(multiprocessing_context) != "forkserver"
            and threading.current_thread() is threading.main_thread()
        )
        self._loader: DataLoader[Any] = DataLoader(
            batch_sampler=self._feed,
            persistent_workers=True,
            worker_init_fn=_Begin(os.getpid(), is_child, worker_init_fn),
            multiprocessing_context=multiprocessing_context,
            **options,
        )
        self._batches: Iterator[Any] = iter(())

    def steps_beyond(self, step: int) -> int:
        return _beyond(self._feed.asked, step)

    def next_come(self) -> tuple[Hashable, int] | None:
        asked = self._feed.asked
        return (asked[0].key, asked[0].step) if asked and _has_come(self._batches) else None

    def get(self, key: Hashable) -> Any:
        asked = self._feed.asked
        if not any(request.key == key for request in asked):
            self._feed.begin_anew()
        for _ in range(2):
            while asked:
                request = asked.popleft()
                try:
                    batch = next(self._batches)
                except Exception as error:
                    if request.key == key or _is_fatal(error):
                        raise
                    continue
                if request.key == key:
                    return batch
            # Nothing is on its way, as in the beginning: torch then has to be started anew.
            self._feed.begin_anew()
            self._batches = iter(self._loader)
        raise AssertionError(f"the forecast lacks the batch {key}, which it was made for")


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


def _beyond(asked: deque[Request], step: int) -> int:
    return max(0, asked[-1].step - step) if asked else 0


def _has_come(batches: Iterator[Any]) -> bool:
    """Whether torch has its next batch, or at least one that came sooner.

    torch offers no way to ask. Where it is not made as expected, nothing is ever said to be there.
    """
    kept = getattr(batches, "_task_info", {}).get(getattr(batches, "_rcvd_idx", None), ())
    queue = getattr(batches, "_data_queue", None)
    return len(kept) == 2 or (queue is not None and not queue.empty())


def _start_method(context: Any) -> str:
    if context is None or isinstance(context, str):
        return context or multiprocessing.get_start_method()
    return str(context.get_start_method())


def _is_fatal(error: Exception) -> bool:
    """Whether torch itself gave up, for a lost process or a timeout, rather than a sample failed.

    After that nobody knows which batch comes next. What a sample raised is told as caught.
    """
    return isinstance(error, RuntimeError) and not str(error).startswith("Caught ")
