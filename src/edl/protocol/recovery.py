"""After a forced exit: what is left of a generation becomes the next one.

Owns: who is lost, and the generation that is being made of the rest. It is made like any other,
beside whatever the scripts do: built in the background, recorded by compare-and-swap, and only
then begun. How far each survivor is they compare among themselves, in-band, when they enter it
(see `position.py`). Holds: a failure kills the generation it is about and every later one, prepared
or entered; the base is always the last recorded generation; while the store has a record in hand
nothing new is drawn; and whoever is counted as lost is told so only once that is recorded. Members
that cannot connect to each other fail a bounded number of builds; then one of them is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from edl.protocol import messages as m
from edl.protocol.adjustment import REPORT_S
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Dismiss, Effect
from edl.protocol.rendezvous import Rendezvous
from edl.protocol.topology import Generation, draw_again
from edl.protocol.unreached import Unreached
from edl.protocol.voice import Voice
from edl.types import WorkerId

__all__ = ["Recovery", "Stage"]

# A broken collective is the first sign of a death; which one it was is known a moment later.
SETTLE_S = 0.2
# Between two attempts to build what is left: the reason may need a moment to show.
AGAIN_S = 0.2
# A build that took too long gets twice the time at the next attempt, up to so many times: where
# messages are slow, attempts of one length would all fail.
PATIENCE_MAX = 8
# More than this between two ticks: this worker itself slept, or its processor was taken away.
SLEPT_S = 1.0


class Stage(Enum):
    """Where a recovery stands."""

    IDLE = "nothing is wrong"
    SETTLING = "finding out who is lost"
    STORE = "waiting for the store's word on a generation"
    BUILDING = "building the group of the survivors"
    RECORDING = "recording the survivors' generation"
    RESUMING = "survivors take up training"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A member without a connection. `parted`: it had one, and it closed.

    `well`: whoever led until then still answered, so no death is known; only the new leader itself
    has broken their training. `vouched_at`: when its watchdog last said, to this leader, that its
    process runs.
    """

    why: str
    since: float
    parted: bool
    well: bool = False
    vouched_at: float | None = None

    def later(self, seconds: float, now: float) -> Suspect:
        """The same, as if it had become a suspect, and been vouched for, that much later."""
        vouched_at = self.vouched_at
        return replace(
            self,
            since=min(now, self.since + seconds),
            vouched_at=None if vouched_at is None else min(now, vouched_at + seconds),
        )


