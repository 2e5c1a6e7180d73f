"""What the leader does about stragglers: tell, scale them in, or give them less to do.

Owns: the judge, and what was done about whom. Speaks through the leader's voice and opens
adjustments as any requester would. Holds: never more than one adjustment at a time and never under
the least number of workers; shares are announced in the leader's step record, so that everybody
uses them from the same step on. To replace a worker is the launcher's: it owns the slots, and acts
upon the event that tells of the straggler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl.config import Settings
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Effect
from edl.protocol.events import StepCommitted
from edl.protocol.messages import Status
from edl.protocol.record import Weighing
from edl.protocol.recovery import Recovery
from edl.protocol.stragglers import Stragglers
from edl.protocol.topology import FULL, Generation
from edl.protocol.voice import STRAGGLER_REQUEST, Voice
from edl.types import WorkerId

__all__ = ["Mitigation"]

# Nobody gets less than this part of a full share: it would no longer be seen whether it is slow.
_LEAST = FULL // 10
# Shares are drawn anew only when they are off by more: loaders fetch again what has changed.
_TOLERANCE = FULL // 10


class Mitigation:
    """Fed with every step that the leader's training thread has committed."""

    def __init__(
        self, *, settings: Settings, conductor: Conductor, recovery: Recovery, voice: Voice
    ) -> None:
        self._settings = settings
        self._conductor = conductor
        self._recovery = recovery
        self._voice = voice
        self._judge = Stragglers(
            factor=settings.straggler_factor,
            steps=settings.straggler_steps,
            least_s=settings.straggler_s,
        )
        self._kept: set[WorkerId] = set()  # could not be removed, and that was told
        self._not_before = 0  # the step; an adjustment that was undone is tried again later
        self._weigh_at: int | None = None  # the step from which on shares may change again

    def on_step_committed(self, event: StepCommitted, now: float) -> list[Effect]:
        conductor, generation = self._conductor, self._conductor.generation
        if generation is None or conductor.leaves or conductor.over or self._recovery.busy:
            return []
        if generation.leaving:
            return []  # ranks are about to change
        if self._weigh_at is None:
            # Whoever led before may have changed shares; this leader has yet to see for itself.
            self._judge.presume(event.weights)
            self._weigh_at = event.step + 2 * self._settings.straggler_steps
        weighed = self._weigh(generation, event)
        if self._settings.stragglers == "off":
            return weighed
        judged = self._judge.on_step(generation, event.records)
        effects = weighed
        for worker in judged.found:
            effects += self._voice.tell(
                "straggler.found",
                worker=worker,
                times=round(self._judge.ratio(worker), 2),
                steps=self._settings.straggler_steps,
                policy=self._settings.stragglers,
            )
        for worker in judged.gone:
            self._kept.discard(worker)
            stays = worker in generation
            # An adjustment made for stragglers tells by itself who left.
            if stays or not generation.request_id.startswith(STRAGGLER_REQUEST):
                why = "it keeps up again" if stays else "it left the job"
                effects += self._voice.tell("straggler.gone", worker=worker, why=why)
        if self._settings.stragglers == "remove" and not conductor.stopping:
            effects += self._remove(generation, event.step, now)
        return effects

    def _remove(self, generation: Generation, step: int, now: float) -> list[Effect]:
        """All of them at once, the slowest first, as far as enough workers are left."""
        slow = self._judge.slow
        if not slow or self._conductor.adjustment is not None or step < self._not_before:
            return []
        worst = sorted(slow, key=lambda worker: -slow[worker])
        least = max(1, self._settings.min_workers)
        room = max(0, generation.size - least)
        effects: list[Effect] = []
        for worker in worst[room:]:
            if worker not in self._kept:
                self._kept.add(worker)
                why = f"{generation.size} workers, and --min is {least}"
                effects += self._voice.tell("straggler.kept", worker=worker, why=why)
        leavers = tuple(worst[:room])
        if not leavers:
            return effects
        self._not_before = step + self._settings.straggler_steps
        return effects + self._conductor.open(
            self._voice.peers[self._conductor.me],
            f"{STRAGGLER_REQUEST}{'-'.join(leavers)}-{step}",
            kind="scale_in",
            joiners=(),
            leavers=leavers,
            now=now,
        )

    # -- shares ----------------------------------------------------------------------------

    def _weigh(self, generation: Generation, event: StepCommitted) -> list[Effect]:
        """Have the records announce the next weight that is not as it should be, if any."""
        wanted = self._wanted(event.weights) if self._settings.stragglers == "rebalance" else {}
        announced = Weighing.unpack(self._conductor.weighing)
        workers = generation.workers()
        if announced.generation == generation.number:
            worker = workers[announced.rank]
            if event.weights.get(worker, FULL) != announced.weight:
                return []  # on its way
        weighing, part, effects = 0, 0.0, list[Effect]()
        for rank, worker in enumerate(workers):
            has, wants = event.weights.get(worker, FULL), wanted.get(worker, FULL)
            if has == wants or (wants != FULL and abs(has - wants) <= _TOLERANCE):
                continue
            part = wants / FULL
            weighing = Weighing(generation=generation.number, rank=rank, weight=wants).pack()
            break
        before, self._weigh_at = self._conductor.weighing, self._weigh_at or 0
        if weighing == before:
            return []
        first = bool(wanted) and not event.weights
        if weighing and not (before or first) and event.step < self._weigh_at:
            # What the last change has brought shows only after so many steps.
            return []
        if weighing:
            self._weigh_at = event.step + 2 * self._settings.straggler_steps
            effects += self._voice.tell("straggler.weighed", worker=worker, share=round(part, 2))
        self._conductor.weighing = weighing
        return [*effects, self._conductor.word()]

    def _wanted(self, present: Mapping[WorkerId, int]) -> Mapping[WorkerId, int]:
        """As much as a straggler does in the time in which the median does a full share."""
        return {
            # A new leader has not seen yet how slow it is: then as it was.
            worker: min(FULL, max(_LEAST, round(FULL / times))) if times else present[worker]
            for worker, times in self._judge.slow.items()
            if times or worker in present
        }

    # -- telling ---------------------------------------------------------------------------

    def shown(self, status: Status) -> Status:
        """With who is slow, and how slow."""
        slow = self._judge.slow
        workers = tuple(
            replace(worker, slowness=self._judge.ratio(worker.id), straggler=worker.id in slow)
            for worker in status.workers
        )
        return replace(status, workers=workers, stragglers=self._settings.stragglers)
