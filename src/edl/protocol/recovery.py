"""After a forced exit: what is left of a generation becomes the next one.

Owns: who is lost, and the generation that is being made of the rest. It is made like any other,
beside whatever the scripts do: built in the background, recorded by compare-and-swap, and only
then begun. How far each survivor is they compare among themselves, in-band, when they enter it
(see `position.py`). Holds: a failure kills the generation it is about and every later one, prepared
or entered; the base is always the last recorded generation, so an announced switch is carried out
by the recovery and one that was not recorded is undone.
"""

from __future__ import annotations

from enum import Enum

from edl.protocol import messages as m
from edl.protocol.adjustment import Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Dismiss, Effect
from edl.protocol.events import Swapped
from edl.protocol.topology import Generation, draw_again
from edl.protocol.voice import Voice
from edl.types import WorkerId

__all__ = ["Recovery", "Stage"]

# A broken collective is the first sign of a death; which one it was is known a moment later.
SETTLE_S = 0.2
# Between two attempts to build what is left: the reason may need a moment to show.
AGAIN_S = 0.2


class Stage(Enum):
    """Where a recovery stands."""

    IDLE = "nothing is wrong"
    SETTLING = "finding out who is lost"
    STORE = "waiting for the store's word on a generation"
    BUILDING = "building the group of the survivors"
    RECORDING = "recording the survivors' generation"
    RESUMING = "survivors take up training"


