"""The launcher's ear at the leader: events, status, and what the leader must be told.

Runs in the hub's thread. Owns: the one connection to whoever leads. Holds: an event is passed on
once and in order, also across leaders; what must be told is repeated at every new connection until
it is withdrawn, for a leader that goes takes what it heard with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from edl.errors import StoreError
from edl.protocol import messages as m
from edl.protocol.election import Known, read_leader
from edl.types import Address, WorkerId
from edl.wire.hub import Hub, Peer

__all__ = ["Follower"]

log = logging.getLogger("edl.launch")

POLL_S = 0.5
AGAIN_S = 0.2
SUBSCRIPTION = "launcher"


class Follower:
    """All callbacks are called in the hub's thread; `on_answer` hears what requests get."""

    def __init__(
        self,
        hub: Hub,
        *,
        on_event: Callable[[m.Happened], None],
        on_status: Callable[[m.Status], None],
        on_answer: Callable[[object], None] = lambda message: None,
    ) -> None:
        self._hub = hub
        self._on_event = on_event
        self._on_status = on_status
        self._on_answer = on_answer
        self._known: Known | None = None
        self._peer: Peer | None = None
        self._seen = 0
        self._standing: dict[str, m.Message] = {}
        self._next_poll = 0.0
        self._greeting_again = False
        self._closed = False

    @property
    def leader(self) -> WorkerId | None:
        return self._known.worker if self._known else None

    @property
    def leader_address(self) -> Address | None:
        return self._known.address if self._known else None

    def close(self) -> None:
        self._closed = True
        self._standing.clear()
        if self._peer is not None:
            self._hub.close(self._peer)
            self._peer = None

    # -- what is told ----------------------------------------------------------------------

    def tell(self, key: str, message: m.Message) -> None:
        """Now, and again at every new connection, until `withdraw`."""
        self._standing[key] = message
        if self._peer is not None and self._peer.open:
            self._hub.send(self._peer, message)

    def withdraw(self, key: str) -> None:
        self._standing.pop(key, None)

    # -- what is heard ---------------------------------------------------------------------

    def on_leader(self, value: bytes | None, revision: int) -> None:
        """The store's leader key. A key that lapsed says nothing about the connection."""
        if value is None or self._closed:
            return
        try:
            known = read_leader(value, revision)
        except StoreError as error:
            log.warning("launch.leader unreadable why=%r", str(error))
            return
        same = self._known is not None and known.address == self._known.address
        self._known = known
        if self._peer is not None and same:
            return
        if self._peer is not None:
            self._hub.close(self._peer)
        self._dial()

    def on_open(self, peer: Peer) -> None:
        if peer is self._peer:
            self._greet()

    def on_closed(self, peer: Peer, why: str) -> None:
        if peer is self._peer:
            self._peer = None
            self._hub.call_later(AGAIN_S, self._dial_if_alone)

    def on_message(self, peer: Peer, message: object) -> bool:
        """Whether the message came from the leader."""
        if peer is not self._peer:
            return False
        match message:
            case m.Events(events=events):
                for event in events:
                    if event.seq > self._seen:
                        self._seen = event.seq
                        self._on_event(event)
            case m.Status():
                self._on_status(message)
            case m.NotLeader():
                # It is about to lead, or about to be replaced in the store. One timer for all
                # the answers: each greeting has several.
                if not self._greeting_again:
                    self._greeting_again = True
                    self._hub.call_later(AGAIN_S, lambda: self._greet_again(peer))
            case m.Retry(request_id=request_id, after_s=after_s):
                self._hub.call_later(max(after_s, 0.05), lambda: self._repeat(request_id))
            case _:
                self._on_answer(message)
        return True

    def on_tick(self, now: float) -> None:
        if self._peer is not None and self._peer.open and now >= self._next_poll:
            self._next_poll = now + POLL_S
            self._hub.send(self._peer, m.AskStatus(request_id=SUBSCRIPTION))

    # -- the connection --------------------------------------------------------------------

    def _dial(self) -> None:
        assert self._known is not None
        self._peer = self._hub.connect(self._known.address, tag="leader")

    def _dial_if_alone(self) -> None:
        if self._peer is None and self._known is not None and not self._closed:
            self._dial()

    def _greet(self) -> None:
        assert self._peer is not None
        subscribe = m.Subscribe(request_id=SUBSCRIPTION, since=self._seen)
        for message in (subscribe, *self._standing.values()):
            self._hub.send(self._peer, message)

    def _greet_again(self, peer: Peer) -> None:
        self._greeting_again = False
        if peer is self._peer and peer.open:
            self._greet()

    def _repeat(self, request_id: str) -> None:
        for message in list(self._standing.values()):
            same = getattr(message, "request_id", None) == request_id
            if same and self._peer is not None and self._peer.open:
                self._hub.send(self._peer, message)
