"""Batches fetched ahead by processes of torch's own loader (see plugin/ahead.py)."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from edl.plugin.ahead import Foresee, Request
from edl.runtime.lifeline import die_with_parent, die_with_process

__all__ = ["ByProcesses"]


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
