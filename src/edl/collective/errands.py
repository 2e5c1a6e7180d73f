"""Work in order on a thread of its own, beside the training.

Both ends of a state's group do the same things in the same order, so one thread does all of them.
Holds: errands are run in the order in which they were given, and none after one that failed, for
the two ends are then no longer in step.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from edl.errors import GroupBroken
from edl.runtime.clock import now

__all__ = ["Errand", "Errands"]

_log = logging.getLogger("edl.state")

_Result = TypeVar("_Result")


class Errand(Generic[_Result]):
    """One piece of work under way; its result, its error and its time are asked for later."""

    def __init__(self, work: Callable[[], _Result]) -> None:
        self._work: Callable[[], _Result] | None = work
        self._done = threading.Event()
        self._results: list[_Result] = []
        self.error: BaseException | None = None
        self.began = self.ended = now()

    def run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        self.began = now()
        try:
            self._results.append(work())
        except BaseException as error:
            self.error = error
        self.ended = now()
        self._done.set()

    def fail(self, error: BaseException) -> None:
        self._work, self.error = None, error
        self._done.set()

    def wait(self) -> _Result:
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self._results[0]


class Errands:
    """One line of errands; its thread begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._line: queue.SimpleQueue[Errand[object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False

    def give(self, work: Callable[[], _Result]) -> Errand[_Result]:
        errand = Errand(work)
        with self._lock:
            if self._closed:
                raise GroupBroken(f"{self._name}: its group was dropped")
            self._line.put(errand)  # type: ignore[arg-type]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        return errand

    def close(self) -> None:
        """Wait until everything given has been done, and end the thread. May be called again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._line.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        failed: BaseException | None = None
        while (errand := self._line.get()) is not None:
            if failed is not None:
                errand.fail(failed)
                continue
            errand.run()
            failed = errand.error
            if failed is not None:
                # Not everybody waits for an errand; a lost peer shows in the next record too.
                _log.warning("state.broken line=%s: %r", self._name, failed)
