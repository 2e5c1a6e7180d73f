"""Heartbeats and lease of a worker whose agent cannot run: what its watchdog sends in its place.

One thread dials everybody at once and sends the heartbeats; another one renews the lease. So a host
that does not answer, or a store that is away, delays neither the others' heartbeats nor the lease.
The leader may die meanwhile, and the agent cannot follow the next one: so the leader's key in the
store is watched, and the next leader hears that this worker's process runs.

Owns: its connections and its client of the store. Holds: it ends without revoking the lease, which
is the agent's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from edl.errors import EdlError, StoreError
from edl.protocol.election import LEADER_KEY, read_leader
from edl.protocol.messages import MESSAGES, Alive
from edl.store.base import Store, Versioned, open_store
from edl.types import Address, WorkerId
from edl.wire.codec import Codec
from edl.wire.hub import Hub
from edl.wire.peer import Peer
from edl.wire.tls import Tls

__all__ = ["Charge", "Heartbeats", "open_store_of"]

_log = logging.getLogger("edl.watchdog")

# Signs of life that the agent sends in the time of a lease.
_BEATS_PER_LEASE = 6
_BEATS_PER_SILENCE = 16
# The watchdog begins to speak when 2.5 are missing: after half the time that a new leader gives a
# worker to come. The other half is for finding that leader.
_BEATS_PER_RECONNECT = 5
_BEAT_S_MIN = 0.05
# A dial may take this share of the time after which silence counts as death, and so may a pause
# between two attempts.
_DIAL_SHARE, _DIAL_S_MIN = 0.25, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The worker that a watchdog looks after."""

    job: str
    worker: str
    pid: int
    secret: str  # hexadecimal
    store: str
    lease: str
    lease_s: float
    silence_s: float
    reconnect_s: float
    unresponsive_s: float

    @property
    def beat_s(self) -> float:
        """Between two signs of life: some may be missing before a time limit of others is over."""
        return min(
            self.lease_s / _BEATS_PER_LEASE,
            self.silence_s / _BEATS_PER_SILENCE,
            max(self.reconnect_s / _BEATS_PER_RECONNECT, _BEAT_S_MIN),
        )

    @property
    def dial_s(self) -> float:
        return max(self.silence_s * _DIAL_SHARE, _DIAL_S_MIN)


def open_store_of(charge: Charge, tls: Tls | None) -> Store:
    """The store that the charge's lease is in."""
    return open_store(charge.store, job=charge.job, secret=bytes.fromhex(charge.secret), tls=tls)


class Heartbeats:
    """Of one silence of the agent: `begin` once, then `end` once, from any thread."""

    def __init__(
        self,
        charge: Charge,
        *,
        to: Collection[Address],
        leads: bool,
        tls: Tls | None = None,
        open_store: Callable[[], Store] | None = None,
    ) -> None:
        self._charge = charge
        self._leads = leads
        self._open_store = open_store or partial(open_store_of, charge, tls)
        self._alive = Alive(worker=WorkerId(charge.worker), generation=0)
        self._to = dict.fromkeys(to)
        self._over = threading.Event()
        self._renewed = True  # by the last attempt
        # Only the hub's thread uses these.
        self._peers: dict[Address, Peer] = {}
        self._pauses: dict[Address, float] = {}
        self._hub = Hub(
            name="edl-heartbeats",
            job=charge.job,
            secret=bytes.fromhex(charge.secret),
            codec=Codec(MESSAGES),
            on_message=lambda peer, message: None,
            on_open=self._on_open,
            on_closed=self._on_closed,
            on_tick=self._on_tick,
            tick_s=charge.beat_s,
            hello_timeout_s=charge.dial_s,
            tls=tls,
        )

    def begin(self) -> None:
        self._hub.start()
        for address in self._to:
            self._hub.post(partial(self._dial, address))
        threading.Thread(target=self._use_store, name="edl-heartbeats-lease", daemon=True).start()

    def end(self) -> None:
        """The agent runs again, or must not be spoken for any more."""
        self._over.set()
        self._hub.stop(flush_s=0.0)

    # --- the hub's thread ---

    def _dial(self, address: Address) -> None:
        self._peers[address] = self._hub.connect(address, tag=address)

    def _on_open(self, peer: Peer) -> None:
        assert isinstance(peer.tag, Address)
        self._pauses.pop(peer.tag, None)
        self._hub.send(peer, self._alive)

    def _on_tick(self) -> None:
        self._hub.broadcast([peer for peer in self._peers.values() if peer.open], self._alive)

    def _on_closed(self, peer: Peer, why: str) -> None:
        address, here = peer.tag, self._charge
        assert isinstance(address, Address)
        self._peers.pop(address, None)
        if self._over.is_set():
            return
        if address not in self._pauses:
            _log.warning("%s cannot be told that %s runs: %s", address, here.worker, why)
        pause_s = self._pauses.get(address, here.beat_s)
        self._pauses[address] = min(2 * pause_s, here.dial_s)
        self._hub.call_later(pause_s, partial(self._dial, address))

    def _turn_to(self, address: Address) -> None:
        """The store names a leader that the agent had not named."""
        if address not in self._to:
            self._to[address] = None
            self._dial(address)

    # --- the store ---

    def _use_store(self) -> None:
        here = self._charge
        try:
            store = self._open_store()
        except EdlError as error:
            _log.warning("the watchdog of %s has no store: %s", here.worker, error)
            return
        # In a thread of its own: while the store is away, it could delay the next renewal.
        watching = threading.Thread(
            target=self._watch_leader, args=(store,), name="edl-heartbeats-watch", daemon=True
        )
        watching.start()
        while not self._over.is_set():
            if self._leads:
                self._renew(store)
            self._over.wait(here.beat_s if self._leads else None)
        # The lease is left as it is: from here on the agent renews it.
        store.close()

    def _renew(self, store: Store) -> None:
        here = self._charge
        try:
            store.keep_alive(here.lease, here.lease_s)
            self._renewed = True
        except StoreError as error:
            # One line is enough for as long as the store is away.
            if self._renewed:
                _log.warning("the lease of %s was not renewed: %s", here.worker, error)
            self._renewed = False

    def _watch_leader(self, store: Store) -> None:
        reported = False
        while not self._over.is_set():
            try:
                store.watch(LEADER_KEY, self._on_leader_seen)
                return
            except StoreError as error:
                if self._over.is_set():
                    return  # the store was closed meanwhile
                if not reported:
                    _log.warning("the leader's key cannot be watched, asking again: %s", error)
                reported = True
            self._over.wait(self._charge.beat_s)

    def _on_leader_seen(self, found: Versioned) -> None:
        if found.value is None:
            return
        known = read_leader(found.value, found.revision)
        if known.worker != self._charge.worker:
            self._hub.post(partial(self._turn_to, known.address))
