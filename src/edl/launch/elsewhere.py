"""Members that somebody else started, once no process of the launcher's own is left.

The store alone cannot say whether they live: a member that cannot reach the store loses its lease
and trains on. So each is dialled at the address that the last recorded generation gives for it.

Runs in the hub's thread. Owns: when each member answered last. Holds: a member is gone only if its
host refused the connection repeatedly; one that does not answer may live.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from edl.types import Address, WorkerId
from edl.wire.hub import Hub, Peer

__all__ = ["Elsewhere", "Presence"]

log = logging.getLogger("edl.launch")

# A member that answered so recently is alive. A dial alone may take half of it.
ANSWERED_S = 10.0
DIAL_S = 1.0
# A single refusal may be that of a listener which is just being replaced.
REFUSALS = 2
# How often the event that tells of the waiting is repeated.
REMIND_S = 30.0

Note = Callable[..., None]


class Presence(Enum):
    """What is known of the members elsewhere, taken together."""

    ALIVE = "alive"  # at least one answered recently
    UNKNOWN = "unknown"  # none answered, and at least one was not seen to be gone
    GONE = "gone"  # every one of them
    EXPIRED = "expired"  # unknown for longer than the launcher waits


@dataclass(slots=True, kw_only=True)
class _Contact:
    address: Address | None
    answered_at: float
    next_dial: float
    peer: Peer | None = None
    refusals: int = 0

    @property
    def gone(self) -> bool:
        return self.refusals >= REFUSALS


class Elsewhere:
    """`note(what, **fields)` emits an event; `now` is monotonic seconds."""

    def __init__(self, hub: Hub, *, patience_s: float, note: Note) -> None:
        self._hub = hub
        self._patience_s = patience_s
        self._note = note
        self._contacts: dict[WorkerId, _Contact] = {}
        self._next_note: float | None = None  # while the waiting is being reported
        self._now = 0.0

    def look(
        self, members: Mapping[WorkerId, Address | None], *, led: bool, now: float
    ) -> Presence:
        """Dial those that are due. `led`: the leader's lease is being renewed, so one lives."""
        self._now = now
        self._follow(members, now)
        for contact in self._contacts.values():
            if led:
                contact.answered_at, contact.refusals = now, 0
            elif contact.peer is None and contact.address is not None and now >= contact.next_dial:
                contact.peer = self._hub.connect(contact.address, tag="elsewhere")
        presence = self._presence(now)
        self._report(presence, now)
        return presence

    def on_open(self, peer: Peer) -> bool:
        """It proved the job's secret, which is all that is asked of it."""
        contact = self._contact_of(peer)
        if contact is None:
            return False
        contact.answered_at, contact.refusals = self._now, 0
        self._hub.close(peer)
        return True

    def on_closed(self, peer: Peer, why: str) -> bool:
        contact = self._contact_of(peer)
        if contact is None:
            return False
        contact.peer, contact.next_dial = None, self._now + DIAL_S
        if why.endswith(os.strerror(errno.ECONNREFUSED)):
            contact.refusals += 1
        elif contact.answered_at < self._now:
            log.info("launch.elsewhere peer=%s why=%r", peer.name, why)
        return True

    def waiting_for(self, now: float) -> str:
        """The members that do not answer and the time since they last did, as a sentence."""
        silent = self._silent()
        if not silent:
            return ""
        names = ", ".join(
            f"{worker} at {contact.address}" if contact.address else str(worker)
            for worker, contact in silent.items()
        )
        verb = "has" if len(silent) == 1 else "have"
        return f"{names}, which {verb} not answered for {self._silence_s(now):.0f} s"

    @property
    def waiting(self) -> bool:
        """Whether the launcher has reported that it waits for members that do not answer."""
        return self._next_note is not None

    def _follow(self, members: Mapping[WorkerId, Address | None], now: float) -> None:
        for worker, contact in list(self._contacts.items()):
            if worker not in members or members[worker] != contact.address:
                del self._contacts[worker]
                if contact.peer is not None:
                    self._hub.close(contact.peer)
        for worker, address in members.items():
            if worker not in self._contacts:
                self._contacts[worker] = _Contact(address=address, answered_at=now, next_dial=now)

    def _presence(self, now: float) -> Presence:
        if all(contact.gone for contact in self._contacts.values()):
            return Presence.GONE
        silence_s = self._silence_s(now)
        if silence_s < min(ANSWERED_S, self._patience_s):
            return Presence.ALIVE
        return Presence.UNKNOWN if silence_s < self._patience_s else Presence.EXPIRED

    def _silent(self) -> dict[WorkerId, _Contact]:
        return {worker: each for worker, each in self._contacts.items() if not each.gone}

    def _silence_s(self, now: float) -> float:
        """Since any of those that may live has answered."""
        return now - max((each.answered_at for each in self._silent().values()), default=now)

    def _report(self, presence: Presence, now: float) -> None:
        if presence is Presence.UNKNOWN:
            if self._next_note is None or now >= self._next_note:
                self._next_note = now + REMIND_S
                self._note(
                    "job.waiting",
                    members=self.waiting_for(now),
                    limit_s=round(self._patience_s, 1),
                )
        elif self._next_note is not None:
            self._next_note = None
            if presence is Presence.ALIVE:
                self._note("job.answered", members=",".join(sorted(self._silent())))

    def _contact_of(self, peer: Peer) -> _Contact | None:
        return next((each for each in self._contacts.values() if each.peer is peer), None)
