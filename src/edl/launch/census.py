"""Who is a member of the job, and what the end of a process means for it.

Pure. The launcher sees processes end, and hears from the leader who has joined and left; either
may come first. Owns: the members as far as known, and ends that cannot be judged yet. Holds: a
member that dies once training has begun is lost, and the job goes on with the others; before that,
and by an error of its own after the job's end, it fails the job; a newcomer that fails before its
switch harms nobody.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from edl.errors import StoreError
from edl.launch.base import Ended
from edl.protocol.election import read_leader
from edl.protocol.messages import Happened, Status
from edl.protocol.recorded import Deed, read_recorded
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.types import Address, WorkerId

__all__ = ["KEPT_RECORDS", "Census", "Judged", "by_signal"]

# The word that explains a quiet end may be a moment behind it.
EXPLAIN_S = 10.0
EXPLAIN_LAST_S = 1.0
# Word of the first generation may be a moment behind the death of one of its members.
FOUNDING_S = 0.5
# Whoever has committed a step leads at once when nobody does, unless it is frozen.
VACANT_S = 15.0
# Finished adjustments that the result lists, the last ones; events.jsonl has them all.
KEPT_RECORDS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An end with its meaning. `why` is empty if all is well, or if the status says it all.

    `lost`: a member is gone, and the others go on; `failed`: the job cannot go on.
    """

    ended: Ended
    lost: bool = False
    failed: bool = False
    why: str = ""


