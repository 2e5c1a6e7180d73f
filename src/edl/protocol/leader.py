"""Switchboard of one job: event -> the right room below -> effects.

Owns: who may ask for what, how the job begins and ends, and the hand-over to the next leader;
`conductor.py` beneath conducts the adjustment in flight. Holds: one adjustment at a time, and one
final answer per request id.
"""

from __future__ import annotations

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Phase
from edl.protocol.conductor import GENERATION_KEY, Conductor
from edl.protocol.effects import Dismiss, Effect, MayGo, Send, StoreSwap
from edl.protocol.events import StepCommitted, Swapped
from edl.protocol.founding import Founding
from edl.protocol.handover import open_switch, reopened
from edl.protocol.liveness import Liveness
from edl.protocol.record import STOP
from edl.protocol.recovery import Recovery
from edl.protocol.requests import choose_leavers, scale_out_fault
from edl.protocol.topology import Generation
from edl.protocol.voice import Voice
from edl.types import Member, WorkerId

__all__ = ["GENERATION_KEY", "STATE_KEY", "Leader"]

STATE_KEY = "state"


class Leader:
    """The acting leader's machine. Lives inside a Node, beside that worker's own machine."""

    def __init__(
        self, *, me: WorkerId, token: int, settings: Settings, founders: int, peer: int
    ) -> None:
        self.me = me
        self.settings = settings
        self.voice = Voice()
        self.voice.peers[me] = peer
        self.founding = Founding(leader=me, founders=founders, token=token)
        self.conductor = Conductor(me=me, token=token, settings=settings, voice=self.voice)
        self.recovery = Recovery(me=me, conductor=self.conductor, voice=self.voice)
        self.liveness = Liveness(settings.silence_s)
        self.over = False

    @property
    def token(self) -> int:
        return self.conductor.token

    # -- what is heard ---------------------------------------------------------------------

    def on_message(self, peer: int, message: m.Message, now: float) -> list[Effect]:
        match message:
            case m.Register():
                return self.on_register(peer, message, now)
            case m.Hail():
                return self.on_hail(peer, message, now)
            case m.Ping(worker=worker):
                answer = m.Pong(generation=message.generation, worker=self.me)
                return [Send(peer=peer, message=answer)]
            case m.Pong(worker=worker):
                self.liveness.heard(worker, now)
            case m.Stuck():
                return [] if self.over else self.recovery.on_stuck(message, now)
            case m.Ready():
                return self.on_ready(message, now)
            case m.RendezvousKey():
                return self.on_rendezvous_key(message)
            case m.GroupBuilt():
                return self.on_group_built(message, now)
            case m.GroupFailed(generation=number) if self.recovery.makes(number):
                return self.recovery.on_group_failed(message, now)
            case m.GroupFailed(generation=number, worker=worker, why=why):
                told = f"{worker} could not build the group: {why}"
                if self.conductor.current(number):
                    return self.conductor.undo(told, now)
                if not self._founded():
                    # There is no job yet to go back to: whoever started it must hear of it.
                    return [Dismiss(why=told, failed=True)]
            case m.Switched() if not self._leaves():
                effects = self.recovery.on_switched(message, now)
                return [*effects, *self.conductor.on_switched(message, now)]
            case m.Leaving(worker=worker):
                self.voice.peers.pop(worker, None)
                self.recovery.departed.add(worker)
            case m.ProcessEnded(worker=worker, why=why):
                return self.on_worker_gone(worker, why, now)
            case m.ScaleOut():
                return self.on_scale_out(peer, message, now)
            case m.ScaleIn():
                return self.on_scale_in(peer, message, now)
            case m.StopJob():
                return self.on_stop(peer, message, now)
            case m.AskStatus(request_id=request_id):
                return [Send(peer=peer, message=self.status(request_id, now))]
            case m.Subscribe(request_id=request_id, since=since):
                return self.voice.subscribe(peer, request_id, since)
        return []

    def on_peer_closed(self, peer: int, why: str, now: float) -> list[Effect]:
        worker = self.voice.on_closed(peer)
        if worker is None:
            return []
        told = f"its connection closed ({why})"
        if self._counts_on(worker):
            return self.recovery.on_closed(worker, told, now)
        return self.on_worker_gone(worker, told, now)

    def on_worker_gone(self, worker: WorkerId, why: str, now: float) -> list[Effect]:
        """Before the switch a joiner's death costs the job nothing: the adjustment is undone."""
        if self._counts_on(worker):
            return self.recovery.on_lost(worker, why, now)
        adjustment = self.conductor.adjustment
        if adjustment is None or worker not in adjustment.expected:
            return []
        return self.conductor.undo(f"{worker} went away: {why}", now)

    def _counts_on(self, worker: WorkerId) -> bool:
        """Whether training cannot go on without this worker, as things stand."""
        generation = self.conductor.generation
        if self.over or generation is None or worker in self.recovery.departed:
            return False
        return worker in generation

    def on_hail(self, peer: int, message: m.Hail, now: float) -> list[Effect]:
        """A worker of the job that this leader had no connection to."""
        worker, generation = message.worker, self.conductor.generation
        adjustment = self.conductor.adjustment
        known = generation is not None and worker in generation
        touched = adjustment is not None and worker in adjustment.touched()
        if generation is not None and not known and not touched and not self.over:
            why = "the job went on without this worker, which it had lost"
            return [Send(peer=peer, message=m.Out(generation=generation.number, why=why))]
        self.voice.peers[worker] = peer
        self.recovery.on_heard(worker)
        return [
            *self.recovery.catch_up(worker, message.generation),
            *self.conductor.catch_up(worker),
            *self.hand_over(now, to=worker),
        ]

    # -- workers arrive --------------------------------------------------------------------

    def on_register(self, peer: int, message: m.Register, now: float) -> list[Effect]:
        worker, adjustment = message.member.worker, self.conductor.adjustment
        generation, first = self.conductor.generation, self.founding.generation
        if generation is None and not message.request_id:
            self.voice.peers[worker] = peer
            self.founding.on_registered(message.member)
            told = self.voice.tell("worker.registered", worker=worker, pid=message.member.pid)
            return [*told, *(self.voice.brief(worker, first, self.founding.keys) if first else [])]
        if self._returns(message):
            self.voice.peers[worker] = peer
            began = generation is not None and generation.founding
            word = m.Founded(generation=generation.number if generation else 0)
            return [
                *(self.voice.to([worker], word) if began else []),
                *self.conductor.catch_up(worker),
            ]
        if not self._expects(message):
            reason = "the job is over" if self.over else f"{worker} is not expected (any more)"
            answer = m.Rejected(request_id=message.request_id, reason=reason, finished=self.over)
            return [Send(peer=peer, message=answer)]
        assert adjustment is not None
        self.voice.peers[worker] = peer
        adjustment.on_registered(message.member, process_start_s=message.process_start_s, now=now)
        told = self.voice.tell(
            "worker.registered", message.request_id, worker=worker, pid=message.member.pid
        )
        return [*told, *self.conductor.when_gathered(now)]

    def on_ready(self, message: m.Ready, now: float) -> list[Effect]:
        if not self._founded() and message.worker in self.founding.arrived:
            first = self.founding.on_ready(message.worker, number=1)
            if first is None:
                return []
            self.conductor.last_number = first.number
            return self.voice.to(first.workers(), m.Prepare(generation=first))
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

    def _expects(self, message: m.Register) -> bool:
        adjustment = self.conductor.adjustment
        return (
            adjustment is not None
            and message.request_id == adjustment.request_id
            and message.member.worker in adjustment.expected
            and adjustment.phase is Phase.GATHERING
        )

    # -- requests --------------------------------------------------------------------------

    def on_scale_out(self, peer: int, message: m.ScaleOut, now: float) -> list[Effect]:
        gate = self._gate(peer, message.request_id, now)
        generation = self.conductor.generation
        if gate is not None or generation is None:
            return gate or []
        reason = scale_out_fault(generation, message, self.settings)
        if reason:
            return self.voice.final(m.Refusal(request_id=message.request_id, reason=reason), peer)
        return self.conductor.open(
            peer,
            message.request_id,
            kind="scale_out",
            joiners=message.joiners,
            leavers=(),
            now=now,
        )

    def on_scale_in(self, peer: int, message: m.ScaleIn, now: float) -> list[Effect]:
        gate = self._gate(peer, message.request_id, now)
        generation = self.conductor.generation
        if gate is not None or generation is None:
            return gate or []
        leavers, reason = choose_leavers(generation, message, self.settings)
        if reason:
            return self.voice.final(m.Refusal(request_id=message.request_id, reason=reason), peer)
        return self.conductor.open(
            peer, message.request_id, kind="scale_in", joiners=(), leavers=leavers, now=now
        )

    def on_stop(self, peer: int, message: m.StopJob, now: float) -> list[Effect]:
        if self.over:
            answer = m.Finished(request_id=message.request_id, reason="the job is over")
            return self.voice.final(answer, peer)
        if not self._founded() or self._leaves():
            reason = "the leader changes" if self._leaves() else "the job is starting"
            return self.voice.retry(message.request_id, peer, reason, self.settings.retry_after_s)
        self.conductor.stopping = message.why
        effects = self.conductor.undo("the job is stopping", now)
        effects += self.voice.accept(message.request_id, peer)
        effects += self.voice.tell("job.stopping", message.request_id, why=message.why)
        return [*effects, self.conductor.word()]

    def _gate(self, peer: int, request_id: str, now: float) -> list[Effect] | None:
        """The answer to a request that cannot open an adjustment now; None: it can."""
        known = self.voice.requests.answered(request_id)
        if known is not None:
            return [Send(peer=peer, message=known)]
        adjustment = self.conductor.adjustment
        if adjustment is not None and adjustment.request_id == request_id:
            return self.voice.accept(request_id, peer)
        if self.over or self.conductor.stopping:
            reason = self.conductor.stopping or "the job is over"
            return self.voice.final(m.Finished(request_id=request_id, reason=reason), peer)
        reason = ""
        if adjustment is not None:
            reason = (
                f"already adjusting (request {adjustment.request_id}, "
                f"{adjustment.phase.value}, for {now - adjustment.opened:.1f} s)"
            )
        elif not self._founded():
            reason = "the job is starting"
        elif self.recovery.active:
            reason = f"recovering from a failure ({self.recovery.stage.value})"
        if reason:
            return self.voice.retry(request_id, peer, reason, self.settings.retry_after_s)
        return None

    # -- the end, and the next leader ------------------------------------------------------

    def on_job_over(self, now: float) -> list[Effect]:
        """Everybody committed the last step. Pending joiners exit, requesters hear Finished."""
        if self.over:
            return []
        self.over = True
        effects: list[Effect] = []
        stopping, adjustment = self.conductor.stopping, self.conductor.adjustment
        reason = f"the job was stopped ({stopping})" if stopping else "the job is over"
        if adjustment is not None and adjustment.phase is Phase.SWITCHING:
            # The closing record was made in the new generation: everybody is in it.
            effects += self.conductor.completed(now)
        elif adjustment is not None:
            adjustment.why = reason
            effects += self.conductor.undone(now, finished=True)
        for request_id in self.voice.requests.open_ids():
            effects += self.voice.final(m.Finished(request_id=request_id, reason=reason))
        effects += self.voice.tell("job.stopped" if stopping else "job.finished")
        value = b"stopped" if stopping else b"finished"
        swap = StoreSwap(purpose="state", key=STATE_KEY, expected=0, value=value, leased=False)
        return [*effects, swap]

    def on_tick(self, now: float) -> list[Effect]:
        generation = self.conductor.generation
        effects = [*self.conductor.on_tick(now), *self.recovery.on_tick(now)]
        if generation is None or self.over:
            return effects
        others = [w for w in generation.workers() if w != self.me and self._counts_on(w)]
        ping, silent = self.liveness.look(others, now)
        effects += self.voice.to(ping, m.Ping(generation=generation.number, worker=self.me))
        for worker, seconds in silent.items():
            effects += self.recovery.on_lost(worker, f"silent for {seconds:.1f} s", now)
        return effects

    def inherit(
        self, generation: Generation, *, revision: int, last: int, lost: WorkerId | None, now: float
    ) -> list[Effect]:
        """Lead a job whose leader is gone without a word: what the store says is the truth."""
        conductor = self.conductor
        conductor.enter(generation)
        conductor.generation_revision = revision
        conductor.last_number = max(last, generation.number)
        self.voice.chronicle.orphaned = True
        told = self.voice.tell("leader.changed", leader=self.me)
        if lost is None or lost == self.me or lost not in generation:
            return [*told, *self.recovery.begin(now)]
        return [*told, *self.recovery.on_lost(lost, "it led, and is gone", now)]

    def handover(self, now: float) -> m.Handover:
        """What the successor needs; the open switch is its to finish."""
        conductor, chronicle = self.conductor, self.voice.chronicle
        assert conductor.generation is not None
        return m.Handover(
            generation=conductor.generation,
            leader_revision=conductor.token,
            generation_revision=conductor.generation_revision,
            last_number=conductor.last_number,
            seq=chronicle.seq,
            stopping=conductor.stopping,
            answers=self.voice.requests.memory(),
            records=tuple(chronicle.records),
            recent=chronicle.since(chronicle.seq - 200),
            open_switch=open_switch(conductor.adjustment, now),
        )

    def take_over(self, past: m.Handover, now: float) -> list[Effect]:
        """Become what the old leader was."""
        conductor = self.conductor
        conductor.enter(past.generation)
        conductor.generation_revision = past.generation_revision
        conductor.last_number = past.last_number
        conductor.stopping = past.stopping
        self.voice.chronicle.restore(past.seq, past.recent, past.records)
        self.voice.requests.restore(past.answers, past.records)
        conductor.adjustment = reopened(past, self.settings, now)
        if past.open_switch is not None:
            self.voice.step = conductor.pace.step = past.open_switch.record.step
        return [conductor.word(), *self.voice.tell("leader.changed", leader=self.me)]

    # -- the training thread, and the store -------------------------------------------------

    def on_rendezvous_key(self, message: m.RendezvousKey) -> list[Effect]:
        first = self.founding.generation
        if self.recovery.makes(message.generation):
            return self.recovery.on_rendezvous_key(message)
        if self._founded() or first is None:
            return self.conductor.on_rendezvous_key(message)
        return self.voice.relay(message, self.founding.keys, first)

    def on_group_built(self, message: m.GroupBuilt, now: float) -> list[Effect]:
        first = self.founding.generation
        if self.recovery.makes(message.generation):
            return self.recovery.on_group_built(message)
        if self._founded() or first is None:
            return self.conductor.on_group_built(message, now)
        return [self.conductor.record(first)] if self.founding.on_built(message.worker) else []

    def on_swapped(self, event: Swapped, now: float) -> list[Effect]:
        """The store's answer about a generation, or about the end of the job."""
        if event.purpose == "state":
            return [MayGo()]
        if event.done:
            self.conductor.generation_revision = event.revision
        if self._founded():
            effects = self.conductor.on_swapped(event, now)
            effects += self.recovery.on_swapped(event, now)
            generation = self.conductor.generation
            return [*effects, *self.hand_over(now, to=generation.leader if generation else self.me)]
        first = self.founding.generation
        if not event.done or first is None:
            return self.voice.tell("job.contested")
        self.conductor.enter(first)
        return [
            *self.voice.to(first.workers(), m.Founded(generation=first.number)),
            *self.voice.tell("job.started", workers=first.size, leader=self.me),
        ]

    def on_step_committed(self, event: StepCommitted, now: float) -> list[Effect]:
        """The leader's own training thread has committed a step."""
        effects = self.conductor.on_step_committed(event, now)
        return effects or self._preempted(event, now)

    def on_switch_decided(self, number: int, step: int, now: float) -> list[Effect]:
        """The committed records made the switch happen; a leader that leaves hands over."""
        if number == STOP:
            return self.on_job_over(now)
        effects = self.conductor.on_switch_decided(number, step, now)
        generation = self.conductor.generation
        return [*effects, *self.hand_over(now, to=generation.leader if generation else self.me)]

    def hand_over(self, now: float, *, to: WorkerId) -> list[Effect]:
        """To the successor of a leader that leaves; again whenever it may have been lost."""
        generation = self.conductor.generation
        if generation is None or not self._leaves() or to != generation.leader:
            return []
        return self.voice.to([to], self.handover(now))

    # -- small things ----------------------------------------------------------------------

    def status(self, request_id: str, now: float) -> m.Status:
        conductor, adjustment = self.conductor, self.conductor.adjustment
        state = "training" if self._founded() else "starting"
        state = "recovering" if self.recovery.active else state
        state = "finished" if self.over else "stopping" if conductor.stopping else state
        arriving: list[Member] = list(adjustment.arrived.values()) if adjustment else []
        if not self._founded():
            arriving += self.founding.arrived.values()
        return conductor.pace.status(
            request_id=request_id,
            state=state,
            leader=self.me,
            generation=conductor.generation,
            arriving=arriving,
            adjustment=adjustment.status(now) if adjustment else None,
            adjustments=len(self.voice.chronicle.records),
        )

    def _founded(self) -> bool:
        return self.conductor.generation is not None

    def _leaves(self) -> bool:
        """The switch left this leader out: what is still open is its successor's."""
        generation = self.conductor.generation
        return generation is not None and self.me not in generation

    def _preempted(self, event: StepCommitted, now: float) -> list[Effect]:
        """A record may say that its worker was told to go (SIGTERM): scale it in."""
        conductor, generation = self.conductor, self.conductor.generation
        if conductor.adjustment or conductor.stopping or self.over or generation is None:
            return []
        workers = generation.workers()
        if len(event.records) != len(workers):
            return []
        asked = tuple(w for w, record in zip(workers, event.records, strict=True) if record.leaving)
        if not asked:
            return []
        if len(asked) == len(workers):
            conductor.stopping = "every worker was told to leave"
            told = self.voice.tell("job.stopping", why=conductor.stopping)
            return [*told, conductor.word()]
        request_id = f"leave-{'-'.join(asked)}-{generation.number}"
        local = self.voice.peers[self.me]
        return conductor.open(
            local, request_id, kind="scale_in", joiners=(), leavers=asked, now=now
        )
