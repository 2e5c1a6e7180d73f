"""Workers that were lent: `edl scale-out JOB --add N --for 4m` has them given back by themselves.

The launcher owns the timer, for it lives as long as the job: the client that asked may be gone, and
the leader another one. Owns: who is to be gone by when, and the one scale-in that gives back.
Holds: the time counts from the request, for from then on the slots are lent, and at its end the
processes have ended; so they are asked to leave ahead of it, by what leaving takes. Never so many
that fewer than the least are left, the rest being given back once others have come. A request that
is told to retry is asked again; newcomers that could only leave again are given up. When lent ones
are moved, or the job begins again, as many new workers take over their places and the time that is
left.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from edl.launch.jobs import JobFolder, write_json
from edl.protocol import messages as m
from edl.types import WorkerId

__all__ = ["Transients", "lead_s", "save_in", "time_left"]

log = logging.getLogger("edl.launch")

# After a scale-in that came to nothing.
PAUSE_S = 1.0
# For the next group, the end of the process, and whatever else the machine does at that moment.
LEAD_MARGIN_S = 1.0
FILE = "transient.json"


def lead_s(*, allowance_s: float, step_s: float, switch_steps: int = 0) -> float:
    """How long before the end of their time workers are asked to leave.

    A scale-in is heard of within a step, and its switch is as many steps later as the leader tells,
    who knows how far loaders read ahead; 0: it has not told, so an allowance, and to a step's end.
    """
    announced_s = switch_steps * step_s if switch_steps else allowance_s + step_s
    return step_s + announced_s + LEAD_MARGIN_S


class Note(Protocol):
    """Writes an event of the job's history."""

    def __call__(self, what: str, request_id: str, /, **fields: str | int | float) -> None: ...


