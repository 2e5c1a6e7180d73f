"""The store as the world's processes reach it: late answers, late notifications, leases."""

from __future__ import annotations

from collections.abc import Callable

from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.recorded import read_recorded
from edl.protocol.topology import Generation
from edl.store.base import Swap, Versioned
from edl.store.memory import StoreCore
from tests.seeded.schedule import Schedule

__all__ = ["Shelf"]

# A lease lives as long as its process: what keep-alives do, without an event for each.
_FOR_EVER_S = 1e9


class Shelf:
    """The rules are `StoreCore`'s own; this adds the way there and back."""

    def __init__(self, schedule: Schedule, delay: Callable[[], float]) -> None:
        self.schedule = schedule
        self.delay = delay
        self.core = StoreCore()
        self.recorded: list[Generation] = []
        self._watches: dict[str, list[tuple[Callable[[Versioned], None], list[float]]]] = {}

    def get(self, key: str) -> Versioned:
        return self.core.get(key)

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> None:
        watch = (notify, [0.0])
        self._watches.setdefault(key, []).append(watch)
        self._notify(watch, self.core.get(key))

    def swap(
        self,
        key: str,
        *,
        expected: int,
        value: bytes | None,
        lease: str | None,
        answer: Callable[[Swap], None],
    ) -> None:
        self.schedule.after(self.delay(), self._swap, key, expected, value, lease, answer)

    def _swap(
        self,
        key: str,
        expected: int,
        value: bytes | None,
        lease: str | None,
        answer: Callable[[Swap], None],
    ) -> None:
        if lease is not None:
            self.core.keep_alive(lease, _FOR_EVER_S, self.schedule.now)
        swap = self.core.compare_and_swap(key, expected=expected, value=value, lease=lease)
        if swap.done:
            if key == GENERATION_KEY and value is not None:
                self.recorded.append(read_recorded(value).generation)
            self._changed([key])
        self.schedule.after(self.delay(), answer, swap)

    def revoke(self, lease: str) -> None:
        """A lease ends, by its process's end or because it was not renewed in time."""
        self._changed(self.core.keep_alive(lease, 0.0, self.schedule.now))

    def _changed(self, keys: list[str]) -> None:
        for key in keys:
            for watch in self._watches.get(key, ()):
                self._notify(watch, self.core.get(key))

    def _notify(
        self, watch: tuple[Callable[[Versioned], None], list[float]], seen: Versioned
    ) -> None:
        notify, last = watch
        when = max(last[0], self.schedule.now + self.delay())
        last[0] = when
        self.schedule.at(when, notify, seen)
