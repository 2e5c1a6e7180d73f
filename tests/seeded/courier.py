"""One fake process's way to the store, as `runtime/courier.py` goes it.

Swaps are carried one after another. One that the store did not answer is asked again before the
next, whether or not it was done.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from edl.protocol import effects as fx
from edl.protocol.events import Swapped
from edl.store.base import Swap

if TYPE_CHECKING:
    from tests.seeded.process import Process

__all__ = ["Courier"]

# Between two attempts at a swap that was not answered.
_AGAIN_S = 0.1
# How often it looks whether the store can be reached again.
_LOOK_S = 0.2


class Courier:
    """Carries the swaps of one process."""

    def __init__(self, host: Process) -> None:
        self.host = host
        self._errands: deque[fx.StoreSwap] = deque()

    def swap(self, errand: fx.StoreSwap) -> None:
        self._errands.append(errand)
        if len(self._errands) == 1:
            self._carry()

    def _carry(self) -> None:
        host, errand = self.host, self._errands[0]
        if host.is_held(self._carry):
            return
        if host.store_cut:
            host.world.schedule.after(_LOOK_S, self._carry)
            return
        host.world.shelf.swap(
            errand.key,
            expected=errand.expected,
            value=errand.value,
            lease=host.me if errand.leased else None,
            answer=self._answered,
            fail=self._failed,
        )
        host.world.notice(f"swap {errand.key}", host)

    def _failed(self) -> None:
        self.host.world.schedule.after(_AGAIN_S, self._carry)

    def _answered(self, swap: Swap) -> None:
        host, world = self.host, self.host.world
        if host.store_cut:
            world.schedule.after(_LOOK_S, self._answered, swap)
            return
        if not host.alive:
            # Nobody renews what it still got.
            world.schedule.after(host.plan.settings.lease_s, world.shelf.revoke, host.me)
        errand, current = self._errands.popleft(), swap.current
        host.post(
            Swapped(
                purpose=errand.purpose,
                done=swap.done,
                value=current.value,
                revision=current.revision,
            )
        )
        if self._errands:
            self._carry()
