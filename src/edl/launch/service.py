"""Requests to the launcher: slots set aside, workers started, leavers awaited, the job ended.

Runs in the hub's thread. Owns: reservations and who waits for what. Holds: the same request id
gets the same answer, as long as it is one of the last `KEPT_REQUESTS`; a reservation that nobody
starts lapses; a worker's id is never used again. A request for a time has it from when it was first
heard of, however often it is repeated.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from edl.errors import Refused, UsageError
from edl.launch.base import MOST_AT_ONCE
from edl.launch.messages import (
    AskOutcome,
    AwaitGone,
    EndJob,
    Gone,
    Release,
    Reserve,
    Reserved,
    Started,
    StartWorkers,
    Unsettled,
)
from edl.launch.slots import SlotBook
from edl.protocol.messages import Accepted, Adjusted, Finished, Joiner, Refusal, Retry
from edl.protocol.tale import AdjustmentRecord
from edl.types import Gpu, WorkerId
from edl.wire.hub import Peer

__all__ = ["KEPT_REQUESTS", "KEPT_SEATS", "Floor", "LaunchService"]

log = logging.getLogger("edl.launch")

REQUESTS = (AskOutcome, Reserve, StartWorkers, Release, AwaitGone, EndJob)
LAPSE_S = 60.0
# Requesters ask again within minutes; so many requests back is far longer ago. Those whose slots
# are still set aside are remembered beyond that.
KEPT_REQUESTS = 1024
# Slots of workers that have ended, for a job that begins again; those that run count extra.
KEPT_SEATS = 1024
AWAY_S = 1.0
# A leader that dies as it answers may never tell the launcher; nobody waits for that for long.
TOLD_S = 2.0

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Floor(Protocol):
    """What the service asks of the launcher that it belongs to."""

    def over(self) -> str:
        """Why no more workers can be started; empty while the job goes on."""

    def away(self) -> str:
        """Why none can be started just now."""

    def outcome(self, request_id: str) -> AdjustmentRecord | None:
        """The adjustment, if an earlier run of the job carried out this request."""

    def start(self, joiners: Iterable[Joiner], request_id: str) -> None:
        """Start their processes; raises whatever keeps one of them from starting."""

    def give_up(self, request_id: str) -> None:
        """Its requester waits no longer: newcomers that are not in the job yet need not come."""

    def alive(self) -> tuple[WorkerId, ...]: ...

    def end(self, why: str, *, force: bool) -> None: ...


@dataclass(slots=True, kw_only=True)
class _Reservation:
    joiners: tuple[Joiner, ...]
    lapses: float
    started: bool = False
    held: bool = True  # whether the slots are set aside
    fault: str = ""  # why not all of them could be started


@dataclass(slots=True, kw_only=True)
class _Waiting:
    peer: Peer
    request_id: str
    workers: tuple[WorkerId, ...]
    told_by: float  # its end is in the history by then, or nobody waits for that
    deadline: float


class LaunchService:
    """`send` is the hub's; `now` is monotonic seconds."""

    def __init__(self, floor: Floor, slots: SlotBook, send: Callable[[Peer, object], None]) -> None:
        self._floor = floor
        self._slots = slots
        self._send = send
        self._next_worker = 0
        self._reservations: dict[str, _Reservation] = {}
        # Of all that run, and of those that ended last, in the order of their ends.
        self._seats: dict[WorkerId, Gpu] = {}
        self._until: dict[str, float] = {}  # when the workers of a request must have ended
        # How long it takes them to leave. Whoever follows the job's steps knows better.
        self.lead_s = 0.0
        self._waiting: list[_Waiting] = []
        self._told: dict[str, None] = {}  # requests of which the history tells the end, in order
        self._enders: list[tuple[Peer, str]] = []

    def handles(self, message: object) -> bool:
        return isinstance(message, REQUESTS)

    def on_message(self, peer: Peer, message: object, now: float) -> None:
        match message:
            case AskOutcome(request_id=request_id):
                self._send(peer, self.answer_outcome(request_id))
            case Reserve(request_id=request_id):
                settled = self.answer_outcome(request_id)
                done = isinstance(settled, Adjusted)
                self._send(peer, settled if done else self.reserve(message, now))
            case StartWorkers(request_id=request_id):
                self._send(peer, self.start_reserved(request_id))
            case Release(request_id=request_id):
                self.release(message)
                self._send(peer, Accepted(request_id=request_id))
            case AwaitGone():
                waiting = _Waiting(
                    peer=peer,
                    request_id=message.request_id,
                    workers=message.workers,
                    told_by=now + min(TOLD_S, message.timeout_s),
                    deadline=now + message.timeout_s,
                )
                self._waiting.append(waiting)
                self._answer_waiting(now)
            case EndJob(request_id=request_id, why=why, force=force):
                self._enders.append((peer, request_id))
                self._send(peer, Accepted(request_id=request_id))
                self._floor.end(why, force=force)

    def on_closed(self, peer: Peer) -> None:
        self._waiting = [each for each in self._waiting if each.peer is not peer]
        self._enders = [each for each in self._enders if each[0] is not peer]

    def on_tick(self, now: float) -> None:
        for request_id, reservation in self._reservations.items():
            lapses = min(reservation.lapses, self._until.get(request_id, reservation.lapses))
            if not reservation.started and now > lapses:
                self._let_go(reservation)
        self._answer_waiting(now)

    def on_process_ended(self, worker: WorkerId, now: float) -> None:
        self._slots.free(worker)
        if worker in self._seats:
            self._seats[worker] = self._seats.pop(worker)  # to the end of the order
            self._forget_seats()
        self._answer_waiting(now)

    def on_settled(self, request_id: str, now: float) -> None:
        """The history tells how it ended."""
        self._told[request_id] = None
        _drop_oldest(self._told, KEPT_REQUESTS)
        self._answer_waiting(now)

    def forget(self) -> None:
        """The job begins again: what was reserved for its last run is free."""
        for reservation in self._reservations.values():
            self._let_go(reservation)
        self._reservations.clear()

    def on_job_over(self, reason: str) -> None:
        for peer, request_id in self._enders:
            self._send(peer, Finished(request_id=request_id, reason=reason))
        self._enders.clear()

    def runs(self, worker: WorkerId) -> bool:
        """Whether its process has not ended."""
        return worker in self._floor.alive()

    def lent_until(self, request_id: str) -> float | None:
        """When the workers of this request must have ended; None: never."""
        return self._until.get(request_id)

    def found(
        self, count: int, before: Iterable[WorkerId] = (), *, least: int = 0
    ) -> tuple[Joiner, ...]:
        """Ids and slots of the founders; Refused if there are not enough slots.

        `before`: the members of a job that begins again, whose slots are taken in that order if
        they are still free. `least`: so many founders will do where there are no slots for all.
        """
        seats = [self._seats[worker] for worker in before if worker in self._seats][:count]
        if seats and len(seats) == count:
            try:
                return self._take_new(count, seats)
            except Refused:
                pass  # another job has taken one of them since; any others will do
        for fewer in range(count, least, -1) if least else ():
            with contextlib.suppress(Refused):
                return self._take_new(fewer, ())
        return self._take_new(least or count, ())

    # -- one function per request ----------------------------------------------------------

    def answer_outcome(self, request_id: str) -> Adjusted | Unsettled | Retry:
        away = self._floor.away()
        if away:  # what the last run did is known once the next one begins
            return Retry(request_id=request_id, reason=away, after_s=AWAY_S)
        done = self._floor.outcome(request_id)
        if done is not None:
            return Adjusted(request_id=request_id, record=done)
        return Unsettled(request_id=request_id)

    def reserve(self, message: Reserve, now: float) -> Reserved | Refusal | Finished | Retry:
        request_id = message.request_id
        over, away = self._floor.over(), self._floor.away()
        if over:
            return Finished(request_id=request_id, reason=over)
        if away:
            return Retry(request_id=request_id, reason=away, after_s=AWAY_S)
        known = self._reservations.get(request_id)
        short = "" if known is not None and known.started else self._too_short(message, now)
        if short:
            return Refusal(request_id=request_id, reason=short)
        if known is not None and (known.held or known.started):
            known.lapses = now + LAPSE_S
            return Reserved(request_id=request_id, joiners=known.joiners)
        count = len(message.gpus) or message.count
        if not 1 <= count <= MOST_AT_ONCE:
            reason = f"{count} workers cannot be added; give at least 1 and at most {MOST_AT_ONCE}"
            return Refusal(request_id=request_id, reason=reason)
        try:
            if known is not None and len(known.joiners) == count:
                joiners = self._take([each.worker for each in known.joiners], message.gpus)
            else:
                joiners = self._take_new(count, message.gpus)
        except Refused as error:
            return Refusal(request_id=request_id, reason=str(error))
        self._reservations[request_id] = _Reservation(joiners=joiners, lapses=now + LAPSE_S)
        self._forget_requests()
        return Reserved(request_id=request_id, joiners=joiners)

    def start_reserved(self, request_id: str) -> Started | Refusal | Finished:
        reservation = self._reservations.get(request_id)
        over = self._floor.over()
        if reservation is not None and reservation.fault:
            return Refusal(request_id=request_id, reason=reservation.fault)
        if reservation is not None and reservation.started:
            return Started(request_id=request_id)
        if over:
            return Finished(request_id=request_id, reason=over)
        if reservation is None or not reservation.held:
            reason = f"no slots are reserved under {request_id!r} (any more); reserve them again"
            return Refusal(request_id=request_id, reason=reason)
        reservation.started = True
        try:
            self._floor.start(reservation.joiners, request_id)
        except Exception as error:
            expected = isinstance(error, OSError | UsageError)
            told = request_id, str(error)
            log.error("launch.start failed request=%s why=%r", *told, exc_info=not expected)
            reservation.fault = f"the workers could not be started: {error}"
            self._undo_start(reservation, request_id)
            return Refusal(request_id=request_id, reason=reservation.fault)
        return Started(request_id=request_id)

    def _undo_start(self, reservation: _Reservation, request_id: str) -> None:
        """Some may run: they end when the leader has undone the request, and free their slots."""
        alive = set(self._floor.alive())
        for joiner in reservation.joiners:
            if joiner.worker not in alive:
                self._slots.free(joiner.worker)
        self._floor.give_up(request_id)

    def release(self, message: Release) -> None:
        request_id = message.request_id
        reservation = self._reservations.get(request_id)
        if reservation is None:
            return
        if reservation.started:
            self._floor.give_up(request_id)
        else:
            self._let_go(reservation)

    def _too_short(self, message: Reserve, now: float) -> str:
        """Why the workers could be of no use in their time; empty if they could."""
        if message.for_s <= 0:
            return ""
        until = self._until.setdefault(message.request_id, now + message.for_s)
        self._forget_requests()
        if until - self.lead_s > now:
            return ""
        return (
            f"{max(0.0, until - now):.1f} s of the {message.for_s:g} s are left, and leaving alone "
            f"takes about {self.lead_s:.1f} s in this job; ask for a longer time"
        )

    # -- small things ----------------------------------------------------------------------

    def _take_new(self, count: int, gpus: Iterable[Gpu]) -> tuple[Joiner, ...]:
        first = self._next_worker
        ids = [WorkerId(f"w{number}") for number in range(first, first + count)]
        joiners = self._take(ids, gpus)
        self._next_worker += count
        return joiners

    def _take(self, ids: list[WorkerId], gpus: Iterable[Gpu]) -> tuple[Joiner, ...]:
        taken = self._slots.take(ids, gpus)
        self._seats |= taken
        return tuple(Joiner(worker=worker, slot=slot) for worker, slot in taken.items())

    def _let_go(self, reservation: _Reservation) -> None:
        if reservation.held:
            reservation.held = False
            for joiner in reservation.joiners:
                self._slots.free(joiner.worker)
                if not reservation.started:
                    self._seats.pop(joiner.worker, None)

    def _forget_requests(self) -> None:
        """Those that nobody asks for any more; never one whose slots wait to be used."""
        waiting = {
            request_id
            for request_id, each in self._reservations.items()
            if each.held and not each.started
        }
        _drop_oldest(self._reservations, KEPT_REQUESTS, waiting)
        _drop_oldest(self._until, KEPT_REQUESTS, waiting)

    def _forget_seats(self) -> None:
        ended = len(self._seats) - len(self._floor.alive())
        if ended > KEPT_SEATS:
            reserved = {
                joiner.worker
                for each in self._reservations.values()
                if each.held and not each.started
                for joiner in each.joiners
            }
            alive = {*self._floor.alive(), *reserved}
            _drop_oldest(self._seats, KEPT_SEATS + len(alive & self._seats.keys()), alive)

    def _answer_waiting(self, now: float) -> None:
        alive = set(self._floor.alive())
        for each in list(self._waiting):
            still = tuple(worker for worker in each.workers if worker in alive)
            told = each.request_id in self._told or now >= each.told_by
            if (told and not still) or now >= each.deadline:
                self._waiting.remove(each)
                self._send(each.peer, Gone(request_id=each.request_id, still=still))


def _drop_oldest(table: dict[_Key, _Value], keep: int, needed: Collection[_Key] = ()) -> None:
    """Drop what was put in first until `keep` are left, but nothing that is needed."""
    surplus = len(table) - keep
    if surplus > 0:
        for key in [key for key in table if key not in needed][:surplus]:
            del table[key]