class Census:
    """See the module. `now` is monotonic seconds."""

    def __init__(
        self, founders: Iterable[WorkerId], *, records: Iterable[AdjustmentRecord] = ()
    ) -> None:
        self._founders = set(founders)
        self._members = set(self._founders)
        self._proven = set(self._founders)  # they are known to train, and not only to be taken in
        self._left: set[WorkerId] = set()
        self._alive = set(self._founders)
        self._request_of: dict[WorkerId, str] = {}
        self._named: dict[str, tuple[WorkerId, ...]] = {}
        self._switch_step: dict[str, int] = {}
        self._undone: set[str] = set()
        self._unjudged: dict[WorkerId, tuple[Ended, float]] = {}
        self._dismissed: set[WorkerId] = set()
        self._lost: set[WorkerId] = set()
        self._leaving: set[WorkerId] = set()  # asked to go, or allowed to
        self._unled_at: float | None = None
        self.records: deque[AdjustmentRecord] = deque(records, maxlen=KEPT_RECORDS)
        self.led = False
        self.founded = False
        self.over = ""
        self.step = 0
        self.size = len(self._founders)  # of the last generation that is known
        self.succeeded = False  # a member returned 0 after the job's end
        self._generation = 0
        self.revision = 0  # of the store's generation key
        self._deeds: tuple[Deed, ...] = ()  # as recorded with that key
        self._addresses: dict[WorkerId, Address] = {}  # of members, as recorded last
        # The launcher is ending the job itself: no end is a surprise any more.
        self.ending = False

    # -- what is heard ---------------------------------------------------------------------

    def on_started(self, worker: WorkerId, request_id: str) -> None:
        self._alive.add(worker)
        self._request_of[worker] = request_id

    def on_event(self, event: Happened) -> None:
        self.step = max(self.step, event.step)
        self._generation = max(self._generation, event.generation)
        fields, request_id = event.fields, event.request_id
        match event.what:
            case "job.started":
                self.founded = True
            case "job.finished" | "job.stopped":
                self.over = event.what.removeprefix("job.")
            case "adjust.accepted":
                names = self._named[request_id] = _workers(fields.get("workers", ""))
                self._leaving |= set(names) & self._members
            case "adjust.parted":
                # Of a migration: they were members until the newcomers were in.
                names = _workers(fields.get("workers", ""))
                self._leaving |= set(names)
                self._move(joined=(), left=names)
            case "adjust.switching":
                self._switch_step[request_id] = int(fields.get("at", event.step))
                names = self._named.pop(request_id, ())
                # The store may have told of it already: who is a member now says nothing.
                self._move(
                    joined=(w for w in names if w not in self._leaving),
                    left=(w for w in names if w in self._leaving),
                )
            case "adjust.complete":
                self._named.pop(request_id, None)
                left = _workers(fields.get("left", ""))
                self._leaving |= set(left)
                joined = _workers(fields.get("joined", ""))
                self._proven |= set(joined)
                self._move(joined=joined, left=left)
                at = self._switch_step.pop(request_id, event.step)
                self.records.append(_record(event, step=at))
            case "adjust.undone":
                self._leaving -= set(self._named.pop(request_id, ()))
                self._undone.add(request_id)

    def on_status(self, status: Status) -> None:
        self.step = max(self.step, status.step)
        # One of an earlier generation was overtaken by an event.
        if not status.generation or status.generation < self._generation:
            return
        listed = {worker.id for worker in status.workers if worker.rank >= 0}
        self._on_members(status.generation, listed)

    def on_generation(self, value: bytes, revision: int = 0) -> None:
        """The store's word: which generation exists. Nobody knows better."""
        fields = json.loads(value)
        number, members = int(fields["number"]), [WorkerId(str(w)) for w in fields["members"]]
        # What a fence must expect there, also if an event told of a later generation already.
        self.revision = revision
        self._addresses |= {
            worker: Address(str(where[0]), int(where[1]))
            for worker, where in zip(members, fields.get("where", ()), strict=False)
        }
        with suppress(StoreError):  # of a foreign value only the members are of use
            self._deeds = read_recorded(value).deeds
        if number >= self._generation:
            self._on_members(number, set(members))

    def _on_members(self, number: int, listed: set[WorkerId]) -> None:
        self._generation = number
        self.founded = True
        self.size = len(listed) or self.size
        self._move(joined=listed - self._members, left=self._members - listed)

    def on_leader(self, value: bytes | None, now: float) -> None:
        """What the leader's key holds. Nobody leads that has not committed a step."""
        self.led = self.led or value is not None
        self._unled_at = self._unled_at or now if value is None else None
        if value is not None:
            with suppress(StoreError):  # a foreign value names nobody
                self._proven.add(read_leader(value, 0).worker)

    def on_state(self, state: str) -> None:
        self.over = self.over or state

    def on_not_started(self, workers: Iterable[WorkerId]) -> None:
        """Their processes could not be started, so nobody waits for their ends."""
        self._alive -= set(workers) - self._request_of.keys()

    def on_dismissed(self, worker: WorkerId) -> bool:
        """The launcher itself ends this process, so its end says nothing. False: it did before."""
        new = worker not in self._dismissed
        self._dismissed.add(worker)
        return new

    def on_ended(self, ended: Ended, now: float) -> None:
        self._alive.discard(ended.worker)
        self._unjudged[ended.worker] = (ended, now)

    # -- what follows ----------------------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether a process runs, or an end waits for its meaning."""
        return bool(self._alive or self._unjudged)

    def outcomes(self) -> dict[str, AdjustmentRecord]:
        """The requests that this run and those before it carried out, by their ids.

        Also those whose generation was recorded while nobody was left to tell of their end.
        """
        found = {deed.request_id: deed.record() for deed in self._deeds if not deed.undone}
        return found | {record.request_id: record for record in self.records}

    @property
    def has_leader(self) -> bool:
        """Whether the leader's lease is being renewed."""
        return self._unled_at is None

    def elsewhere(self) -> dict[WorkerId, Address | None]:
        """Members that somebody else started, and where each listens; none once the job is over.

        The launcher cannot see their processes end.
        """
        if self.over:
            return {}
        return {worker: self._addresses.get(worker) for worker in sorted(self._strangers())}

    @property
    def finished_elsewhere(self) -> bool:
        """Members that somebody else started recorded the job's end; their exits are not seen."""
        return self.over == "finished" and bool(self._strangers())

    def deserted(self, now: float) -> bool:
        """No member is left; whoever still runs waits for a job that is no more.

        Newcomers that were taken in and have not done their first step cannot go on alone either;
        whether they have, only a leader could tell.
        """
        if not self.founded or self.over or not self._alive or self._strangers():
            return False
        here = (self._alive | self._unjudged.keys()) & self._members
        vacant = self._unled_at is not None and now - self._unled_at >= VACANT_S
        return not here or (vacant and not here & self._proven)

    def expelled(self) -> set[WorkerId]:
        """Processes that still run, and that the others took for dead and went on without."""
        return (self._alive & self._left) - self._leaving - self._dismissed

    def working(self) -> int:
        """How many members are known to be there."""
        return len(self.present())

    def present(self) -> set[WorkerId]:
        """The members that are known to be there."""
        return self._members - self._lost

    def members(self) -> set[WorkerId]:
        """Those of the last generation that is known, whatever became of them since."""
        return set(self._members)

    def _strangers(self) -> set[WorkerId]:
        return self._members - self._request_of.keys() - self._founders

    def is_member(self, worker: WorkerId) -> bool:
        return worker in self._members

    def has_left(self, worker: WorkerId) -> bool:
        return worker in self._left

    def pending(self) -> list[WorkerId]:
        """Processes of newcomers that the job has not taken in."""
        return sorted(self._alive - self._members - self._left)

    def request_of(self, worker: WorkerId) -> str:
        return self._request_of.get(worker, "")

    def started_for(self, request_id: str) -> list[WorkerId]:
        return [worker for worker, owner in self._request_of.items() if owner == request_id]

    def of_request(self, request_id: str) -> list[WorkerId]:
        """Newcomers of this request that run and have not been taken in."""
        return [w for w in self.pending() if self._request_of.get(w) == request_id]

    def judge(self, now: float) -> list[Judged]:
        """The ends whose meaning is clear by now, in the order in which they came."""
        judged = []
        for worker, (ended, at) in list(self._unjudged.items()):
            verdict = self._meaning(ended, now - at)
            if verdict is not None:
                del self._unjudged[worker]
                judged.append(verdict)
        return judged

    def _meaning(self, ended: Ended, age_s: float) -> Judged | None:
        worker, status = ended.worker, ended.status
        if self.ending or worker in self._dismissed:
            return Judged(ended=ended)
        if worker in self._left:
            if status and worker not in self._leaving:
                # The others noticed its death first, and went on without it.
                return self._lose(ended, "")
            why = f"status {status} after it had left the job" if status else ""
            return Judged(ended=ended, why=why)
        if worker in self._members:
            return self._meaning_of_members(ended, age_s)
        if not status:
            return Judged(ended=ended)
        # A newcomer: whether it had been taken in is for the leader to say.
        resolved = self._request_of.get(worker, "") in self._undone or self.over
        if resolved or (not self._alive and age_s > EXPLAIN_S):
            return Judged(ended=ended, why=f"status {status} before it had joined")
        return None

    def _meaning_of_members(self, ended: Ended, age_s: float) -> Judged | None:
        if not ended.status:
            return self._meaning_of_quiet_end(ended, age_s)
        if self.over:
            # What it did for itself after the end, such as saving the model, was not done.
            own = not by_signal(ended.status)
            return Judged(ended=ended, failed=own, lost=not own)
        if self.founded:
            return self._lose(ended, "")
        if self.led and self._alive and age_s <= FOUNDING_S:
            return None
        return Judged(ended=ended, failed=True)

    def _lose(self, ended: Ended, why: str) -> Judged:
        self._lost.add(ended.worker)
        return Judged(ended=ended, lost=True, why=why)

    def _meaning_of_quiet_end(self, ended: Ended, age_s: float) -> Judged | None:
        """Status 0 is no failure, but in the middle of a job it is no success either."""
        if self.over or not self.led:
            self.succeeded = self.succeeded or bool(self.over)
            return Judged(ended=ended)
        if not self._alive and not self.founded:
            return Judged(ended=ended)
        if age_s <= (EXPLAIN_S if self._alive else EXPLAIN_LAST_S):
            return None
        if self.founded:
            return self._lose(ended, "its script ended while the others still trained")
        why = "its script ended before training began, and the others wait for it"
        return Judged(ended=ended, failed=True, why=why)

    def _move(self, *, joined: Iterable[WorkerId], left: Iterable[WorkerId]) -> None:
        joined, left = set(joined), set(left)
        self._members |= joined - self._left
        self._members -= left
        self._left |= left


def by_signal(status: int) -> bool:
    """Whether a signal ended it: by the kernel, or SIGTERM once more while it was leaving."""
    return status < 0 or status == 128 + signal.SIGTERM


def _workers(text: str | int | float) -> tuple[WorkerId, ...]:
    return tuple(WorkerId(name) for name in str(text).split(",") if name)


def _record(event: Happened, *, step: int) -> AdjustmentRecord:
    """The adjustment that an `adjust.complete` event tells of."""
    fields = event.fields
    seconds = {name: float(fields.get(name, 0.0)) for name in Parts.__dataclass_fields__}
    return AdjustmentRecord(
        request_id=event.request_id,
        kind=str(fields.get("kind", "")),
        joined=_workers(fields.get("joined", "")),
        left=_workers(fields.get("left", "")),
        generation=event.generation,
        step=step,
        size=int(fields.get("workers", 0)),
        total_s=float(fields.get("total_s", 0.0)),
        transfer_bytes=int(fields.get("transfer_bytes", 0)),
        parts=Parts(**seconds),
    )
