"""The notice board of one group's rendezvous.

Members pin their addresses here; the agents carry them to each other over the authenticated
connections, because torch's own TCPStore knows no authentication. Holds: a wait ends as soon as
the generation is undone, so nobody sits in a constructor for a member that will not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from edl.errors import GroupBroken
from edl.runtime.clock import now

__all__ = ["Board"]


class Board:
    """Keys and values of one generation's rendezvous."""

    def __init__(self, publish: Callable[[str, bytes], None]) -> None:
        self._publish = publish
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._cancelled = ""

    def pin(self, key: str, value: bytes) -> None:
        """This worker's own value: kept here and told to the others."""
        self.offer(key, value)
        self._publish(key, value)

    def offer(self, key: str, value: bytes) -> None:
        """Another member's value."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def cancel(self, why: str) -> None:
        with self._changed:
            self._cancelled = self._cancelled or why
            self._changed.notify_all()

    def cancelled(self) -> bool:
        with self._changed:
            return bool(self._cancelled)

    def wait(self, keys: Sequence[str], timeout_s: float) -> None:
        """Until every key is there."""
        until = now() + timeout_s
        with self._changed:
            while absent := [key for key in keys if key not in self._values]:
                if self._cancelled:
                    raise GroupBroken(self._cancelled)
                if not self._changed.wait(max(0.0, until - now())) and now() >= until:
                    raise GroupBroken(f"no answer from {absent} within {timeout_s:g} s")

    def read(self, key: str, timeout_s: float) -> bytes:
        self.wait([key], timeout_s)
        with self._changed:
            return self._values[key]
