"""Workers come to the leader: founders, newcomers, and members it was not connected to.

Owns: the founding, and newcomers whose request this leader has not heard of yet. Holds: nobody is
let in who is not expected, and whoever lost its connection hears again what it may have missed.
"""

from __future__ import annotations

import math

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import REPORT_S, Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Dismiss, Effect, Send
from edl.protocol.founding import Founding
from edl.protocol.recovery import Recovery
from edl.protocol.requests import name_fault
from edl.protocol.topology import Generation
from edl.protocol.unreached import UNNAMED, Unreached, unreached_text
from edl.protocol.voice import Voice
from edl.types import WorkerId

__all__ = ["Arrivals"]


class Arrivals:
    """Who may come in."""

    def __init__(
        self,
        *,
        me: WorkerId,
        settings: Settings,
        founding: Founding,
        conductor: Conductor,
        recovery: Recovery,
        voice: Voice,
    ) -> None:
        self.me = me
        self.settings = settings
        self.founding = founding
        self.conductor = conductor
        self.recovery = recovery
        self.voice = voice
        self.waits = False  # took over without a word: requests may be asked again
        self.ended: dict[WorkerId, str] = {}  # founders, while the store founds the job
        # Newcomers that ended before they were asked for here; with the last leader, perhaps.
        self.gone: dict[WorkerId, str] = {}
        self._parked: dict[WorkerId, tuple[int, m.Register, float]] = {}
        self._readied: dict[WorkerId, m.Ready] = {}
        self._gather_by: float | None = None
        self._build_by = math.inf
        self._rebuild_at = math.inf
        self._builds = 0
        self._unreached = Unreached(limit=settings.unreached_builds)
        self.left_out: dict[WorkerId, str] = {}  # founders that the others cannot connect to

    # -- a new worker ----------------------------------------------------------------------

    def on_register(self, peer: int, message: m.Register, now: float) -> list[Effect]:
        worker, adjustment = message.member.worker, self.conductor.adjustment
        generation, first = self.conductor.generation, self.founding.generation
        fault = name_fault(worker, message.member.slot)
        if fault:
            rejected = m.Rejected(request_id=message.request_id, reason=fault, finished=False)
            return [Send(peer=peer, message=rejected)]
        if worker in self.left_out:
            out = m.Out(generation=self.conductor.last_number, why=self.left_out[worker])
            return [Send(peer=peer, message=out)]
        if generation is None and not message.request_id:
            self.voice.attach(worker, peer)
            self.conductor.last_number = max(self.conductor.last_number, message.last)
            self.founding.on_registered(message.member)
            told = self.voice.tell("worker.registered", worker=worker, pid=message.member.pid)
            return [*told, *(self.voice.brief(worker, first, self.founding.keys) if first else [])]
        if generation is not None and self._returns(message):
            return self._back(peer, message, generation, now)
        if not self._expects(message):
            return self._unexpected(peer, message, now)
        assert adjustment is not None
        self.voice.attach(worker, peer)
        self.conductor.last_number = max(self.conductor.last_number, message.last)
        adjustment.on_registered(message.member, process_start_s=message.process_start_s, now=now)
        told = self.voice.tell(
            "worker.registered", message.request_id, worker=worker, pid=message.member.pid
        )
        return [*told, *self.conductor.when_gathered(now)]

    def on_ready(self, message: m.Ready, now: float) -> list[Effect]:
        if self.conductor.generation is None and message.worker in self.founding.arrived:
            number = self.conductor.last_number + 1
            first = self.founding.on_ready(message.worker, number=number)
            if first is None:
                return []
            return self._build_first(first, now)
        if message.worker in self._parked:
            self._readied[message.worker] = message
            return []
        adjustment = self.conductor.adjustment
        if adjustment is None or message.request_id != adjustment.request_id:
            return []
        adjustment.on_ready(message.worker, context_s=message.context_s)
        told = self.voice.tell(
            "worker.ready",
            message.request_id,
            worker=message.worker,
            context_s=message.context_s,
        )
        return [*told, *self.conductor.when_gathered(now)]

    def _returns(self, message: m.Register) -> bool:
        """It was here before, lost its connection, and does not know yet that it has entered."""
        adjustment, generation = self.conductor.adjustment, self.conductor.generation
        worker = message.member.worker
        if generation is not None and worker in generation:
            return True
        here = adjustment is not None and adjustment.request_id == message.request_id
        return here and adjustment is not None and worker in adjustment.arrived

    def _back(
        self, peer: int, message: m.Register, generation: Generation, now: float
    ) -> list[Effect]:
        worker = message.member.worker
        self.voice.attach(worker, peer)
        effects = self.recovery.use_higher(worker, message.last, now)
        if worker in generation:
            effects += self.recovery.on_heard(worker, now)
        joins = worker in generation.newcomers and not generation.founding
        if joins and self.recovery.busy and worker not in self.conductor.strangers():
            # Recorded, but without a step: no survivor.
            self.conductor.turn_away(worker)
            return [*effects, *self.recovery.begin(now)]
        word = m.Founded(generation=generation.number)
        began = generation.founding and worker in generation and not self.recovery.busy
        return [
            *effects,
            *(self.voice.to([worker], word) if began else []),
            *self.recovery.catch_up(worker, 0),
            *self.conductor.catch_up(worker),
        ]

    def _expects(self, message: m.Register) -> bool:
        adjustment = self.conductor.adjustment
        return (
            adjustment is not None
            and message.request_id == adjustment.request_id
            and message.member.worker in adjustment.expected
            and adjustment.phase is Phase.GATHERING
        )

    # -- newcomers whose request is not known (any more) -------------------------------------

    def _unexpected(self, peer: int, message: m.Register, now: float) -> list[Effect]:
        adjustment, worker = self.conductor.adjustment, message.member.worker
        if worker in self.recovery.lost:
            # It was in the job without knowing it, and was cut off too long.
            why = "the job went on without this worker"
            return [Send(peer=peer, message=m.Out(generation=self.voice.generation, why=why))]
        answered = self.voice.requests.answered(message.request_id)
        why = answered.reason if isinstance(answered, m.Undone) else ""
        if adjustment is not None and adjustment.request_id == message.request_id:
            why = adjustment.why if worker in adjustment.expected else ""
        if why:
            # It is undone, which is no fault of a worker that comes too late.
            word = m.Undo(generation=0, request_id=message.request_id, why=why, finished=False)
            return [Send(peer=peer, message=word)]
        known = answered is not None
        if self.waits and not known and not self.conductor.over:
            # The leader that expected it is gone; its requester will ask this one.
            self._parked[worker] = (peer, message, now + self.settings.register_timeout_s)
            return []
        return [self._turn_away(peer, message)]

    def _turn_away(self, peer: int, message: m.Register) -> Effect:
        worker = message.member.worker
        conductor = self.conductor
        ends = conductor.over or bool(conductor.stopping)
        reason = "the job is over" if ends else f"{worker} is not expected (any more)"
        answer = m.Rejected(request_id=message.request_id, reason=reason, finished=ends)
        return Send(peer=peer, message=answer)

    def on_asked(self, message: m.ScaleOut | m.Migrate, now: float) -> list[Effect]:
        """If an adjustment has begun, those of its newcomers that wait already come in.

        If not, somebody wants these: whoever was told to retry asks again, and they wait for it.
        """
        effects: list[Effect] = []
        until = now + self.settings.register_timeout_s
        for joiner in message.joiners:
            if joiner.worker in self._parked:
                peer, hello, _ = self._parked[joiner.worker]
                self._parked[joiner.worker] = (peer, hello, until)
        adjustment = self.conductor.adjustment
        for worker in sorted(adjustment.expected if adjustment else ()):
            if worker in self._parked:
                peer, hello, _ = self._parked.pop(worker)
                effects += self.on_register(peer, hello, now)
                ready = self._readied.pop(worker, None)
                effects += self.on_ready(ready, now) if ready is not None else []
        adjustment = self.conductor.adjustment
        gone = [worker for worker in self.gone if adjustment and worker in adjustment.expected]
        if gone:
            effects += self.conductor.undo(f"{gone[0]} went away: {self.gone[gone[0]]}", now)
        return effects

    def on_closed(self, peer: int) -> None:
        self._parked = {w: kept for w, kept in self._parked.items() if kept[0] != peer}

    def on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for worker, (peer, message, until) in list(self._parked.items()):
            if now >= until or self.conductor.over:
                del self._parked[worker]
                effects.append(self._turn_away(peer, message))
        if self.conductor.generation is None and not self.conductor.over:
            effects += self._await_founders(now)
        return effects

    # -- founders --------------------------------------------------------------------------

    def _await_founders(self, now: float) -> list[Effect]:
        """A job that cannot begin fails and says why: nobody has trained, so nothing is lost."""
        if self.conductor.asked is not None:
            return []  # every founder has built the group, and the store is recording it
        reported = self._unreached.reported
        if reported and (now >= self._rebuild_at or reported.issuperset(self.founding.unbuilt)):
            return self._rebuild_first(now)
        if now >= self._build_by and self.founding.unbuilt:
            limit = self.settings.patience_s + self.settings.build_timeout_s
            who = ", ".join(self.founding.unbuilt)
            return self.give_up(f"{who} did not build the group within {limit:g} s")
        here = [worker for worker in self.founding.arrived if worker in self.voice.peers]
        if len(here) >= self.founding.founders or self._gather_by is None:
            self._gather_by = now + self.settings.patience_s
            return []
        if now < self._gather_by:
            return []
        limit = self.settings.patience_s
        many = self.founding.founders
        return self.give_up(f"{len(here)} of {many} workers are here after {limit:g} s")

    def _build_first(self, first: Generation, now: float) -> list[Effect]:
        self.conductor.last_number = first.number
        self._builds += 1
        self._build_by = now + self.settings.patience_s + self.settings.build_timeout_s
        return self.voice.to(first.workers(), m.Prepare(generation=first))

    def on_first_failed(self, message: m.GroupFailed, now: float) -> list[Effect]:
        """The founding group was not built: wait for the others' reports, then build again."""
        first = self.founding.generation
        if first is None or first.number != message.generation or self.conductor.asked is not None:
            return []
        limit, reported = self.settings.unreached_builds, self._unreached.reported
        effects: list[Effect] = []
        if not reported:
            self._rebuild_at = now + REPORT_S
            effects = self.voice.tell("founding.again", worker=message.worker, why=message.why)
        self._unreached.on_failed(first, message)
        if self._builds >= max(UNNAMED, first.size) * limit:
            # Not the same pair each time, yet it never succeeds.
            pairs = unreached_text(message.worker, message.unreached, first)
            why = f"{message.worker} could not build the group: {message.why}"
            return self.give_up(f"{why} ({pairs})" if pairs else why)
        return effects

    def _rebuild_first(self, now: float) -> list[Effect]:
        """Build the founding group again, without a founder that others cannot connect to."""
        in_time = self._rebuild_at - REPORT_S < self._build_by - self.settings.patience_s
        self._rebuild_at = math.inf
        first, number = self.founding.generation, self.conductor.last_number + 1
        assert first is not None
        silent = set(self.founding.unbuilt) - self._unreached.reported
        self._unreached.end_build(first, () if in_time else silent)
        found = self._unreached.leave_out(first, leader=self.me, gone=())
        if found is None:
            return self._build_first(self.founding.draw_again(number=number), now)
        least = max(1, self.settings.min_workers)
        if found.worker == self.me or first.size <= least:
            return self.give_up(f"{found.why}; the job could not begin with {first.size - 1}")
        self.left_out[found.worker] = found.why
        self._builds = 0
        effects = self.voice.tell("worker.lost", worker=found.worker, why=found.why)
        out = m.Out(generation=first.number, why=found.why)
        effects += self.voice.to([found.worker], out)
        self.voice.peers.pop(found.worker, None)
        next_first = self.founding.draw_again(number=number, without=found.worker)
        return [*effects, *self._build_first(next_first, now)]

    def on_founder_ended(self, worker: WorkerId, why: str) -> list[Effect]:
        """Whether there is a job to go on without it may be in the store's hands."""
        if worker in self.left_out:
            return []
        if self.conductor.asked is None:
            return self.give_up(f"{worker} ended before the job began: {why}")
        self.ended[worker] = why
        return []

    def give_up(self, why: str) -> list[Effect]:
        """There is no job yet to go back to: whoever started it must hear of it."""
        word = m.Rejected(request_id="", reason=why, finished=False)
        others = [worker for worker in self.founding.arrived if worker != self.me]
        return [*self.voice.to(others, word), Dismiss(why=why, failed=True)]

    # -- a member --------------------------------------------------------------------------

    def on_hail(self, peer: int, message: m.Hail, now: float) -> list[Effect]:
        """A worker of the job that this leader had no connection to."""
        worker, generation = message.worker, self.conductor.generation
        adjustment = self.conductor.adjustment
        known = generation is not None and worker in generation
        touched = adjustment is not None and worker in adjustment.touched()
        touched = touched or worker in self.recovery.owing
        if generation is not None and not known and not touched and not self.conductor.over:
            why = "the job went on without this worker, which it had lost"
            return [Send(peer=peer, message=m.Out(generation=generation.number, why=why))]
        self.voice.attach(worker, peer)
        effects = self.recovery.use_higher(worker, message.last, now)
        if known:
            effects += self.recovery.on_heard(worker, now)
        return [
            *effects,
            *self.recovery.catch_up(worker, message.generation),
            *self.conductor.catch_up(worker),
        ]