class Recovery:
    """Everything a leader does about lost workers."""

    def __init__(self, *, me: WorkerId, conductor: Conductor, voice: Voice) -> None:
        self.me = me
        self.conductor = conductor
        self.voice = voice
        self.stage = Stage.IDLE
        self.lost: dict[WorkerId, str] = {}
        self._vacated: dict[str, WorkerId] = {}  # by slot, who was lost there
        self.departed: set[WorkerId] = set()  # went in good order; nobody waits for them
        self.owing: set[WorkerId] = set()  # of those who stayed for one step: not gone yet
        self._torn = False  # one of them went before it had let the others go on
        self._whole: Generation | None = None  # with them
        self.let_go = 0  # the generation whose others may go on without this leader
        self.target: Generation | None = None
        self.keys = Rendezvous()
        self._suspects: dict[WorkerId, Suspect] = {}
        self._ended: set[WorkerId] = set()  # by the launcher's word: they do not come back
        self._stuck: dict[WorkerId, m.Stuck] = {}
        self._waiting: set[WorkerId] = set()
        self._briefed: set[WorkerId] = set()  # they know the target's number from us
        self._missing: list[WorkerId] = []  # lost in the present recovery
        self._began = 0.0
        self._due = 0.0
        self._build_began = 0.0
        self._failed_at = 0.0  # when the first member reported that the present build failed
        self._ticked: float | None = None
        self._patience = 1  # how many times the usual time a build has
        self._unreached = Unreached(limit=conductor.settings.unreached_builds)
        self._left_out: set[WorkerId] = set()  # connected here, but not to each other

    @property
    def active(self) -> bool:
        return self.stage is not Stage.IDLE

    @property
    def busy(self) -> bool:
        """Whether a generation is being made, so that no adjustment can begin."""
        return self.stage not in (Stage.IDLE, Stage.RESUMING)

    def counted_on(self, generation: Generation) -> list[WorkerId]:
        """The others that training cannot go on without."""
        gone = {self.me, *self.lost, *self.departed}
        owing = [worker for worker in sorted(self.owing) if worker not in gone]
        if self.me not in generation:
            return [generation.leader, *owing]
        return [*(worker for worker in generation.workers() if worker not in gone), *owing]

    # -- something is wrong ----------------------------------------------------------------

    def on_lost(
        self, worker: WorkerId, why: str, now: float, *, ended: bool = False
    ) -> list[Effect]:
        """A member of the last recorded generation is gone for good."""
        if ended:
            self._ended.add(worker)
        if worker in self.lost or worker in self.departed:
            return []
        generation = self.conductor.generation
        if generation is not None and worker in generation.leaving and self.conductor.past_first:
            # It had only to wait until everybody was past that step, and may have gone since.
            self._suspects.pop(worker, None)
            self.voice.peers.pop(worker, None)
            self.departed.add(worker)
            return self.begin(now)
        self._torn = self._torn or worker in self.owing
        self.lost[worker] = why
        self._vacate(worker)
        self._missing.append(worker)
        self._suspects.pop(worker, None)
        self.voice.peers.pop(worker, None)
        told = self.voice.tell("worker.lost", worker=worker, why=why)
        return [*told, *self.begin(now)]

    def _vacate(self, worker: WorkerId) -> None:
        generation = self.conductor.generation
        for member in generation.members if generation is not None else ():
            if member.worker == worker:
                self._vacated[str(member.slot)] = worker

    def lost_of(self, message: m.ScaleIn | m.Migrate) -> str:
        """Who was to leave by this request and was lost before it could; empty: nobody."""
        generation = self.conductor.generation
        here = {str(member.slot) for member in generation.members} if generation else set()
        named = [worker for worker in message.workers if worker in self.lost]
        slots = [str(gpu) for gpu in message.gpus if str(gpu) not in here]
        named += [w for w in map(self._vacated.get, slots) if w is not None and w in self.lost]
        told = [f"{w} was lost before it could leave: {self.lost[w]}" for w in named]
        return "; ".join(dict.fromkeys(told))

    def on_closed(self, worker: WorkerId, why: str, now: float) -> list[Effect]:
        """A member's connection closed: it may come back, unless training shows otherwise."""
        if self.stage is Stage.SETTLING:
            return self.on_lost(worker, why, now)
        self._suspects[worker] = Suspect(why, now, parted=True)
        return []

    def expect(self, workers: Iterable[WorkerId], now: float, *, well: bool = False) -> None:
        """A new leader counts on these: whoever does not come to it in time is lost."""
        self._ticked = now if self._ticked is None else self._ticked
        for worker in workers:
            if worker != self.me and worker not in self.voice.peers and worker not in self.lost:
                why = "it has not come to the new leader"
                self._suspects[worker] = Suspect(why, now, parted=False, well=well)

    def on_heard(self, worker: WorkerId, now: float) -> list[Effect]:
        """A member is (again) connected. One that was given up too early is taken back."""
        self._suspects.pop(worker, None)
        undecided = self.stage in (Stage.SETTLING, Stage.BUILDING)
        final = worker in self._ended or worker in self._left_out
        if worker not in self.lost or final or not undecided:
            return []
        del self.lost[worker]
        self._missing.remove(worker)
        return [*self.voice.tell("worker.returned", worker=worker), *self.begin(now)]

    def on_vouched(self, worker: WorkerId, now: float) -> None:
        """Its process runs: it cannot come yet, as while its script holds the GIL."""
        suspect = self._suspects.get(worker)
        # One that parted had come to this leader: its agent ran, and broke the connection.
        if suspect is not None and not suspect.parted:
            self._suspects[worker] = replace(suspect, vouched_at=now)

    def on_stuck(self, message: m.Stuck, now: float) -> list[Effect]:
        """Somebody's collectives broke. If nobody turns out to be lost, the same go on."""
        self._stuck[message.worker] = message
        if self._is_stale(message):
            return []
        if not self.active:
            self._began, self._missing = now, []
        self.stage, self._due = Stage.SETTLING, now + SETTLE_S
        told = self.voice.tell("training.broke", worker=message.worker, why=message.why)
        parted = [(w, s) for w, s in self._suspects.items() if s.parted]
        for worker, suspect in parted:
            told += self.on_lost(worker, suspect.why, now)
        return told

    def keep(self, message: m.Stuck) -> None:
        """No failure yet; see `on_switch_happened`."""
        self._stuck[message.worker] = message

    def _is_stale(self, message: m.Stuck) -> bool:
        generation = self.conductor.generation
        if generation is None or message.worker in self.lost:
            return True
        if self.busy:
            return True
        if message.generation >= generation.number:
            return False
        # It broke in the generation before, and will never come to the switch by itself.
        return not self.conductor.awaits(message.worker)

    def on_switch_happened(self, now: float) -> list[Effect]:
        """What was no failure before the switch may be one after it."""
        for message in list(self._stuck.values()):
            if self.conductor.awaits(message.worker) and not self._is_stale(message):
                return self.on_stuck(message, now)
        return []

    # -- those who stay for one step ---------------------------------------------------------

    def on_settled(self, whole: Generation, now: float) -> list[Effect]:
        """Newcomers are survivors now. Leavers have still to let the others go on."""
        self._whole = whole
        self.owing = {w for w in whole.leaving if w not in self.lost and w not in self.departed}
        for worker in self.owing & self._stuck.keys():
            del self._stuck[worker]
        return self.begin(now) if self.stage is Stage.BUILDING else []

    @property
    def is_successors(self) -> bool:
        """Whether a failure left this leader out, so that its successor must recover."""
        return self._torn and self.stage is Stage.IDLE

    @property
    def awaits_parting(self) -> bool:
        return bool(self.owing) and not self._torn

    def on_torn(self, now: float) -> list[Effect]:
        """A leaver could not part in good order."""
        self._torn = True
        return self.begin(now)

    def begin(self, now: float) -> list[Effect]:
        """Make the next generation of whoever is left of the last recorded one."""
        conductor = self.conductor
        if not self.active:
            self._began = now
        if conductor.asked is not None:
            # Whether that generation exists is for the store to say.
            self.stage = Stage.STORE
            return []
        who = ", ".join(self._missing)
        verb = "were" if len(self._missing) > 1 else "was"
        effects = conductor.on_failure(f"{who} {verb} lost" if who else "collectives broke", now)
        base = conductor.generation
        assert base is not None
        gone = self.lost.keys() | self.departed | conductor.strangers()
        whole, self._whole = self._whole, None
        if whole is not None and whole.number != base.number:
            whole = None  # its leavers went in good order, and a later generation is recorded
        if self.me not in base and whole is not None and self.let_go != whole.number:
            # Nobody has gone on without this leader; if they are all lost, it stays.
            if gone.issuperset(base.workers()):
                conductor.enter(whole)
                base = whole
            else:
                self._whole = whole
        if self.me not in base:
            # It only waits for its successor, which must act now. If that one is gone, the key
            # must be free.
            self.stage, self._torn, conductor.mending = Stage.IDLE, True, False
            free = Dismiss(why=f"its successor {base.leader} is lost", failed=False)
            return [*effects, free] if base.leader in gone else effects
        self.owing.clear()
        self._torn, conductor.mending = False, True
        left = [w for w in base.workers() if w not in gone]
        why = "; ".join(f"{w} is lost: {self.lost[w]}" for w in self._missing)
        fell = m.Fell(generation=conductor.last_number, why=why or "collectives broke")
        effects += self.voice.to((w for w in self.voice.peers if w not in self._left_out), fell)
        for worker in sorted(self._left_out & gone):
            out = m.Fell(generation=conductor.last_number, why=self.lost[worker], out=True)
            effects += self.voice.to([worker], out)
        conductor.last_number += 1
        self.target = draw_again(
            base,
            number=conductor.last_number,
            dead=gone,
            leader=self.me,
            token=conductor.token,
        )
        self.stage, self.keys, self._waiting = Stage.BUILDING, Rendezvous(), set(left)
        self._unreached.begin_build()
        self._briefed = {worker for worker in left if worker in self.voice.peers}
        self._build_began = now
        self._due = now + conductor.settings.build_timeout_s * self._patience + REPORT_S
        told = self.voice.tell("recovery.building", target=self.target.number, workers=len(left))
        return [*effects, *self.voice.to(left, m.Prepare(generation=self.target)), *told]

    def use_higher(self, worker: WorkerId, last: int, now: float) -> list[Effect]:
        """A member may have heard of our number from a leader that we know nothing of."""
        conductor, target = self.conductor, self.target
        conductor.last_number = max(conductor.last_number, last)
        if self.stage is not Stage.BUILDING or target is None or worker in self._briefed:
            return []
        return self.begin(now) if last >= target.number else []

    # -- the survivors' generation ---------------------------------------------------------

    def makes(self, number: int) -> bool:
        return self.target is not None and self.target.number == number and self.active

    def on_rendezvous(self, message: m.RendezvousKey | m.RendezvousEntry) -> list[Effect]:
        assert self.target is not None
        return self.voice.relay(message, self.keys, self.target)

    def on_group_built(self, message: m.GroupBuilt) -> list[Effect]:
        if self.stage is not Stage.BUILDING or self.target is None:
            return []
        self._waiting.discard(message.worker)
        if self._waiting:
            return []
        self.stage = Stage.RECORDING
        return [self.conductor.record(self.target)]

    def on_group_failed(self, message: m.GroupFailed, now: float) -> list[Effect]:
        """A member could not build the group: build again, once the others have reported too."""
        if self.stage is not Stage.BUILDING or self.target is None:
            return []
        effects: list[Effect] = []
        if not self._unreached.reported:
            self._due, self._failed_at = now + REPORT_S, now
            effects = self.voice.tell("recovery.again", worker=message.worker, why=message.why)
        self._unreached.on_failed(self.target, message)
        return effects

    def _overdue(self) -> set[WorkerId]:
        """Who has reported nothing, unless somebody failed before the time for it was over."""
        reported, limit_s = self._unreached.reported, self.conductor.settings.build_timeout_s
        if reported and self._failed_at < self._build_began + limit_s:
            return set()
        return self._waiting - reported

    def _is_due(self, now: float) -> bool:
        """Whether it is time to build (again)."""
        reported = self._unreached.reported if self.stage is Stage.BUILDING else set()
        if reported and self._waiting <= reported:
            return now >= self._failed_at + AGAIN_S
        return self.stage in (Stage.SETTLING, Stage.BUILDING) and now >= self._due

    def on_recorded(self, target: Generation, now: float) -> list[Effect]:
        """The store has recorded something: the survivors' generation, or one in its way."""
        again = self.stage is Stage.STORE
        effects: list[Effect] = []
        # What is in force already was recorded again, for an undo.
        if target == self.target and target != self.conductor.generation:
            effects += self._resume(target, now)
        return [*effects, *self.begin(now)] if again else effects

    def _resume(self, target: Generation, now: float) -> list[Effect]:
        self.conductor.mending = False
        self._unreached.forget()
        effects = self.conductor.on_mended(target, now)
        # Whoever goes after the first step says so by going.
        waiting = set(target.settled().workers())
        self.stage, self._waiting, self._patience = Stage.RESUMING, waiting, 1
        self._stuck.clear()
        strangers = [w for w in self.voice.peers if w not in target]
        for worker in strangers:
            why = self.lost[worker] if worker in self._left_out else ""
            why = why or "the job went on without this worker"
            effects += self.voice.to([worker], m.Out(generation=target.number, why=why))
            del self.voice.peers[worker]
        self._left_out.clear()
        word = m.Founded(generation=target.number)
        return [*effects, *self.voice.to(target.workers(), word), self.conductor.word()]

    def on_switched(self, message: m.Switched, now: float) -> list[Effect]:
        """A survivor has committed a step in the new generation."""
        if self.stage is not Stage.RESUMING or not self.makes(message.generation):
            return []
        self._waiting.discard(message.worker)
        if self._waiting:
            return []
        assert self.target is not None
        self.stage = Stage.IDLE
        self.keys = Rendezvous()
        lost, self._missing = ",".join(self._missing), []
        return self.voice.tell(
            "job.recovered",
            workers=self.target.size,
            lost=lost,
            seconds=round(now - self._began, 3),
        )

    def catch_up(self, worker: WorkerId, here: int) -> list[Effect]:
        """What a worker that was away may have missed; `here` is the generation it is in."""
        target = self.target
        if target is None or worker not in target or here >= target.number or not self.active:
            return []
        fell = m.Fell(generation=target.number - 1, why="a worker is lost")
        effects = self.voice.to([worker], fell)
        if self.stage in (Stage.BUILDING, Stage.RECORDING, Stage.RESUMING):
            effects += self.voice.brief(worker, target, self.keys)
            self._briefed.add(worker)
        if self.stage is Stage.RESUMING:
            effects += self.voice.to([worker], m.Founded(generation=target.number))
        return effects

    def on_tick(self, now: float) -> list[Effect]:
        settings, generation = self.conductor.settings, self.conductor.generation
        for member in generation.members if generation is not None and self._vacated else ():
            if member.worker not in self.lost:
                self._vacated.pop(str(member.slot), None)  # of another one now
        effects: list[Effect] = []
        slept_s = now - self._ticked if self._ticked is not None else 0.0
        self._ticked = now
        if slept_s > SLEPT_S:
            # They may have come meanwhile, and still wait to be heard.
            self._suspects = {
                worker: suspect.later(slept_s, now) for worker, suspect in self._suspects.items()
            }
        for worker, suspect in list(self._suspects.items()):
            # While all train, nothing is wrong with one that is only on its way to a new leader.
            well = suspect.well or (not suspect.parted and not self.active)
            since, limit_s = suspect.since, settings.silence_s if well else settings.reconnect_s
            if suspect.vouched_at is not None:
                since, limit_s = suspect.vouched_at, settings.silence_s
            if now - since >= limit_s:
                del self._suspects[worker]
                # The others turn from a leader that leaves to its successor: no loss to anybody.
                if generation is not None and worker in self.counted_on(generation):
                    effects += self.on_lost(worker, suspect.why, now)
        if effects:
            return effects
        if self._is_due(now):
            if self.stage is Stage.BUILDING and self.target is not None:
                if not self._unreached.reported:
                    self._patience = min(2 * self._patience, PATIENCE_MAX)
                self._unreached.end_build(self.target, self._overdue())
            return self._begin_again(now)
        return []

    def _begin_again(self, now: float) -> list[Effect]:
        """Build again, without a member that has made too many builds fail."""
        base = self.conductor.generation
        gone = self.lost.keys() | self.departed | self.conductor.strangers()
        found = self._unreached.leave_out(base, leader=self.me, gone=gone) if base else None
        if found is None:
            return self.begin(now)
        effects = self.voice.tell("worker.lost", worker=found.worker, why=found.why)
        if found.worker == self.me:
            # The others reach each other. One of them leads as soon as the key is free.
            self.stage = Stage.IDLE
            return [*effects, Dismiss(why=found.why, failed=False, retire=True)]
        self._torn = self._torn or found.worker in self.owing
        self.lost[found.worker] = found.why
        self._left_out.add(found.worker)
        self._missing.append(found.worker)
        self._suspects.pop(found.worker, None)
        self._vacate(found.worker)
        return [*effects, *self.begin(now)]
