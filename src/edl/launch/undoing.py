"""Changes the number of a job's workers for a while, and undoes that afterwards.

Owns: who came and who left by it. Holds: only its own changes are undone, never what others asked
for or what a death did; workers that came by it leave before the job's own; an adjustment that was
interrupted is waited for, and counted by what came of it, so nothing is left half undone. Workers
that were lent for a time come back for what is left of it, if anything is.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edl.errors import AdjustmentFailed, JobFinished, PeerError, Refused, TimedOut, WrongSecret
from edl.protocol.messages import AdjustmentRecord, Status
from edl.protocol.profiling import members_of
from edl.types import WorkerId

__all__ = ["Adjustable", "Unchanged", "counted", "pause"]

POLL_S = 0.1
# Whoever waits longer than this hears that it goes on.
TELL_S = 5.0
ATTEMPTS = 3


class Adjustable(Protocol):
    """A job, as far as it is needed here."""

    name: str
    timeout_s: float

    def running(self) -> bool: ...

    def status(self) -> Status: ...

    def transients(self) -> dict[WorkerId, float]: ...

    def scale_out(
        self, gpus: int | Sequence[str], *, request_id: str, for_s: float | None = None
    ) -> AdjustmentRecord | None: ...

    def scale_in(
        self, workers_or_gpus: Sequence[str], *, request_id: str, wait: bool = True
    ) -> AdjustmentRecord | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Doubt:
    """An adjustment that was asked for and whose end was not heard of."""

    request_id: str
    members: frozenset[WorkerId]  # before it
    leavers: frozenset[WorkerId]
    lent: WorkerId | None  # who comes back for the rest of its time, as the job's own


class Unchanged:
    """A job that has its workers back after `undo`. `say` hears what is done and waited for."""

    def __init__(self, job: Adjustable, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._slots: dict[WorkerId, str] = {}  # of every worker that was seen
        self._before: frozenset[WorkerId] = frozenset()
        self._mine: set[WorkerId] = set()  # who came by this
        self._owed: dict[WorkerId, str] = {}  # who left by this, and from which slot
        self._lent: dict[WorkerId, float] = {}  # whose time is over when, as far as it matters
        self._doubt: _Doubt | None = None

    @property
    def before(self) -> int:
        """How many workers it had; 0 before it was seen to train."""
        return len(self._before)

    def await_training(self) -> int:
        """How many workers it has. Its first step may be a while away, if it has just begun."""
        deadline = time.monotonic() + self._job.timeout_s
        with self._patience("waiting for the first step"):
            while True:
                status = self.status()
                if members_of(status) and status.step:
                    self._before = frozenset(_members(status))
                    return len(self._before)
                if time.monotonic() > deadline:
                    raise TimedOut(
                        f"job {self._job.name} has done no step in {self._job.timeout_s:g} s; "
                        "try again when it trains, or wait longer (--timeout)"
                    )
                pause(POLL_S)

    def status(self) -> Status:
        """Also while the leader changes, which takes a moment."""
        deadline = time.monotonic() + self._job.timeout_s
        while True:
            if not self._job.running():
                raise JobFinished(f"job {self._job.name} is over")
            try:
                status = self._job.status()
                if status.workers:
                    self._slots |= {worker.id: worker.slot for worker in status.workers}
                    return status
                if time.monotonic() > deadline:
                    raise TimedOut(f"job {self._job.name} has no leader")
            except WrongSecret:
                raise
            except (PeerError, TimedOut):
                if time.monotonic() > deadline:
                    raise
            pause(POLL_S)

    def move_to(self, workers: int) -> str:
        """Give it so many; else why not."""
        why = ""
        for _ in range(ATTEMPTS):
            self._settle()
            status = self.status()
            more = workers - members_of(status)
            if not more:
                return ""
            self._say(f"scaling {'out' if more > 0 else 'in'} to {counted(workers)}")
            try:
                if more > 0:
                    self._add(more, status)
                else:
                    self._remove(-more, status)
            except (Refused, AdjustmentFailed, TimedOut) as error:
                why = str(error)
                # Somebody whom this named may have left first: then look again.
                if _members(self.status()) == _members(status):
                    return why
        return why or "others change its workers all the time"

    def ask_ahead(self, workers: int) -> None:
        """Have it come to so few in a moment: a switch is announced some time before it happens.

        What came of it is seen by whatever is asked for next.
        """
        status = self.status()
        fewer = members_of(status) - workers
        if self._doubt is not None or fewer <= 0 or status.adjustment is not None:
            return
        leavers = self._leavers(fewer, status)
        self._say(f"scaling in to {counted(workers)}")
        with contextlib.suppress(TimedOut, PeerError):
            request_id = self._doubted(status, leavers)
            try:
                self._job.scale_in(leavers, request_id=request_id, wait=False)
            except (Refused, AdjustmentFailed):
                # Whoever asks again in its own time hears why.
                self._doubt = None

    def undo(self) -> str:
        """Returns what is otherwise than before by others' doing, if anything."""
        undone = self._doubt is not None
        self._settle()
        for _ in range(ATTEMPTS):
            status = self.status()
            here = _members(status)
            self._forget_lent(status)
            more = len(self._owed) - sum(worker in self._mine for worker in here)
            if not more:
                if len(here) == self.before and undone:
                    self._say(f"the job has {counted(len(here))} as before")
                return self._by_others(here)
            self._say(f"back to {counted(len(here) + more)}")
            undone = True
            if more > 0:
                self._bring_back(more, status)
            else:
                try:
                    self._remove(-more, status)
                except Refused:
                    surplus = len(here) - self.before
                    if surplus >= -more:
                        raise
                    return self._stay(surplus, status)
        raise TimedOut("others change its workers all the time")

    def _stay(self, surplus: int, status: Status) -> str:
        """It may not be as small as it would be without all who came: somebody else went, too."""
        if surplus > 0:
            self._remove(surplus, status)
        here = _members(self.status())
        stay = [worker for worker in here if worker in self._mine]
        gone = sorted(self._before - set(here) - self._owed.keys())
        return (
            f"{' and '.join(stay)} {'stays' if len(stay) == 1 else 'stay'}, for "
            f"{' and '.join(gone)} went meanwhile, and the job may not be smaller"
        )

    def _by_others(self, here: Sequence[WorkerId]) -> str:
        if len(here) == self.before:
            return ""
        went = sorted(self._before - set(here) - self._owed.keys())
        came = sorted(set(here) - self._before - self._mine)
        told = [f"{', '.join(who)} {what}" for who, what in ((went, "went"), (came, "came")) if who]
        return (
            f"the job has {counted(len(here))} and had {self.before}: "
            f"{' and '.join(told) or 'others came or went'} meanwhile, not by this"
        )

    # -- one adjustment ----------------------------------------------------------------------

    def _bring_back(self, count: int, status: Status) -> None:
        """On the slots that were left, if they are still free."""
        taken = {worker.slot for worker in status.workers}
        free = [worker for worker, slot in self._owed.items() if slot not in taken][-count:]
        lent = [worker for worker in free if worker in self._lent]
        slots = [self._owed[worker] for worker in free if worker not in self._lent]
        for_good = count - len(lent)
        if for_good and len(slots) == for_good:
            try:
                self._add(slots, status)
            except Refused:
                self._add(for_good, status)
        elif for_good:
            self._add(for_good, status)
        for worker in lent:
            self._lend_again(worker)

    def _lend_again(self, worker: WorkerId) -> None:
        """For the time that is left, unless that is too short to be worth it."""
        status = self.status()
        self._forget_lent(status)
        if worker not in self._owed:
            return
        left_s = self._lent[worker] - time.monotonic()
        try:
            with self._asking(status, (), lent=worker) as request_id:
                slots = [self._owed[worker]]
                self._job.scale_out(slots, request_id=request_id, for_s=left_s)
        except (Refused, AdjustmentFailed) as error:
            self._say(f"{worker}, who was here for a time, does not come back: {error}")
        del self._owed[worker]

    def _forget_lent(self, status: Status) -> None:
        """Whose time is over, or whose slot is another's by now: they had that one and no other."""
        taken = {worker.slot for worker in status.workers}
        now = time.monotonic()
        for worker, slot in list(self._owed.items()):
            if self._lent.get(worker, math.inf) <= now or (worker in self._lent and slot in taken):
                del self._owed[worker]

    def _add(self, wish: int | Sequence[str], status: Status) -> None:
        with self._asking(status, ()) as request_id:
            record = self._job.scale_out(wish, request_id=request_id)
            self._mine |= set(record.joined if record else ())

    def _remove(self, count: int, status: Status) -> None:
        leavers = self._leavers(count, status)
        with self._asking(status, leavers) as request_id:
            self._job.scale_in(leavers, request_id=request_id)
            self._went(leavers)

    def _leavers(self, count: int, status: Status) -> list[WorkerId]:
        """Who came by this goes first, then the highest ranks; a leader after its equals."""
        members = [worker for worker in status.workers if worker.rank >= 0]
        members.sort(key=lambda worker: (worker.id not in self._mine, worker.leader, -worker.rank))
        return [worker.id for worker in members[:count]]

    def _went(self, leavers: Sequence[WorkerId]) -> None:
        self._owed |= {w: self._slots[w] for w in leavers if w not in self._mine}
        self._mine -= set(leavers)

    @contextlib.contextmanager
    def _asking(
        self, status: Status, leavers: Sequence[WorkerId], lent: WorkerId | None = None
    ) -> Iterator[str]:
        """Around a request. Interrupted or not answered in time, what became of it is in doubt."""
        request_id = self._doubted(status, leavers, lent)
        what = "workers to leave" if leavers else "new workers"
        with self._patience(f"waiting for {what}"):
            try:
                yield request_id
            except (Refused, AdjustmentFailed):
                self._doubt = None
                raise
        self._doubt = None

    def _doubted(
        self, status: Status, leavers: Sequence[WorkerId], lent: WorkerId | None = None
    ) -> str:
        """The id of a request whose end is not known from now on."""
        request_id = secrets.token_hex(4)
        if leavers:
            now, left_s = time.monotonic(), self._job.transients()
            self._lent |= {w: now + left_s[w] for w in leavers if w in left_s}
        self._doubt = _Doubt(
            request_id=request_id,
            members=frozenset(_members(status)),
            leavers=frozenset(leavers),
            lent=lent,
        )
        return request_id

    def _settle(self) -> None:
        """Wait for the end of an adjustment that was interrupted, and see what came of it."""
        doubt = self._doubt
        if doubt is None:
            return
        deadline = time.monotonic() + self._job.timeout_s
        with self._patience("waiting for the end of what was begun"):
            while True:
                status = self.status()
                begun = status.adjustment
                if begun is None or begun.request_id != doubt.request_id:
                    break
                if time.monotonic() > deadline:
                    raise TimedOut(f"request {doubt.request_id} does not come to an end")
                pause(POLL_S)
        here = frozenset(_members(status))
        self._went(sorted((doubt.leavers - here) - self._owed.keys()))
        if doubt.lent is not None and here - doubt.members:
            self._owed.pop(doubt.lent, None)
        elif not doubt.leavers:
            self._mine |= here - doubt.members
        self._doubt = None

    @contextlib.contextmanager
    def _patience(self, what: str) -> Iterator[None]:
        """Says every few seconds that this still goes on."""
        done, began = threading.Event(), time.monotonic()

        def tell() -> None:
            while not done.wait(TELL_S):
                self._say(f"{what}, for {time.monotonic() - began:.0f} s now")

        threading.Thread(target=tell, name="edl-patience", daemon=True).start()
        try:
            yield
        finally:
            done.set()


def counted(workers: int) -> str:
    return f"{workers} worker{'s' if workers != 1 else ''}"


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def _members(status: Status) -> list[WorkerId]:
    return [worker.id for worker in status.workers if worker.rank >= 0]
