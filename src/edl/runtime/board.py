"""The notice board of one group's rendezvous.

Members pin their addresses here; the agents carry them to each other over the authenticated
connections, because torch's own TCPStore knows no authentication. A value that every member of a
group publishes once is an entry: the leader collects the entries of a group and sends each member
one table of them. Any other key travels by itself. Holds: a wait ends as soon as
the generation is undone, so nobody sits in a constructor for a member that will not come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl.errors import GroupBroken
from edl.runtime.clock import now

__all__ = ["Board", "Entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What this worker publishes for one group: a common part, and equal parts for all ranks."""

    group: str
    rank: int
    size: int
    key: str
    common: bytes
    parts: bytes


@dataclass(frozen=True, slots=True)
class _Offered:
    """One row of a table. Joined when it is read: whole values of all members are large."""

    common: bytes
    part: bytes
    rank: int
    size: int

    def join(self) -> bytes:
        """The value as it was published, with zeros for the parts of other ranks."""
        before, after = self.rank * len(self.part), (self.size - self.rank - 1) * len(self.part)
        return b"".join((self.common, bytes(before), self.part, bytes(after)))


class Board:
    """Keys and values of one generation's rendezvous."""

    def __init__(
        self,
        publish: Callable[[str, bytes], None],
        publish_entry: Callable[[Entry], None] | None = None,
    ) -> None:
        self._publish = publish
        self._publish_entry = publish_entry
        self._values: dict[str, bytes | _Offered] = {}
        self._changed = threading.Condition()
        self._cancelled = ""

    def pin(self, key: str, value: bytes) -> None:
        """This worker's own value: kept here and told to the others."""
        self.offer(key, value)
        self._publish(key, value)

    def pin_entry(self, entry: Entry) -> None:
        """This worker's own entry for one group; a key like any other if nobody collects."""
        value = entry.common + entry.parts
        if self._publish_entry is None:
            self.pin(entry.key, value)
            return
        self.offer(entry.key, value)
        self._publish_entry(entry)

    def offer_table(
        self, entries: Sequence[tuple[str, bytes, bytes]], *, rank: int, size: int
    ) -> None:
        """The entries of all members: key, common part, and the part for this member's rank."""
        with self._changed:
            for key, common, part in entries:
                # This worker's own value stays as it was published.
                self._values.setdefault(key, _Offered(common, part, rank, size))
            self._changed.notify_all()

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
            value = self._values[key]
        return value.join() if isinstance(value, _Offered) else value