class Recovery:
    """Everything a leader does about lost workers."""

    def __init__(self, *, me: WorkerId, conductor: Conductor, voice: Voice) -> None:
        self.me = me
        self.conductor = conductor
        self.voice = voice
        self.stage = Stage.IDLE
        self.lost: dict[WorkerId, str] = {}
        self.departed: set[WorkerId] = set()  # went in good order; nobody waits for them
        self._suspects: dict[WorkerId, tuple[str, float]] = {}
        self.target: Generation | None = None
        self.keys: dict[str, m.RendezvousKey] = {}
        self._waiting: set[WorkerId] = set()
        self._began = 0.0
        self._due = 0.0

    @property
    def active(self) -> bool:
        return self.stage is not Stage.IDLE

    # -- something is wrong ----------------------------------------------------------------

    def on_lost(self, worker: WorkerId, why: str, now: float) -> list[Effect]:
        """A member of the last recorded generation is gone for good."""
        if worker in self.lost:
            return []
        self.lost[worker] = why
        self.voice.peers.pop(worker, None)
        told = self.voice.tell("worker.lost", worker=worker, why=why)
        return [*told, *self.begin(now)]

    def on_closed(self, worker: WorkerId, why: str, now: float) -> list[Effect]:
        """A member's connection closed: it may come back, unless training shows otherwise."""
        if self.stage is Stage.SETTLING:
            return self.on_lost(worker, why, now)
        self._suspects[worker] = (why, now)
        return []

    def on_heard(self, worker: WorkerId) -> None:
        self._suspects.pop(worker, None)

    def on_stuck(self, message: m.Stuck, now: float) -> list[Effect]:
        """Somebody's collectives broke. If nobody turns out to be lost, the same go on."""
        generation = self.conductor.generation
        if self.stage is Stage.RESUMING and self.target is not None:
            stale = message.generation < self.target.number
        else:
            stale = self.active or generation is None or message.generation < generation.number
        if stale:
            return []
        self.stage, self._due = Stage.SETTLING, now + SETTLE_S
        self._began = now
        told = self.voice.tell("training.broke", worker=message.worker, why=message.why)
        return [*told, *self._give_up_suspects(now, older_than_s=0.0)]

    def _give_up_suspects(self, now: float, *, older_than_s: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker, (why, at) in list(self._suspects.items()):
            if now - at >= older_than_s:
                del self._suspects[worker]
                effects += self.on_lost(worker, why, now)
        return effects

    def begin(self, now: float) -> list[Effect]:
        """Make the next generation of whoever is left of the last recorded one."""
        conductor = self.conductor
        if not self.active:
            self._began = now
        adjustment = conductor.adjustment
        if adjustment is not None and adjustment.phase is Phase.RECORDING:
            # Whether that generation exists is for the store to say.
            self.stage = Stage.STORE
            return []
        effects = conductor.on_failure(now)
        base = conductor.generation
        assert base is not None
        gone = self.lost.keys() | self.departed
        left = [w for w in base.workers() if w not in gone]
        if not left:
            return [*effects, Dismiss(why="every other worker is lost", failed=True)]
        why = "; ".join(f"{w} is lost: {said}" for w, said in self.lost.items() if w in base)
        fell = m.Fell(generation=conductor.last_number, why=why or "collectives broke")
        effects += self.voice.to(base.workers(), fell)
        conductor.last_number += 1
        self.target = draw_again(
            base,
            number=conductor.last_number,
            dead=gone,
            leader=self.me,
            token=conductor.token,
        )
        self.stage, self.keys, self._waiting = Stage.BUILDING, {}, set(left)
        self._due = now + conductor.settings.build_timeout_s
        told = self.voice.tell("recovery.building", target=self.target.number, workers=len(left))
        return [*effects, *self.voice.to(left, m.Prepare(generation=self.target)), *told]

    # -- the survivors' generation ---------------------------------------------------------

    def makes(self, number: int) -> bool:
        return self.target is not None and self.target.number == number and self.active

    def on_rendezvous_key(self, message: m.RendezvousKey) -> list[Effect]:
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
        self.stage, self._due = Stage.SETTLING, now + AGAIN_S
        return self.voice.tell("recovery.again", worker=message.worker, why=message.why)

    def on_swapped(self, event: Swapped, now: float) -> list[Effect]:
        """The store's word on the survivors' generation."""
        if self.stage is Stage.STORE:
            return self.begin(now)
        if self.stage is not Stage.RECORDING or self.target is None:
            return []
        if not event.done:
            # Another leader has recorded a generation: this one leads nobody any more.
            self.stage = Stage.IDLE
            return self.voice.tell("leader.superseded")
        self.stage, self._waiting = Stage.RESUMING, set(self.target.workers())
        self.conductor.enter(self.target)
        word = m.Founded(generation=self.target.number)
        return [*self.voice.to(self.target.workers(), word), self.conductor.word()]

    def on_switched(self, message: m.Switched, now: float) -> list[Effect]:
        """A survivor has committed a step in the new generation."""
        if self.stage is not Stage.RESUMING or not self.makes(message.generation):
            return []
        self._waiting.discard(message.worker)
        if self._waiting:
            return []
        assert self.target is not None
        self.stage = Stage.IDLE
        lost = ",".join(w for w in self.lost)
        return self.voice.tell(
            "job.recovered",
            workers=self.target.size,
            lost=lost,
            seconds=round(now - self._began, 3),
        )

    def catch_up(self, worker: WorkerId, here: int) -> list[Effect]:
        """What a worker that was away may have missed; `here` is the generation it is in."""
        target = self.target
        if target is None or worker not in target or here >= target.number:
            return []
        effects: list[Effect] = []
        if self.active:
            fell = m.Fell(generation=target.number - 1, why="a worker is lost")
            effects += self.voice.to([worker], fell)
            effects += self.voice.brief(worker, target, self.keys)
        generation = self.conductor.generation
        if generation is not None and generation.number == target.number:
            effects += self.voice.to([worker], m.Founded(generation=target.number))
        return effects

    def on_tick(self, now: float) -> list[Effect]:
        late = self._give_up_suspects(now, older_than_s=self.conductor.settings.reconnect_s)
        if late:
            return late
        if self.stage is Stage.SETTLING and now >= self._due:
            return self.begin(now)
        if self.stage is Stage.BUILDING and now >= self._due:
            return self.begin(now)
        return []
