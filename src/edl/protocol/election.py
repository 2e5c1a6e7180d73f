"""Candidate -> leader or follower, by compare-and-swap on one leased key.

Owns: what this worker believes about the leader's key. Holds: only a worker that may lead
contests a vacant key, and a follower whose leader still answers leaves the key to it: losing a
lease is not death. The key's revision at the swap is the leader's fencing token.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from edl.errors import StoreError
from edl.protocol.effects import StoreSwap
from edl.types import Address, WorkerId

__all__ = ["LEADER_KEY", "Election", "Known", "read_leader", "write_leader"]

LEADER_KEY = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A leader as the store names it."""

    worker: WorkerId
    address: Address
    token: int


def write_leader(worker: WorkerId, address: Address) -> bytes:
    """The value of the leader's key."""
    fields = {"worker": worker, "host": address.host, "port": address.port}
    return json.dumps(fields, sort_keys=True).encode()


def read_leader(value: bytes, revision: int) -> Known:
    """The inverse of `write_leader`; a foreign value is the store's fault, not ours."""
    try:
        fields = json.loads(value)
        address = Address(str(fields["host"]), int(fields["port"]))
        return Known(worker=WorkerId(str(fields["worker"])), address=address, token=revision)
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the leader's key holds {value[:80]!r}, not an address") from error


class Election:
    """What one worker does about the leader's key."""

    def __init__(self, *, me: WorkerId, address: Address, may_lead: bool) -> None:
        self.me = me
        self.address = address
        self.may_lead = may_lead
        self.known: Known | None = None
        self.contesting = False
        self._watched = 0  # the last token that a notification told of
        self._lapsed = 0  # the last one that notifications told of, and then told that it is gone

    def saw(self, value: bytes | None, revision: int, *, leader_answers: bool) -> int | None:
        """Take note of the key. Returns the revision to contest at, or None to leave it."""
        if value is not None:
            self._watched = revision
            if self.known is None or revision >= self.known.token:
                self.known = read_leader(value, revision)
            return None
        # A leader that is known by an answer alone may have taken the key after this.
        self._lapsed = self._watched
        self.known = None
        if leader_answers or not self.vacant():
            return None
        self.contesting = True
        return 0

    def is_old(self, value: bytes | None, revision: int) -> bool:
        """Whether a notification tells nothing new: a watch that reconnects repeats itself."""
        return value is not None and self.known is not None and revision <= self.known.token

    def vacant(self) -> bool:
        """Nobody holds the key, and this worker may take it."""
        return self.known is None and self.may_lead and not self.contesting

    def contest(self, *, expected: int) -> StoreSwap:
        """Ask for the key, at the revision that it must still have."""
        self.contesting = True
        return StoreSwap(
            purpose="leader", key=LEADER_KEY, expected=expected, value=self.value(), leased=True
        )

    def swapped(self, *, done: bool, value: bytes | None, revision: int) -> bool:
        """The answer to our contest. True: this worker leads now, with `revision` as token.

        The answer to a swap that was done can be lost. The shell then asks again, and our own
        value is in the way: the key is ours all the same.
        """
        self.contesting = False
        if revision <= self._lapsed:
            # The answer took so long that the key, whoever's it was, has come and gone meanwhile.
            return False
        # Notifications and answers come on different ways: the later revision is the truth.
        if value is not None and (self.known is None or revision >= self.known.token):
            self.known = read_leader(value, revision)
        return (done or value == self.value()) and not self.outdates(revision)

    def outdates(self, token: int) -> bool:
        """Whether somebody took the office after the one with this token: its word is old."""
        return self.known is not None and self.known.token > token

    def value(self) -> bytes:
        return write_leader(self.me, self.address)
