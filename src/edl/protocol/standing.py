"""A worker's place in the job by the store's word.

Owns: the last recorded generation as this worker knows it, and whether the job is over. Holds: one
job never becomes two, since whoever is absent from the last recorded generation leads nobody and
goes; a leaver first puts in its last step, and a newcomer is not in any generation yet. Neither
can lead, so both go if nobody has led for long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edl.protocol.effects import BreakGroup, Effect, MayGo
from edl.protocol.recorded import Recorded, read_recorded
from edl.protocol.topology import Generation
from edl.protocol.worker import State, Worker
from edl.types import WorkerId

__all__ = ["Knows", "Standing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knows:
    """What a worker knows of the last recorded generation by itself."""

    entered: bool  # it has moved there; if not, nobody has committed a step in it
    settled: bool = False  # it has committed the step that some stay in it for
    through: bool = False  # and so has everybody
    well: bool = False  # whoever led until now still answers: no death is known


class Standing:
    """What the store has said so far, and what it means for one worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.recorded: tuple[Recorded, int] | None = None
        self._was_member = False  # of any recorded generation
        self.ended = ""  # how the job ended; empty while it runs
        self.fenced = ""  # why this run of the job is over for good; empty while it is not
        self._watched = False  # whether a notification has told of a generation
        self.heir_of = 0  # the generation whose office is handed to this worker
        self.missing: WorkerId | None = None  # who led until this worker did, and answers no more
        self._well = False  # or still answered then
        self._ended_since: float | None = None
        self._alone_since: float | None = None

    def take_note(self, value: bytes, revision: int, *, watched: bool = False) -> bool:
        """Notifications and answers come on different ways: the later revision is the truth."""
        self._watched = self._watched or watched
        if self.recorded is not None and revision <= self.recorded[1]:
            return False
        self.recorded = (read_recorded(value), revision)
        self._was_member = self._was_member or self.is_eligible()
        return True

    def fence_if_deleted(self, *, watched: bool) -> list[Effect]:
        """The store has no generation (any more). Only a launcher deletes one, as a fence.

        Notifications come in order: the first ones may say that there is none yet.
        """
        if watched and not self._watched:
            return []
        return self._fence("the job was fenced: its generation was deleted from the store")

    def fence_if_replaced(self, value: bytes) -> list[Effect]:
        """Another start of the same job has recorded its founding generation here."""
        if self.recorded is None:
            return []
        known, found = self.recorded[0].generation, read_recorded(value).generation
        # This start's own founding generation may be recorded again, with its leader's old token.
        if not found.founding or found.token <= known.token:
            return []
        return self._fence(
            f"the job was started again: the store holds generation {found.number} of another start"
        )

    def _fence(self, why: str) -> list[Effect]:
        """Stop for good: what this worker does from here on must not count."""
        if self.ended or self.fenced:
            return []
        self.fenced = why
        leaves = self.worker.state is State.LEAVING
        return [MayGo()] if leaves else self.worker.out(why)

    def is_eligible(self) -> bool:
        """Whoever is absent from the last recorded generation leads nobody."""
        return self.recorded is None or self.worker.me.worker in self.recorded[0].generation

    def is_heir(self) -> bool:
        """The leader that the present generation was drawn with; the last one hands over to it."""
        here = self.worker.generation
        return here is not None and here.number == self.heir_of

    def may_lead(self) -> bool:
        """Nobody needs a leader any more once the job's end is told."""
        return self.is_eligible() and not self.ended and not self.fenced

    def base(self) -> tuple[Recorded, int]:
        """What a new leader builds on, and its revision; unknown ones show when it records."""
        if self.recorded is not None:
            return self.recorded
        assert self.worker.generation is not None
        return Recorded(generation=self.worker.generation, deeds=()), 0

    def take_office(self, *, after: WorkerId | None) -> None:
        """This worker leads. The key may be the answer to a question of long ago.

        Somebody else may have led meanwhile, let its lease lapse, and be well: this is no death.
        """
        self._well = self.worker.linked
        self.missing = None if self._well else after

    def knows(self, generation: Generation) -> Knows:
        here, number = self.worker.generation, generation.number
        if here is None:
            return Knows(entered=False, well=self._well)
        return Knows(
            entered=here.number >= number,
            settled=here.number == number and bool(generation.leaving) and not here.leaving,
            through=self.worker.through == number,
            well=self._well,
        )

    def leave_if_out(self) -> list[Effect]:
        """Whoever is absent from the last recorded generation exits; a leaver after its step."""
        worker = self.worker
        if self.is_eligible() or self.recorded is None or worker.state is State.LEAVING:
            return []
        last, here = self.recorded[0].generation, worker.generation
        if here is None:
            if any(number <= last.number for number in worker.prepared):
                return worker.out("the adjustment was undone")
            # A failure may have undone it, and what this worker had prepared is forgotten.
            why = "the job went on without this worker"
            return worker.out(why) if self._was_member else []
        # A planned leave may still be taken back; until then this worker has a step to put in.
        planned = not last.mended and worker.left_out_of(last.number)
        # The same number without this worker: everybody has committed the step it stayed for.
        waits = last.number == here.number and not worker.stuck
        if last.number < here.number or waits or planned:
            return []
        return worker.out(worker.out_why or "the job went on without this worker")

    def leave_if_over(self) -> list[Effect]:
        """The job is over: whoever waits for others waits in vain.

        So does a leader that has left and waits for its successor, who needs no office any more.
        """
        if not self.ended:
            return []
        if self.worker.state is State.LEAVING and not self.worker.stuck:
            return [MayGo()]
        return self.worker.dismiss(self.ended, failed=False, over=True)

    def hurry(self, now: float, *, after_s: float) -> list[Effect]:
        """The job is over, yet this worker still waits in a round that nobody will complete.

        Not at once: whoever told of the end may only have been the first to pass the last round.
        """
        here = self.worker.generation
        if not self.ended or here is None or self._ended_since == math.inf:
            return []
        if self._ended_since is None:
            self._ended_since = now
        if now - self._ended_since < after_s:
            return []
        self._ended_since = math.inf
        return [BreakGroup(number=here.number, why=self.ended)]

    def despair(self, now: float, *, after_s: float) -> list[Effect]:
        """Some cannot lead. If nobody does for long, nobody is left who could."""
        worker = self.worker
        newcomer = bool(worker.request_id) and worker.generation is None
        leaver = worker.stuck and not self.is_eligible()
        if worker.linked or not (newcomer or leaver):
            self._alone_since = None
            return []
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since < after_s:
            return []
        return worker.dismiss(f"the job has had no leader for {after_s:g} s", failed=True)
