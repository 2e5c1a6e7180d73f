"""The store as the world's processes reach it: an unreliable way there and back, and leases.

Requests and answers are late or lost, notifications are late or come twice, each with the odds of
the plan. A notification never overtakes an earlier one of the same watch.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.leader import STATE_KEY
from edl.protocol.recorded import read_recorded
from edl.protocol.topology import Generation
from edl.store.base import Swap, Versioned
from edl.store.memory import StoreCore
from tests.seeded.plan import Plan
from tests.seeded.schedule import Schedule

__all__ = ["Shelf"]

# A lease lives as long as its process: what keep-alives do, without an event for each.
_FOR_EVER_S = 1e9
# The longest extra delay of a late answer. Notifications are not that late: a worker that hears of
# a new leader only after `reconnect_s` is called lost, and rightly so.
_LATE_S = 1.5


class Shelf:
    """The rules are `StoreCore`'s own; this adds the way there and back."""

    def __init__(self, schedule: Schedule, delay: Callable[[], float], plan: Plan) -> None:
        self.schedule = schedule
        self.delay = delay
        self.plan = plan
        # Not the world's generator: a more reliable store changes nothing else.
        self.rng = random.Random(f"shelf/{plan.seed}")
        self.core = StoreCore()
        self.recorded: list[Generation] = []
        self._ended: set[str] = set()  # leases of processes that are no more
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
        fail: Callable[[], None],
    ) -> None:
        """Exactly one of `answer` and `fail` is called; after `fail` it may be done or not."""
        if self._happens(self.plan.lost_requests):
            self.schedule.after(self._timeout(), fail)
            return
        if self._happens(self.plan.lost_answers):
            self.schedule.after(self._timeout(), fail)
            answer = _ignore
        self.schedule.after(self.delay(), self._swap, key, expected, value, lease, answer)

    def _happens(self, odds: float) -> bool:
        return odds > 0.0 and self.rng.random() < odds

    def _timeout(self) -> float:
        return self.plan.store_timeout_s * (0.5 + self.rng.random())

    def _swap(
        self,
        key: str,
        expected: int,
        value: bytes | None,
        lease: str | None,
        answer: Callable[[Swap], None],
    ) -> None:
        if lease in self._ended:
            return  # a request that outlived its process: the store knows no such lease any more
        if lease is not None:
            self.core.keep_alive(lease, _FOR_EVER_S, self.schedule.now)
        swap = self.core.compare_and_swap(key, expected=expected, value=value, lease=lease)
        if swap.done:
            if key == GENERATION_KEY and value is not None:
                self.recorded.append(read_recorded(value).generation)
            self._changed([key])
        late = _LATE_S * self.rng.random() if self._happens(self.plan.late_answers) else 0.0
        self.schedule.after(self.delay() + late, answer, swap)

    def fence(self) -> bool:
        """Delete the generation, as a launcher does before it starts the job again."""
        found = self.core.get(GENERATION_KEY)
        if found.value is None or self.core.get(STATE_KEY).value is not None:
            return False
        self.core.compare_and_swap(GENERATION_KEY, expected=found.revision, value=None)
        self._changed([GENERATION_KEY])
        return True

    def end_lease(self, lease: str) -> None:
        """The lease of a process that has ended: nothing can be stored under it again."""
        self._ended.add(lease)
        self.revoke(lease)

    def revoke(self, lease: str) -> None:
        """A lease was not renewed in time; its process will ask for it again."""
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
        self.schedule.at(when, notify, seen)
        while self._happens(self.plan.repeated_notices):
            # A watch that reconnects tells again what it finds.
            when += self.plan.store_s * self.rng.random()
            self.schedule.at(when, notify, seen)
        last[0] = when


def _ignore(swap: Swap) -> None:
    """The answer is lost on its way."""
