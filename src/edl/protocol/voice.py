"""The leader's voice: to its workers, to requesters, and to whoever follows the events.

Owns: which connection is whose, the answers given, the chronicle. Builds effects only; what to
say is decided in `leader.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.protocol.chronicle import Chronicle
from edl.protocol.effects import Close, Effect, Publish, Send
from edl.protocol.messages import (
    Accepted,
    Adjusted,
    AdjustmentRecord,
    Events,
    Message,
    Prepare,
    RendezvousEntry,
    RendezvousKey,
    Retry,
)
from edl.protocol.rendezvous import Rendezvous
from edl.protocol.requests import Final, Requests
from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["STRAGGLER_REQUEST", "Voice"]

# How the ids of requests begin that are made because a worker is too slow.
STRAGGLER_REQUEST = "straggler-"


class Voice:
    """Who hears what."""

    def __init__(self) -> None:
        self.peers: dict[WorkerId, int] = {}
        self._replaced: dict[int, WorkerId] = {}  # open connections that are no longer used
        self.requests = Requests()
        self.chronicle = Chronicle()
        self.generation = 0
        self.step = 0

    def tell(self, what: str, request_id: str = "", /, **fields: str | int | float) -> list[Effect]:
        """One line for operators, to the log and to every subscriber."""
        happened = self.chronicle.write(
            what=what,
            request_id=request_id,
            generation=self.generation,
            step=self.step,
            fields=fields,
        )
        news: list[Effect] = [Publish(happened=happened)]
        for peer, subscription in self.chronicle.subscribers():
            line = Events(request_id=subscription, events=(happened,))
            news.append(Send(peer=peer, message=line))
        return news

    def to(self, workers: Iterable[WorkerId], message: Message) -> list[Effect]:
        """The same message to each of these workers that is connected."""
        return [
            Send(peer=self.peers[worker], message=message)
            for worker in sorted(workers)
            if worker in self.peers
        ]

    def attach(self, worker: WorkerId, peer: int) -> None:
        """Use this connection for the worker from now on."""
        before = self.peers.get(worker)
        if before is not None and before != peer:
            self._replaced[before] = worker
        self._replaced.pop(peer, None)
        self.peers[worker] = peer

    def close_replaced(self, worker: WorkerId) -> list[Effect]:
        """Close a worker's other connections, so that it connects and registers again.

        A worker closes one connection before it dials the next, but what it sent over the first
        may arrive last. The second one then looks replaced, although it is the one in use.
        """
        return [Close(peer=peer) for peer, owner in self._replaced.items() if owner == worker]

    def relay(
        self, message: RendezvousKey | RendezvousEntry, known: Rendezvous, target: Generation
    ) -> list[Effect]:
        """Send a new key to the other members; collect an entry until its group is complete.

        `known` keeps both for members that are disconnected now. What was published for another
        generation is dropped: its addresses are no longer served.
        """
        if message.generation != target.number:
            return []
        if isinstance(message, RendezvousEntry):
            sent: list[Effect] = []
            for worker, table in known.add_entry(message, target).items():
                sent += self.to([worker], table)
            return sent
        if not known.add_key(message):
            return []
        return self.to((w for w in target.workers() if w != message.worker), message)

    def brief(self, worker: WorkerId, target: Generation, known: Rendezvous) -> list[Effect]:
        """Everything said so far about a generation that is being built."""
        told = self.to([worker], Prepare(generation=target))
        if worker in target:
            for message in known.known_to(worker):
                told += self.to([worker], message)
        return told

    def accept(self, request_id: str, peer: int) -> list[Effect]:
        self.requests.await_answer(request_id, peer)
        return [Send(peer=peer, message=Accepted(request_id=request_id))]

    def retry(self, request_id: str, peer: int, reason: str, after_s: float) -> list[Effect]:
        answer = Retry(request_id=request_id, reason=reason, after_s=after_s)
        return [Send(peer=peer, message=answer)]

    def final(self, answer: Final, peer: int | None = None) -> list[Effect]:
        """One final answer per request id, to everyone who asked under it."""
        listeners = self.requests.settle(answer)
        if peer is not None and peer not in listeners:
            listeners.append(peer)
        return [Send(peer=listener, message=answer) for listener in listeners]

    def complete(
        self, record: AdjustmentRecord, summary: Mapping[str, str | int | float]
    ) -> list[Effect]:
        """An adjustment is."""
        request_id = record.request_id
        self.chronicle.records.append(record)
        answered = self.final(Adjusted(request_id=request_id, record=record))
        told = self.tell("adjust.complete", request_id, **summary)
        if request_id.startswith(STRAGGLER_REQUEST):
            what = "straggler.replaced" if record.joined else "straggler.removed"
            by = {"by": ",".join(record.joined)} if record.joined else {}
            for worker in record.left:
                told += self.tell(what, request_id, worker=worker, **by)
        return [*answered, *told]

    def subscribe(self, peer: int, request_id: str, since: int) -> list[Effect]:
        self.chronicle.count_from(since)
        events = self.chronicle.since(since)
        self.chronicle.subscribe(peer, request_id)
        return [Send(peer=peer, message=Events(request_id=request_id, events=events))]

    def on_closed(self, peer: int) -> WorkerId | None:
        """A connection closed; returns the worker it belonged to."""
        self.requests.forget(peer)
        self.chronicle.unsubscribe(peer)
        self._replaced.pop(peer, None)
        for worker, link in list(self.peers.items()):
            if link == peer:
                del self.peers[worker]
                return worker
        return None
