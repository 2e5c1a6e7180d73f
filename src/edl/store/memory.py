"""The store's rules, and a store within one process.

`StoreCore` is pure (time is the argument `now`), so that the embedded server and the memory store
obey the same rules by construction. Holds: a lease's keys are those whose last write named it; the
counter only grows.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl.errors import StoreError
from edl.store.base import Swap, Versioned

__all__ = ["MemoryStore", "StoreCore"]

log = logging.getLogger("edl.store")

ABSENT = Versioned(None, 0)


@dataclass(slots=True)
class _Lease:
    ttl_s: float
    deadline: float


class StoreCore:
    """Keys, revisions and leases. Methods that may change keys on their own return which."""

    def __init__(self, *, first_revision: int = 1) -> None:
        self._next_revision = first_revision
        self._entries: dict[str, Versioned] = {}
        self._lease_of: dict[str, str] = {}
        self._leases: dict[str, _Lease] = {}
        self._held: dict[str, set[str]] = {}

    def get(self, key: str) -> Versioned:
        return self._entries.get(key, ABSENT)

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        if lease is not None and lease not in self._leases:
            raise StoreError(
                f"lease {lease!r} does not exist or has expired; call keep_alive first"
            )
        current = self.get(key)
        if current.revision != expected:
            return Swap(False, current)
        if value is None:
            self._delete(key)
            return Swap(True, ABSENT)
        self._detach(key)
        self._entries[key] = Versioned(value, self._take_revision())
        if lease is not None:
            self._lease_of[key] = lease
            self._held[lease].add(key)
        return Swap(True, self._entries[key])

    def keep_alive(self, lease: str, ttl_s: float, now: float) -> list[str]:
        if not (math.isfinite(ttl_s) and ttl_s >= 0):
            raise StoreError(f"lease {lease!r}: ttl_s is {ttl_s}; expected 0 or more seconds")
        if ttl_s == 0:
            return self._end([lease])
        self._leases[lease] = _Lease(ttl_s, now + ttl_s)
        self._held.setdefault(lease, set())
        return []

    def expire(self, now: float) -> list[str]:
        return self._end([name for name, lease in self._leases.items() if lease.deadline <= now])

    def renew_all(self, now: float) -> None:
        """For a server that slept: nobody could renew meanwhile, so nobody is late."""
        for lease in self._leases.values():
            lease.deadline = now + lease.ttl_s

    def _end(self, leases: Iterable[str]) -> list[str]:
        changed: list[str] = []
        for lease in leases:
            self._leases.pop(lease, None)
            # Sorted, so that the same story always has the same order.
            changed += sorted(self._held.get(lease, ()))
            for key in list(self._held.get(lease, ())):
                self._delete(key)
            self._held.pop(lease, None)
        return changed

    def _delete(self, key: str) -> None:
        self._detach(key)
        if self._entries.pop(key, None) is not None:
            self._take_revision()

    def _detach(self, key: str) -> None:
        lease = self._lease_of.pop(key, None)
        if lease is not None:
            self._held[lease].discard(key)

    def _take_revision(self) -> int:
        revision = self._next_revision
        self._next_revision += 1
        return revision


class _MemoryWatch:
    def __init__(self, store: MemoryStore, key: str, notify: Callable[[Versioned], None]) -> None:
        self.key = key
        self.notify = notify
        self.cancelled = False
        self._store = store

    def cancel(self) -> None:
        self.cancelled = True
        self._store.forget(self)


class MemoryStore:
    """A store for one process: tests, and a script that runs alone.

    It has no thread of its own: leases expire when any method is called, or by `advance`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ahead_s = 0.0
        self._core = StoreCore()
        self._lock = threading.Lock()
        self._watches: list[_MemoryWatch] = []
        self._news: deque[tuple[_MemoryWatch, Versioned]] = deque()
        self._telling = False
        self._closed = False

    def get(self, key: str) -> Versioned:
        with self._lock:
            self._refresh()
            found = self._core.get(key)
        self._tell()
        return found

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        try:
            with self._lock:
                self._refresh()
                swap = self._core.compare_and_swap(key, expected=expected, value=value, lease=lease)
                if swap.done:
                    self._note([key])
        finally:
            self._tell()
        return swap

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        with self._lock:
            self._refresh()
            self._note(self._core.keep_alive(lease, ttl_s, self._now()))
        self._tell()

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> _MemoryWatch:
        watch = _MemoryWatch(self, key, notify)
        with self._lock:
            self._refresh()
            self._watches.append(watch)
            self._news.append((watch, self._core.get(key)))
        self._tell()
        return watch

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._watches.clear()

    def advance(self, seconds: float) -> None:
        """Let time pass at once."""
        with self._lock:
            self._ahead_s += seconds
            self._refresh()
        self._tell()

    def forget(self, watch: _MemoryWatch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)

    def _now(self) -> float:
        return self._clock() + self._ahead_s

    def _refresh(self) -> None:
        if self._closed:
            raise StoreError("this store is closed")
        self._note(self._core.expire(self._now()))

    def _note(self, keys: Iterable[str]) -> None:
        for key in keys:
            now = self._core.get(key)
            self._news.extend((watch, now) for watch in self._watches if watch.key == key)

    def _tell(self) -> None:
        """Deliver outside the lock, so that a notification may call the store, and by one thread
        at a time, so that the order is kept."""
        while True:
            with self._lock:
                if self._telling or not self._news:
                    return
                self._telling = True
                watch, news = self._news.popleft()
            try:
                if not watch.cancelled:
                    watch.notify(news)
            except Exception:
                log.exception("store.notify failed key=%s", watch.key)
            finally:
                with self._lock:
                    self._telling = False