class Transients:
    """`tell` says something to the leader until it is withdrawn; `now` is monotonic seconds.

    `give_up` has newcomers of a request turned back; `save` is told whose time ends when, at each
    change.
    """

    def __init__(
        self,
        *,
        least: int,
        tell: Callable[[str, m.Message], None],
        withdraw: Callable[[str], None],
        give_up: Callable[[str], None],
        note: Note,
        save: Callable[[dict[WorkerId, float]], None],
    ) -> None:
        self._least = least
        self._tell = tell
        self._withdraw = withdraw
        self._give_up = give_up
        self._note = note
        self._save = save
        self._ends: dict[WorkerId, float] = {}
        self._was: dict[WorkerId, float] = {}  # the same, also of those that have gone
        self._owners: dict[WorkerId, str] = {}  # the requests of those that have not joined yet
        self._left: set[WorkerId] = set()  # whose last step is done; the process may still run
        self._late: set[WorkerId] = set()
        self._number = 0
        self._open = ""
        self._not_before = 0.0
        self._held = False  # whether it was told that they stay for now

    def on_started(self, workers: Iterable[WorkerId], *, request_id: str, until: float) -> None:
        """Their processes run, and must have ended by then."""
        started = list(workers)
        self._ends |= dict.fromkeys(started, until)
        self._was |= self._ends
        self._owners |= dict.fromkeys(started, request_id)
        self._save(self._ends)

    def on_joined(self, workers: Iterable[WorkerId], *, request_id: str, now: float) -> None:
        """These carry their share from now on."""
        joined = [worker for worker in workers if self._owners.pop(worker, None) is not None]
        if joined:
            left_s = round(self._ends[joined[0]] - now, 1)
            self._note("transient.begins", request_id, workers=",".join(joined), left_s=left_s)

    def on_moved(
        self,
        left: Sequence[WorkerId],
        joined: Sequence[WorkerId],
        *,
        request_id: str,
        now: float,
    ) -> None:
        """Others came for some that left. Where fewer did, places of a time are given up first."""
        lent = sorted((w for w in left if w in self._was), key=lambda w: -self._was[w])
        for_good = len(left) - len(lent)
        heirs = {heir: self._was[w] for heir, w in zip(joined[for_good:], lent, strict=False)}
        if heirs:
            self._ends |= heirs
            self._was |= heirs
            self._save(self._ends)
            left_s = round(min(heirs.values()) - now, 1)
            self._note("transient.moved", request_id, workers=",".join(heirs), left_s=left_s)

    def lends(self, worker: WorkerId) -> bool:
        """Whether this one is, or was, here for a time."""
        return worker in self._was

    def on_tick(
        self,
        *,
        alive: Collection[WorkerId],
        members: Collection[WorkerId],
        lead_s: float,
        now: float,
    ) -> None:
        """`alive`: those with a process, and those that no generation stands without yet."""
        self._note_ends([worker for worker in self._ends if worker not in alive], now)
        due = [w for w, end in self._ends.items() if end - lead_s <= now and w not in self._left]
        self._note_late(now)
        self._turn_back([w for w in due if w in self._owners and w not in members], now)
        if self._open or now < self._not_before:
            return
        due = [worker for worker in due if worker in members]
        # The last that came go first, should not all of them.
        leavers = tuple(due[::-1][: max(0, len(members) - self._least)])
        if leavers:
            self._ask(leavers)
        elif due and not self._held:
            self._held = True
            self._note(
                "transient.waits",
                "",
                workers=",".join(due),
                why=f"no fewer than {self._least} workers may be left",
            )

    def on_answer(self, message: object, now: float) -> None:
        """The leader's word on a request of ours."""
        if not self._open or getattr(message, "request_id", "") != self._open:
            return
        match message:
            case m.Adjusted(record=record):
                self._settle()
                self._left |= self._ends.keys() & set(record.left)
            case m.Undone(reason=reason) | m.Refusal(reason=reason):
                self._settle()
                self._not_before = now + PAUSE_S
                log.warning("launch.transient stays why=%r", reason)
            case m.Finished():
                self._settle()

    def over(self, *, lead_s: float, now: float) -> int:
        """How many have joined and would be asked to leave by now."""
        return sum(end - lead_s <= now for end in self._joined().values())

    def in_order(self, members: Iterable[WorkerId]) -> list[WorkerId]:
        """Those that are there for good first, then those with the most time left."""
        ends = self._joined()
        return sorted(members, key=lambda w: (-ends.get(w, math.inf), len(w), w))

    def restart(self, founders: Sequence[WorkerId], *, size: int) -> None:
        """The job, which had `size` members, begins again: new workers take their places in order.

        If there are fewer than before, those are missing whose time is over. Whoever had not joined
        is asked for again by its requester.
        """
        self._settle()
        before = bool(self._ends)
        ends = sorted(self._joined().values(), reverse=True)
        self._ends = dict(zip(founders[max(0, size - len(ends)) :], ends, strict=False))
        self._was = dict(self._ends)
        self._owners.clear()
        self._left.clear()
        if before:
            self._save(self._ends)

    def _joined(self) -> dict[WorkerId, float]:
        gone = self._owners.keys() | self._left
        return {worker: end for worker, end in self._ends.items() if worker not in gone}

    def _ask(self, leavers: tuple[WorkerId, ...]) -> None:
        self._held = False
        self._number += 1
        self._open = f"transient-{self._number}"
        self._note("transient.ends", self._open, workers=",".join(leavers))
        self._tell(self._open, m.ScaleIn(request_id=self._open, workers=leavers, gpus=(), count=0))

    def _turn_back(self, newcomers: list[WorkerId], now: float) -> None:
        for request_id in dict.fromkeys(self._owners[worker] for worker in newcomers):
            mine = [worker for worker in newcomers if self._owners[worker] == request_id]
            # Once: they are forgotten when their processes have ended.
            for worker in mine:
                del self._owners[worker]
            self._note(
                "transient.vain",
                request_id,
                workers=",".join(mine),
                why="it was time to leave before they had joined",
                left_s=round(self._ends[mine[0]] - now, 1),
            )
            self._give_up(request_id)

    def _note_late(self, now: float) -> None:
        late = [w for w, end in self._ends.items() if end < now and w not in self._late]
        if late:
            self._late.update(late)
            self._note("transient.late", self._open, workers=",".join(late))

    def _note_ends(self, gone: list[WorkerId], now: float) -> None:
        """Their processes have ended and their slots are free, in time or not."""
        for worker in gone:
            spare_s = self._ends.pop(worker) - now
            if worker in self._left or worker not in self._owners:
                self._note("transient.over", "", workers=worker, spare_s=round(spare_s, 2))
            self._owners.pop(worker, None)
            self._left.discard(worker)
            self._late.discard(worker)
        if gone:
            self._save(self._ends)

    def _settle(self) -> None:
        if self._open:
            self._withdraw(self._open)
        self._open = ""


def save_in(folder: JobFolder) -> Callable[[dict[WorkerId, float]], None]:
    """Where `edl status` finds it, by the wall's clock, which other processes have too."""

    def save(ends: dict[WorkerId, float]) -> None:
        ahead = time.time() - time.monotonic()
        try:
            write_json(folder.path / FILE, {w: end + ahead for w, end in ends.items()})
        except OSError as error:
            log.error("launch.transient not written why=%r", str(error))

    return save


def time_left(folder: JobFolder) -> dict[WorkerId, float]:
    """How many seconds are left until each lent worker has gone; 0: it is late."""
    try:
        ends = json.loads((folder.path / FILE).read_text())
        return {WorkerId(w): max(0.0, float(end) - time.time()) for w, end in ends.items()}
    except (OSError, ValueError, AttributeError):
        return {}
