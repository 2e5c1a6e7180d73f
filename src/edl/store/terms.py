"""When leases end that the server cannot end by itself, and one user of a lease at a time.

A server keeps a lease's time its own way: etcd in whole seconds fixed when the lease is made,
ZooKeeper for as long as a session is kept. Where that is not what was asked for, the client acts
at the right moment. Owns: alarms by name, rung by one thread that starts with the first of them;
and a lock per name. Holds: an alarm that was dropped or set anew does not ring for its old time,
unless it is ringing already; whoever needs certainty looks again inside `alone`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl.errors import StoreError

__all__ = ["Terms", "check_ttl"]

log = logging.getLogger("edl.store")

JOIN_S = 1.0


def check_ttl(lease: str, ttl_s: float) -> None:
    if not (math.isfinite(ttl_s) and ttl_s >= 0):
        raise StoreError(f"lease {lease!r}: ttl_s is {ttl_s}; expected 0 or more seconds")


class Terms:
    """`ring` is called with a lease's name, from the alarms' thread."""

    def __init__(self, ring: Callable[[str], None]) -> None:
        self._ring = ring
        self._changed = threading.Condition()
        self._alarms: dict[str, float] = {}
        self._locks: dict[str, tuple[threading.Lock, int]] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Nobody else of this client changes that lease meanwhile."""
        with self._changed:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
        try:
            with lock:
                yield
        finally:
            with self._changed:
                lock, users = self._locks[name]
                if users == 1:
                    del self._locks[name]
                else:
                    self._locks[name] = (lock, users - 1)

    def set(self, name: str, at: float) -> None:
        """Ring at that time of the monotonic clock, and not at the time set before."""
        with self._changed:
            self._alarms[name] = at
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._run, name="edl-store-lease", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def drop(self, name: str) -> None:
        with self._changed:
            self._alarms.pop(name, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        # Bounded: it may be asking a server that does not answer.
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)

    def _run(self) -> None:
        while (name := self._next()) is not None:
            try:
                self._ring(name)
            except Exception:
                log.exception("store.lease failed lease=%s", name)

    def _next(self) -> str | None:
        with self._changed:
            while not self._closed:
                name = min(self._alarms, key=self._alarms.__getitem__, default=None)
                if name is None:
                    self._changed.wait()
                elif (left := self._alarms[name] - time.monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    del self._alarms[name]
                    return name
        return None
