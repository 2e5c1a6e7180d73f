"""Tells watchers, from a thread of its own, so that a notification may call the store.

Owns the watches of one client and the order in which they are told. Holds: what is posted first
is done first; a cancelled watch is told nothing; a watcher that fails harms no other.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from edl.store.base import Versioned

__all__ = ["Teller", "ToldWatch"]

log = logging.getLogger("edl.store")

JOIN_S = 1.0


class ToldWatch:
    """One watcher of one key. What it was last told is kept here by the store that tells it."""

    def __init__(self, teller: Teller, key: str, notify: Callable[[Versioned], None]) -> None:
        self.key = key
        # Held while a value is read and posted, so that a later reading is told later.
        self.lock = threading.Lock()
        self.last: Versioned | None = None
        # The store's revision that this watcher knows of, where there is such a number.
        self.heard_at = -1
        self.cancelled = False
        self._notify = notify
        self._teller = teller

    def cancel(self) -> None:
        self.cancelled = True
        self._teller.forget(self)

    def tell(self, news: Versioned) -> None:
        if self.cancelled:
            return
        try:
            self._notify(news)
        except Exception:
            log.exception("store.notify failed key=%s", self.key)


class Teller:
    """Its thread starts with the first watch and ends with `close`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[ToldWatch] = []
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, key: str, notify: Callable[[Versioned], None]) -> ToldWatch:
        watch = ToldWatch(self, key, notify)
        with self._lock:
            # A client that was closed meanwhile tells nobody anything.
            watch.cancelled = self._closed
            self._watches.append(watch)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="edl-store-tell", daemon=True
                )
                self._thread.start()
        return watch

    def watches(self, key: str | None = None) -> list[ToldWatch]:
        """All of them, or those of one key."""
        with self._lock:
            return [watch for watch in self._watches if key is None or watch.key == key]

    def forget(self, watch: ToldWatch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def post(self, task: Callable[[], None]) -> None:
        """Have it done by the thread that tells."""
        self._tasks.put(task)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            watches, self._watches = self._watches, []
            thread = self._thread
        for watch in watches:
            watch.cancelled = True
        self._tasks.put(None)
        # Bounded: a notification may be busy, or may be the one who closes.
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("store.tell failed")
