"""Who is a member of the job, and what the end of a process means for it.

Pure. The launcher sees processes end, and hears from the leader who has joined and left; either
may come first. Owns: the members as far as known, and ends that cannot be judged yet. Holds: a
member that fails fails the job; a newcomer that fails before its switch harms nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.launch.base import Ended
from edl.protocol.messages import Happened, Status
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.types import WorkerId

__all__ = ["Census", "Judged"]

# The word that explains a quiet end may be a moment behind it.
EXPLAIN_S = 10.0
EXPLAIN_LAST_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An end with its meaning. `failed`: the job cannot go on; `why` is empty if all is well."""

    ended: Ended
    failed: bool
    why: str


class Census:
    """See the module. `now` is monotonic seconds."""

    def __init__(self, founders: Iterable[WorkerId]) -> None:
        self._founders = set(founders)
        self._members = set(self._founders)
        self._left: set[WorkerId] = set()
        self._alive = set(self._founders)
        self._request_of: dict[WorkerId, str] = {}
        self._named: dict[str, tuple[WorkerId, ...]] = {}
        self._switch_step: dict[str, int] = {}
        self._undone: set[str] = set()
        self._unjudged: dict[WorkerId, tuple[Ended, float]] = {}
        self._dismissed: set[WorkerId] = set()
        self.records: list[AdjustmentRecord] = []
        self.led = False
        self.founded = False
        self.over = ""
        self.step = 0
        self._generation = 0
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
                self._named[request_id] = _workers(fields.get("workers", ""))
            case "adjust.switching":
                self._switch_step[request_id] = int(fields.get("at", event.step))
                names = self._named.pop(request_id, ())
                self._move(
                    joined=(w for w in names if w not in self._members),
                    left=(w for w in names if w in self._members),
                )
            case "adjust.complete":
                self._named.pop(request_id, None)
                self._move(
                    joined=_workers(fields.get("joined", "")), left=_workers(fields.get("left", ""))
                )
                at = self._switch_step.pop(request_id, event.step)
                self.records.append(_record(event, step=at))
            case "adjust.undone":
                self._named.pop(request_id, None)
                self._undone.add(request_id)

    def on_status(self, status: Status) -> None:
        self.step = max(self.step, status.step)
        # One of an earlier generation was overtaken by an event.
        if not status.generation or status.generation < self._generation:
            return
        self._generation = status.generation
        self.founded = True
        listed = {worker.id for worker in status.workers if worker.rank >= 0}
        self._move(joined=listed - self._members, left=self._members - listed)

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
            return Judged(ended=ended, failed=False, why="")
        if worker in self._left:
            why = f"status {status} after it had left the job" if status else ""
            return Judged(ended=ended, failed=False, why=why)
        if worker in self._members:
            if status:
                return Judged(ended=ended, failed=True, why="")
            return self._meaning_of_quiet_end(ended, age_s)
        if not status:
            return Judged(ended=ended, failed=False, why="")
        # A newcomer: whether it had been taken in is for the leader to say.
        resolved = self._request_of.get(worker, "") in self._undone or self.over
        if resolved or (not self._alive and age_s > EXPLAIN_S):
            return Judged(ended=ended, failed=False, why=f"status {status} before it had joined")
        return None

    def _meaning_of_quiet_end(self, ended: Ended, age_s: float) -> Judged | None:
        """Status 0 is no failure, but in the middle of a job it is no success either."""
        if self.over or not self.led:
            return Judged(ended=ended, failed=False, why="")
        if not self._alive and not self.founded:
            return Judged(ended=ended, failed=False, why="")
        if age_s <= (EXPLAIN_S if self._alive else EXPLAIN_LAST_S):
            return None
        return Judged(
            ended=ended,
            failed=True,
            why="its script ended while the others still trained"
            if self.founded
            else "its script ended before training began, and the others wait for it",
        )

    def _move(self, *, joined: Iterable[WorkerId], left: Iterable[WorkerId]) -> None:
        joined, left = set(joined), set(left)
        self._members |= joined - self._left
        self._members -= left
        self._left |= left


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
