"""Carries store calls off the agent's thread, and keeps this worker's lease alive.

A store call may block for seconds while its server is away; the agent must answer its peers
meanwhile. One thread; answers come back as events. Holds: calls are made in order, and one that
failed is made again before the next, for the machines wait for every answer.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from edl.errors import StoreError
from edl.protocol.effects import StoreSwap
from edl.protocol.events import Swapped
from edl.runtime.clock import now
from edl.store.base import Store

__all__ = ["Courier"]

_log = logging.getLogger("edl.store")

# Between two attempts at a call that the store did not answer.
AGAIN_S = 0.1


class Courier:
    """One worker's way to the store."""

    def __init__(
        self, store: Store, *, lease: str, lease_s: float, answer: Callable[[Swapped], None]
    ) -> None:
        self._store = store
        self._lease = lease
        self._lease_s = lease_s
        self._answer = answer
        self._errands: queue.SimpleQueue[StoreSwap | None] = queue.SimpleQueue()
        self._pause = threading.Event()  # never set: a wait between two attempts
        self._give_up_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="edl-courier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def swap(self, errand: StoreSwap) -> None:
        self._errands.put(errand)

    def stop(self, *, revoke: bool, timeout_s: float) -> None:
        """Finish what was asked, then end; `revoke` gives the lease up at once."""
        self._give_up_at = now() + timeout_s
        self._errands.put(None)
        self._thread.join(timeout_s)
        if revoke and not self._thread.is_alive():
            try:
                self._store.keep_alive(self._lease, 0.0)
            except StoreError as error:
                _log.info("store.revoke failed: %s", error)

    def _run(self) -> None:
        renew_at = 0.0
        held: StoreSwap | None = None
        while True:
            if now() >= renew_at:
                self._renew()
                renew_at = now() + self._lease_s / 3
            if held is None:
                try:
                    held = self._errands.get(timeout=max(0.0, renew_at - now()))
                except queue.Empty:
                    continue
                if held is None:
                    return
            if self._carry(held):
                held = None
            elif self._give_up_at is not None and now() >= self._give_up_at:
                return
            else:
                self._pause.wait(AGAIN_S)

    def _renew(self) -> None:
        try:
            self._store.keep_alive(self._lease, self._lease_s)
        except StoreError as error:
            _log.warning("store.keep_alive failed, training goes on: %s", error)

    def _carry(self, errand: StoreSwap) -> bool:
        """Whether the store has answered: without it membership is frozen, not lost."""
        try:
            swap = self._store.compare_and_swap(
                errand.key,
                expected=errand.expected,
                value=errand.value,
                lease=self._lease if errand.leased else None,
            )
        except StoreError as error:
            _log.warning("store.swap key=%s failed, asking again: %s", errand.key, error)
            self._renew()
            return False
        self._answer(
            Swapped(
                purpose=errand.purpose,
                done=swap.done,
                value=swap.current.value,
                revision=swap.current.revision,
            )
        )
        return True
