"""Conducts the one adjustment in flight, from Accepted to Adjusted or Undone.

Owns: the generation in force, the adjustment, and what the step records must announce. Speaks
through the leader's voice. Holds: a generation is announced only once it is in the store, an
announced switch is given up only when a committed record shows that it can no longer happen, and
the store's last word is always the generation in force or the one to come. Nobody hears of an
undo before the store has it, so the next leader gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Adjustment, Phase
from edl.protocol.effects import Announce, Effect, StoreSwap
from edl.protocol.events import StepCommitted, Swapped
from edl.protocol.migration import judged, owed, taken_up
from edl.protocol.pace import Pace
from edl.protocol.record import STOP, WITHDRAWN
from edl.protocol.recorded import KEPT_DEEDS, Deed, Recorded, write_recorded
from edl.protocol.topology import Generation, draw_next
from edl.protocol.voice import Voice
from edl.types import WorkerId

__all__ = ["GENERATION_KEY", "Conductor"]

GENERATION_KEY = "generation"


class Conductor:
    """Everything a leader does about membership once the job is founded."""

    def __init__(self, *, me: WorkerId, token: int, settings: Settings, voice: Voice) -> None:
        self.me = me
        self.token = token
        self.settings = settings
        self.voice = voice
        self.pace = Pace()
        self.generation: Generation | None = None
        self.generation_revision = 0
        self.last_number = 0
        self.adjustment: Adjustment | None = None
        self.stopping = ""
        self.over = False  # everybody committed the last step
        self.deeds: list[Deed] = []  # of every adjustment that was recorded and is closed
        self.fresh: set[WorkerId] = set()  # newcomers that never committed: no survivors
        self.weighing = 0  # the change of shares that the records announce; 0: none
        self.asked: Generation | None = None  # what the store is about to record
        self.mending = False  # a recovery makes the next generation: nothing else is recorded
        self.past_first = False  # this leader has committed the step that some stayed for
        self._written = b""

    @property
    def founded(self) -> bool:
        return self.generation is not None

    @property
    def leaves(self) -> bool:
        """The switch left this leader out: what is still open is its successor's."""
        return self.generation is not None and self.me not in self.generation

    def adopt(self, found: Recorded, *, revision: int) -> None:
        """The store's word on a job that another worker led until now."""
        self.enter(found.generation)
        self.generation_revision = revision
        self.last_number = max(self.last_number, found.generation.number)
        self.deeds, self.fresh = list(found.deeds), set()
        # Whether the last one stands turns out when its newcomers show what they are.
        present = found.generation.request_id
        self.voice.requests.remember(d for d in self.deeds if d.request_id != present)

    def open(
        self,
        peer: int,
        request_id: str,
        *,
        kind: str,
        joiners: tuple[m.Joiner, ...],
        leavers: tuple[WorkerId, ...],
        now: float,
    ) -> list[Effect]:
        moving = leavers if joiners else ()
        leavers = () if moving else leavers
        self.adjustment = Adjustment(
            request_id=request_id,
            kind=kind,
            expected={joiner.worker: joiner.slot for joiner in joiners},
            leavers=leavers,
            opened=now,
            settings=self.settings,
            moving=moving,
        )
        fields = {"workers": ",".join((*(joiner.worker for joiner in joiners), *leavers))}
        if moving:
            # They are members until the newcomers are in, and stay if those are lost.
            fields["leaving"] = ",".join(moving)
        return [
            *self.voice.accept(request_id, peer),
            *self.voice.tell("adjust.accepted", request_id, kind=kind, **fields),
            *self.when_gathered(now),
        ]

    # -- an adjustment's life --------------------------------------------------------------

    def when_gathered(self, now: float) -> list[Effect]:
        adjustment = self.adjustment
        if adjustment is None or adjustment.phase is not Phase.GATHERING:
            return []
        if adjustment.dropped or not adjustment.gathered():
            return []
        assert self.generation is not None
        self.last_number += 1
        target = draw_next(
            self.generation,
            number=self.last_number,
            joiners=adjustment.arrived.values(),
            leavers=adjustment.leavers,
            leaving=adjustment.moving,
            token=self.token,
            request_id=adjustment.request_id,
        )
        adjustment.build(target, now=now)
        told = self.voice.tell("adjust.building", adjustment.request_id, target=target.number)
        return [*self.voice.to(adjustment.touched(), m.Prepare(generation=target)), *told]

    def on_rendezvous(self, message: m.RendezvousKey | m.RendezvousEntry) -> list[Effect]:
        target = self.adjustment.generation if self.adjustment else None
        if self.adjustment is None or target is None or target.number != message.generation:
            return []
        return self.voice.relay(message, self.adjustment.keys, target)

    def catch_up(self, worker: WorkerId) -> list[Effect]:
        """What a worker that was away may have missed of the generation being built."""
        adjustment = self.adjustment
        if adjustment is None or adjustment.phase is not Phase.BUILDING:
            return []
        target = adjustment.generation
        if target is None or worker not in adjustment.touched():
            return []
        return self.voice.brief(worker, target, adjustment.keys)

    def on_group_built(self, message: m.GroupBuilt, now: float) -> list[Effect]:
        adjustment = self.adjustment
        if adjustment is None or not self.current(message.generation):
            return []
        if not adjustment.on_built(message.worker) or adjustment.generation is None:
            return []
        adjustment.record()
        return [self.record(adjustment.generation)]

    def on_recorded(self, target: Generation, now: float) -> list[Effect]:
        """The store has what was asked of it for an adjustment, or for the undo of one."""
        adjustment = self.adjustment
        if adjustment is None:
            return []
        if adjustment.phase is Phase.RESTORING and self.generation == target:
            return self.undone(now)
        if adjustment.phase is Phase.CLOSING and not target.leaving:
            return self.completed(now)
        if adjustment.phase is not Phase.RECORDING or not self.current(target.number):
            return []
        if adjustment.why:
            # It was given up while the store had it in hand.
            return [*self.restore(), self.word()]
        adjustment.announce(step=self.pace.switch_step(self.settings), now=now)
        told = self.voice.tell("adjust.announced", adjustment.request_id, at=adjustment.step)
        return [self.word(), *told]

    def restore(self) -> list[Effect]:
        """The store must say again what is in force before anybody hears of the undo."""
        assert self.adjustment is not None
        assert self.generation is not None
        self.adjustment.phase = Phase.RESTORING
        return [self.record(self.generation)]

    def on_step_committed(self, event: StepCommitted, now: float) -> list[Effect]:
        """The leader's own training thread has committed a step."""
        self.pace.on_committed(event)
        self.voice.step = event.step
        adjustment = self.adjustment
        if adjustment is None or adjustment.phase is not Phase.WITHDRAWING:
            return []
        # A record that was made after the undo says so. One that merely does not name the
        # generation may be from before the announcement, with the one that does still to come.
        target = adjustment.generation
        number = target.number if target else 0
        said = {(record.next_generation, record.switch_step) for record in event.records}
        stopped = any(what == STOP for what, _ in said)
        withdrawn = stopped or (WITHDRAWN, number) in said
        return [*self.restore(), self.word()] if withdrawn else []

    def on_switch_decided(self, number: int, step: int, now: float) -> list[Effect]:
        """The committed records made the switch happen; what follows is another generation."""
        adjustment = self.adjustment
        if adjustment is None or not self.current(number):
            return []
        if adjustment.phase in (Phase.SWITCHING, Phase.RESTORING, Phase.CLOSING):
            # A successor took over before its own training thread got here.
            return []
        assert adjustment.generation is not None
        adjustment.switch(step=step, now=now)
        self.enter(adjustment.generation)
        told = self.voice.tell("adjust.switching", adjustment.request_id, at=step)
        return [self.word(), *told]

    def on_switched(self, message: m.Switched, now: float) -> list[Effect]:
        adjustment, generation = self.adjustment, self.generation
        if adjustment is None or generation is None or adjustment.phase is not Phase.SWITCHING:
            return []
        if message.generation != generation.number:
            return []
        # Those who were lost in the switch are waited for no more.
        adjustment.waiting &= set(generation.workers())
        return self.close(now) if adjustment.on_switched(message) else []

    def settle(self) -> list[Effect]:
        """Everybody has committed the first step: whoever stayed for it only is gone."""
        generation, adjustment = self.generation, self.adjustment
        if generation is None or not generation.leaving:
            return []
        self.enter(generation.settled())
        if adjustment is None or adjustment.phase is not Phase.SWITCHING:
            return []
        adjustment.settle(generation.settled())
        names = ",".join(generation.leaving)
        return self.voice.tell("adjust.parted", adjustment.request_id, workers=names)

    def close(self, now: float) -> list[Effect]:
        """Everybody has switched. Who has left by it is recorded before anybody is answered."""
        effects, adjustment = self.settle(), self.adjustment
        assert adjustment is not None
        if self.leaves:
            return effects  # its successor's business
        if not adjustment.moving:
            return [*effects, *self.completed(now)]
        adjustment.phase = Phase.CLOSING
        return [*effects, *self._record_close()]

    def _record_close(self) -> list[Effect]:
        """Record who has left. While survivors build, their generation's record will say it."""
        if self.mending:
            return []
        closing = self.adjustment is not None and self.adjustment.phase is Phase.CLOSING
        here = self.generation if self.asked is None else None
        return [self.record(here)] if closing and here is not None else []

    def completed(self, now: float) -> list[Effect]:
        """Everybody is in the new generation, and the store says so."""
        adjustment = self.adjustment
        assert adjustment is not None
        record = adjustment.report(now)
        self._remember(adjustment.deed())
        self.adjustment = None
        if self.generation is not None and self.generation.leaving:
            return []  # the job ended in the first step, as its requester is about to hear
        return self.voice.complete(record, adjustment.summary(record))

    def undo(self, why: str, now: float) -> list[Effect]:
        """Give the adjustment up. After an announcement the records must confirm it first."""
        adjustment = self.adjustment
        closing = (Phase.SWITCHING, Phase.WITHDRAWING, Phase.RESTORING, Phase.CLOSING)
        if adjustment is None or adjustment.phase in closing or adjustment.dropped:
            return []
        adjustment.why = adjustment.why or why
        if adjustment.phase is Phase.RECORDING:
            return []
        if adjustment.phase is Phase.ANNOUNCED:
            adjustment.phase = Phase.WITHDRAWING
            return [self.word()]
        return self.restore()

    def undone(self, now: float, *, finished: bool = False) -> list[Effect]:
        adjustment = self.adjustment
        assert adjustment is not None
        withdrawn = adjustment.phase is Phase.WITHDRAWING
        if not finished:
            self._remember(replace(adjustment.deed(), undone=adjustment.why))
        self.adjustment = None
        request_id, why = adjustment.request_id, adjustment.why
        number = adjustment.generation.number if adjustment.generation else 0
        word = m.Undo(generation=number, request_id=request_id, why=why, finished=finished)
        effects: list[Effect] = [self.word()] if withdrawn else []
        effects += self.voice.to(adjustment.touched(), word)
        for worker in adjustment.arrived:
            self.voice.peers.pop(worker, None)
        answer: m.Finished | m.Undone = m.Undone(request_id=request_id, reason=why)
        if finished:
            answer = m.Finished(request_id=request_id, reason=why)
        told = self.voice.tell("adjust.undone", request_id, kind=adjustment.kind, why=why)
        return [*effects, *self.voice.final(answer), *told]

    def _remember(self, deed: Deed) -> None:
        self.deeds = [*self.deeds, deed][-KEPT_DEEDS:]

    def on_failure(self, why: str, now: float) -> list[Effect]:
        """A generation fell: what was recorded comes about now, what was not is undone.

        A joiner without a committed step is no survivor: nobody knows where the others' scripts
        are. So a recorded scale-out is undone, too, by the generation that is made of the rest.
        """
        adjustment = self.adjustment
        if adjustment is None:
            return []
        if adjustment.phase in (Phase.GATHERING, Phase.BUILDING) or adjustment.dropped:
            self.drop(f"{why} meanwhile")
            return []
        assert adjustment.generation is not None
        effects: list[Effect] = []
        if adjustment.phase not in (Phase.SWITCHING, Phase.CLOSING):
            adjustment.switch(step=self.pace.step, now=now)
            self.enter(adjustment.generation)
            told = self.voice.tell("adjust.switching", adjustment.request_id, at=self.pace.step)
            effects = [self.word(), *told]
        if adjustment.expected:
            self.drop(f"{why} meanwhile")
        return effects

    def drop(self, why: str) -> None:
        """Give the adjustment up together with the generation that is about to be replaced."""
        if self.adjustment is not None:
            self.adjustment.drop(why)

    def strangers(self) -> set[WorkerId]:
        """Members of the last recorded generation that cannot be counted as survivors."""
        adjustment = self.adjustment
        dropped = adjustment.expected.keys() if adjustment and adjustment.dropped else ()
        return self.fresh | set(dropped)

    def forget(self, deeds: Iterable[Deed]) -> None:
        """Another leader has said what became of the adjustment."""
        if self.adjustment and self.adjustment.request_id in {deed.request_id for deed in deeds}:
            self.adjustment = None

    def turn_away(self, worker: WorkerId | None = None) -> None:
        """Newcomers that entered the record but never a step: their adjustment is undone.

        A leader that came with it has a step in it. So it stands, for those who have one too, and
        only this `worker` is turned away.
        """
        generation = self.generation
        assert generation is not None
        stands = self.me in generation.newcomers
        self.fresh |= {worker} if stands and worker else set(generation.newcomers) - {self.me}
        why = "" if stands else "the leader was lost before they trained"
        self.deeds = [
            replace(deed, undone=why, joined=tuple(w for w in deed.joined if w not in self.fresh))
            if self.fresh and deed.request_id == generation.request_id
            else deed
            for deed in self.deeds
        ]

    def on_mended(self, target: Generation, now: float) -> list[Effect]:
        """The survivors' generation is in the store."""
        self.enter(target)
        self.fresh, self.past_first = set(), False
        adjustment = self.adjustment
        self.deeds = judged(target, self.deeds)
        open_deed = owed(target, self.deeds)
        if open_deed is not None and adjustment is None:
            self.deeds.remove(open_deed)
            self.adjustment = taken_up(open_deed, target, self.settings, now)
            self.adjustment.step = self.pace.step
        self.voice.requests.remember(self.deeds)
        if adjustment is None:
            return []
        if adjustment.phase is Phase.CLOSING:
            return self.completed(now)
        return self.undone(now) if not adjustment.outlives(target, now) else []

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the switch has happened, but not yet on this worker as far as is known."""
        return self.adjustment is not None and self.adjustment.awaits(worker)

    def on_tick(self, now: float) -> list[Effect]:
        why = self.adjustment.overdue(now) if self.adjustment else None
        return self.undo(why, now) if why else [*self.when_gathered(now), *self._record_close()]

    def enter(self, generation: Generation) -> None:
        self.generation = generation
        self.voice.generation = generation.number

    def word(self) -> Announce:
        """What the next records must announce, as things stand."""
        return replace(self._switch_word(), weighing=self.weighing)

    def _switch_word(self) -> Announce:
        adjustment = self.adjustment
        if self.stopping:
            return Announce(generation=STOP, switch_step=self.pace.step + 1, token=self.token)
        if adjustment and adjustment.phase is Phase.ANNOUNCED and adjustment.generation:
            number = adjustment.generation.number
            return Announce(generation=number, switch_step=adjustment.step, token=self.token)
        if adjustment and adjustment.phase is Phase.WITHDRAWING and adjustment.generation:
            number = adjustment.generation.number
            return Announce(generation=WITHDRAWN, switch_step=number, token=self.token)
        return Announce(generation=0, switch_step=0, token=self.token)

    def record(self, generation: Generation) -> StoreSwap:
        """Ask the store to record this. One at a time: the next one builds on its answer."""
        assert self.asked is None
        open_deed = [self.adjustment.deed()] if self.adjustment is not None else []
        self.asked = generation
        self._written = write_recorded(generation, [*self.deeds, *open_deed])
        return StoreSwap(
            purpose="generation",
            key=GENERATION_KEY,
            expected=self.generation_revision,
            value=self._written,
            leased=False,
        )

    def answered(self, event: Swapped) -> Generation | None:
        """What the store has recorded by this answer; None: something else is there."""
        asked, self.asked = self.asked, None
        # An answer can be lost and the swap asked again: then our own value is in its way.
        if asked is None or not (event.done or event.value == self._written):
            return None
        self.generation_revision = event.revision
        return asked

    def current(self, number: int) -> bool:
        adjustment = self.adjustment
        target = adjustment.generation if adjustment else None
        return target is not None and target.number == number
