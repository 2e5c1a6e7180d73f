"""Switchboard of one job: event -> the right room below -> effects.

Owns: who may ask for what, how the job begins and ends, and the office itself, taken with or
without a word of the last leader and handed to the next. Beneath: `arrivals.py` lets workers in,
`conductor.py` conducts the adjustment in flight, `recovery.py` replaces what is lost. Holds: one
adjustment at a time, and one final answer per request id.
"""

from __future__ import annotations

from dataclasses import replace

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Phase
from edl.protocol.arrivals import Arrivals
from edl.protocol.closing import Closing
from edl.protocol.conductor import GENERATION_KEY, Conductor
from edl.protocol.effects import Dismiss, Effect, Send, StoreSwap
from edl.protocol.events import ReplicasDiffer, StepCommitted, Swapped
from edl.protocol.founding import Founding
from edl.protocol.handover import handed_over, reopened
from edl.protocol.liveness import Liveness, Quiet
from edl.protocol.mitigation import Mitigation
from edl.protocol.parting import Parting
from edl.protocol.reception import Reception
from edl.protocol.record import STOP
from edl.protocol.recorded import Recorded, read_recorded
from edl.protocol.recovery import Recovery
from edl.protocol.rendezvous import Rendezvous
from edl.protocol.standing import Knows
from edl.protocol.unreached import unreached_text
from edl.protocol.voice import Voice
from edl.types import Member, WorkerId

__all__ = ["GENERATION_KEY", "STATE_KEY", "Leader", "tell_end"]

STATE_KEY = "state"
_AS_RECORDED = Knows(entered=True)


def tell_end(value: bytes) -> StoreSwap:
    """The store's word on the job as a whole; the first one counts."""
    return StoreSwap(purpose="state", key=STATE_KEY, expected=0, value=value, leased=False)


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
        self.parting = Parting(conductor=self.conductor, recovery=self.recovery, voice=self.voice)
        self.arrivals = Arrivals(
            me=me,
            settings=settings,
            founding=self.founding,
            conductor=self.conductor,
            recovery=self.recovery,
            voice=self.voice,
        )
        self.liveness = Liveness(settings.silence_s)
        self.reception = Reception(
            settings=settings, conductor=self.conductor, recovery=self.recovery, voice=self.voice
        )
        self.mitigation = Mitigation(
            settings=settings, conductor=self.conductor, recovery=self.recovery, voice=self.voice
        )
        self.closing = Closing(self.voice.chronicle)
        self._passed = 0  # the generation whose leader was handed this office
        self._quiet: dict[WorkerId, Quiet] = {}  # reported as unresponsive

    @property
    def token(self) -> int:
        return self.conductor.token

    @property
    def over(self) -> bool:
        return self.conductor.over

    # -- what is heard ---------------------------------------------------------------------

    def on_message(self, peer: int, message: m.Message, now: float) -> list[Effect]:
        return self._pass_on(self._on_message(peer, message, now), now)

    def _on_message(self, peer: int, message: m.Message, now: float) -> list[Effect]:
        match message:
            case m.Register(member=member):
                self.liveness.heard(member.worker)
                return self.arrivals.on_register(peer, message, now)
            case m.Hail(worker=worker):
                self.liveness.heard(worker)
                effects = self.arrivals.on_hail(peer, message, now)
                return [*effects, *self.hand_over(now, to=message.worker)]
            case m.Ping(worker=worker):
                answer = m.Pong(generation=message.generation, worker=self.me)
                return [Send(peer=peer, message=answer)]
            case m.Pong(worker=worker):
                self.liveness.heard(worker)
            case m.Alive(worker=worker):
                self.liveness.vouch(worker, now)
                self.recovery.on_vouched(worker, now)
            case m.Stuck():
                return self.on_stuck(message, now) or self._dismiss_if_lost(peer, message)
            case m.Ready():
                return self.arrivals.on_ready(message, now)
            case m.RendezvousKey() | m.RendezvousEntry():
                return self.on_rendezvous(message)
            case m.GroupBuilt():
                return self.on_group_built(message, now)
            case m.GroupFailed(generation=number) if self.recovery.makes(number):
                return self.recovery.on_group_failed(message, now)
            case m.GroupFailed():
                return self._on_group_failed(message, now)
            case m.Switched() if not self.conductor.leaves:
                effects = self.recovery.on_switched(message, now)
                effects += self.conductor.on_switched(message, now)
                self.parting.on_switched()
                return effects
            case m.Leaving():
                return self.parting.on_leaving(message, now)
            case m.ProcessEnded(worker=worker, why=why):
                return self.on_worker_gone(worker, why, now, ended=True)
            case m.ScaleOut():
                effects = self.reception.on_scale_out(peer, message, now)
                return [*effects, *self.arrivals.on_asked(message, now)]
            case m.ScaleIn() | m.Withdraw():
                return self.reception.on_lessening(peer, message, now)
            case m.Migrate():
                effects = self.reception.on_migrate(peer, message, now)
                return [*effects, *self.arrivals.on_asked(message, now)]
            case m.StopJob():
                return self.reception.on_stop(peer, message, now)
            case m.AskStatus(request_id=request_id):
                return [Send(peer=peer, message=self.status(request_id, now))]
            case m.Subscribe(request_id=request_id, since=since):
                return self.voice.subscribe(peer, request_id, since)
        return []

    def on_peer_closed(self, peer: int, why: str, now: float) -> list[Effect]:
        worker = self.voice.on_closed(peer)
        self.arrivals.on_closed(peer)
        if worker is None:
            return []
        told = f"its connection closed ({why})"
        closed = self.voice.close_replaced(worker)
        if self._counts_on(worker):
            return [*closed, *self._pass_on(self.recovery.on_closed(worker, told, now), now)]
        return [*closed, *self.on_worker_gone(worker, told, now)]

    def on_worker_gone(
        self, worker: WorkerId, why: str, now: float, *, ended: bool = False
    ) -> list[Effect]:
        """Before the switch a joiner's death costs the job nothing: the adjustment is undone."""
        if self._counts_on(worker):
            return self.recovery.on_lost(worker, why, now, ended=ended)
        if ended and not self.conductor.founded and not self.over:
            return self.arrivals.on_founder_ended(worker, why)
        adjustment = self.conductor.adjustment
        if adjustment is None or worker not in adjustment.expected:
            if ended:
                self.arrivals.gone[worker] = why
            return []
        return self.conductor.undo(f"{worker} went away: {why}", now)

    def on_stuck(self, message: m.Stuck, now: float) -> list[Effect]:
        """A joiner that broke before the switch is the adjustment's business, no failure."""
        generation = self.conductor.generation
        if self.over or generation is None:
            return []
        if self._passed == generation.number:
            return []  # the successor hears of it too, and the others have turned to it
        if message.worker not in generation and message.generation == generation.number:
            return self.parting.on_stuck(message, now)
        effects = self.recovery.on_stuck(message, now) if message.worker in generation else []
        if message.worker not in generation and self.conductor.current(message.generation):
            self.recovery.keep(message)
            effects = self.conductor.undo(f"{message.worker} broke: {message.why}", now)
        if self._broke_before(message) and not self.recovery.active:
            effects += self.recovery.begin(now)
        return effects

    def _dismiss_if_lost(self, peer: int, message: m.Stuck) -> list[Effect]:
        """One that was frozen may wake after the job went on, with its connection still open."""
        generation = self.conductor.generation
        if generation is None or self.over or self.recovery.busy:
            return []
        if message.worker in generation or message.worker not in self.recovery.lost:
            return []
        why = "the job went on without this worker"
        return [Send(peer=peer, message=m.Out(generation=generation.number, why=why))]

    def _broke_before(self, message: m.Stuck) -> bool:
        """A leaver broke in the generation before, where others may wait for a dead one as well.

        The last leader was a leaver too, and could only carry the switch out.
        """
        adjustment = self.conductor.adjustment
        if adjustment is None or adjustment.phase is not Phase.SWITCHING:
            return False
        return bool(adjustment.waiting) and message.worker in adjustment.leavers

    def _counts_on(self, worker: WorkerId) -> bool:
        """Whether training cannot go on without this worker, as things stand."""
        generation = self.conductor.generation
        if self.over or generation is None or worker in self.recovery.departed:
            return False
        if self.conductor.leaves:
            # The others have turned to the successor already, or will.
            return worker == generation.leader or worker in self.recovery.owing
        return worker in generation or worker in self.recovery.owing

    # -- the end, and the next leader ------------------------------------------------------

    def on_job_over(self, now: float) -> list[Effect]:
        """Everybody committed the last step. Pending joiners exit, requesters hear Finished."""
        if self.over:
            return []
        self.conductor.over = True
        effects: list[Effect] = []
        stopping, adjustment = self.conductor.stopping, self.conductor.adjustment
        reason = f"the job was stopped ({stopping})" if stopping else "the job is over"
        if adjustment is not None and adjustment.phase in (Phase.SWITCHING, Phase.CLOSING):
            # The closing record was made in the new generation: everybody is in it.
            effects += self.conductor.completed(now)
        elif adjustment is not None:
            adjustment.why = reason
            effects += self.conductor.undone(now, finished=True)
        for request_id in self.voice.requests.open_ids():
            effects += self.voice.final(m.Finished(request_id=request_id, reason=reason))
        effects += self.voice.tell("job.stopped" if stopping else "job.finished")
        return [*effects, tell_end(b"stopped" if stopping else b"finished")]

    def on_tick(self, now: float) -> list[Effect]:
        generation = self.conductor.generation
        effects = [*self.conductor.on_tick(now), *self.arrivals.on_tick(now)]
        if generation is None or self.over:
            return [*effects, *self.closing.on_tick(now)]
        effects += self.recovery.on_tick(now)
        ping, silent = self.liveness.look(self.recovery.counted_on(generation), now)
        effects += self.voice.to(ping, m.Ping(generation=generation.number, worker=self.me))
        for worker, seconds in silent.items():
            effects += self.recovery.on_lost(worker, f"no heartbeat for {seconds:.1f} s", now)
        return self._pass_on([*effects, *self._report_quiet(now)], now)

    def _report_quiet(self, now: float) -> list[Effect]:
        """Emit an event when a member stops answering, and when it answers again."""
        generation, effects = self.conductor.generation, list[Effect]()
        counted = set(self.recovery.counted_on(generation)) if generation else set()
        quiet = {w: q for w, q in self.liveness.quiet(now).items() if w in counted}
        for worker, found in quiet.items():
            if worker in self._quiet and self._quiet[worker].runs == found.runs:
                continue
            limit_s = self.settings.silence_s
            why = f"it counts as lost after {limit_s:g} s"
            if found.runs:
                why = "its process is running: its script may hold the GIL"
            effects += self.voice.tell(
                "worker.unresponsive",
                worker=worker,
                why=f"no heartbeat from {worker} for {found.seconds:.1f} s; {why}",
            )
        for worker in self._quiet.keys() - quiet.keys():
            if worker in counted:
                why = f"heartbeats are back after {self._quiet[worker].seconds:.1f} s"
                effects += self.voice.tell("worker.responsive", worker=worker, why=why)
        self._quiet = quiet
        return effects

    # -- the office --------------------------------------------------------------------------

    def inherit(
        self,
        found: Recorded,
        *,
        revision: int,
        last: int,
        knows: Knows,
        lost: WorkerId | None,
        now: float,
    ) -> list[Effect]:
        """Lead a job whose leader is gone without a word: what the store says is the truth.

        Newcomers that nobody has trained with are no survivors.
        """
        if knows.through:
            found = replace(found, generation=found.generation.settled())
        conductor, generation = self.conductor, found.generation
        if self.me not in generation:
            return [Dismiss(why="the job went on without this worker", failed=False)]
        self.arrivals.waits = True
        conductor.adopt(found, revision=revision)
        conductor.past_first = knows.settled
        conductor.last_number = max(conductor.last_number, last)
        if not knows.entered and not generation.founding:
            conductor.turn_away()
        self.voice.chronicle.orphaned = True
        told = self.voice.tell("leader.changed", leader=self.me)
        self.recovery.expect(generation.workers(), now, well=knows.well)
        if lost is None or lost == self.me or lost not in generation:
            return [*told, *self.recovery.begin(now)]
        return [*told, *self.recovery.on_lost(lost, "the leader stopped responding", now)]

    def take_over(self, past: m.Handover, now: float) -> list[Effect]:
        """Become what the old leader was."""
        conductor = self.conductor
        conductor.enter(past.generation)
        conductor.generation_revision = past.generation_revision
        conductor.last_number = past.last_number
        conductor.stopping = past.stopping
        conductor.deeds = list(past.deeds)
        self.voice.chronicle.restore(past.seq, past.recent, past.records)
        self.voice.requests.restore(past.answers, past.records)
        self.voice.requests.remember(past.deeds)
        conductor.adjustment = reopened(past, self.settings, now)
        if past.open_switch is not None:
            conductor.pace.step = past.open_switch.record.step
            self.voice.step = max(self.voice.step, conductor.pace.step)
        self.recovery.expect(past.generation.workers(), now)
        if past.open_switch is not None:
            self.recovery.owing = set(past.open_switch.parting)
            self.recovery.expect(past.open_switch.parting, now)
        effects = [conductor.word(), *self.voice.tell("leader.changed", leader=self.me)]
        # Nobody may have noticed that failure but the old leader, and all may train on.
        return [*effects, *self.recovery.begin(now)] if past.failed else effects

    # -- the training thread, and the store -------------------------------------------------

    def on_rendezvous(self, message: m.RendezvousKey | m.RendezvousEntry) -> list[Effect]:
        first = self.founding.generation
        if self.recovery.makes(message.generation):
            return self.recovery.on_rendezvous(message)
        if self.conductor.founded or first is None:
            return self.conductor.on_rendezvous(message)
        if message.generation != first.number:
            return []  # of a build that failed
        return self.voice.relay(message, self.founding.keys, first)

    def on_group_built(self, message: m.GroupBuilt, now: float) -> list[Effect]:
        first = self.founding.generation
        if self.recovery.makes(message.generation):
            return self.recovery.on_group_built(message)
        if self.recovery.busy:
            return []  # of an adjustment that the failure has undone
        if self.conductor.founded or first is None:
            return self.conductor.on_group_built(message, now)
        if message.generation != first.number or not self.founding.on_built(message.worker):
            return []
        return [self.conductor.record(first)]

    def _on_group_failed(self, message: m.GroupFailed, now: float) -> list[Effect]:
        """A founding build is repeated; an adjustment is undone, which costs the job nothing."""
        if not self.conductor.founded:
            return self.arrivals.on_first_failed(message, now)
        adjustment = self.conductor.adjustment
        target = adjustment.generation if adjustment is not None else None
        if target is None or target.number != message.generation:
            return []
        why = f"{message.worker} could not build the group: {message.why}"
        pairs = unreached_text(message.worker, message.unreached, target)
        return self.conductor.undo(f"{why} ({pairs})" if pairs else why, now)

    def on_swapped(self, event: Swapped, now: float) -> list[Effect]:
        """The store's answer about a generation, or about the end of the job."""
        if event.purpose == "state":
            return self.closing.on_recorded(now)
        target = self.conductor.answered(event)
        if self.over:
            return []
        if target is None:
            return self._superseded(event, now)
        if self.conductor.founded:
            effects = self.conductor.on_recorded(target, now)
            effects += self.recovery.on_recorded(target, now)
            generation = self.conductor.generation
            heir = generation.leader if generation else self.me
            return [*effects, *self.hand_over(now, to=heir)]
        self.conductor.enter(target)
        self.founding.keys = Rendezvous()
        effects = self.voice.to(target.workers(), m.Founded(generation=target.number))
        effects += self.voice.tell("job.started", workers=target.size, leader=self.me)
        for worker, why in self.arrivals.ended.items():
            effects += self.recovery.on_lost(worker, why, now, ended=True)
        return effects

    def _superseded(self, event: Swapped, now: float) -> list[Effect]:
        """Another leader has recorded a generation: that one is the base of whatever follows."""
        if event.value is None:
            return self.voice.tell("job.contested")
        effects = self.voice.tell("leader.superseded")
        found, last = read_recorded(event.value), self.conductor.last_number
        # If this worker leads indeed, its own record will say what becomes of the adjustment.
        self.conductor.drop("another leader has recorded a generation meanwhile")
        self.conductor.forget(found.deeds)
        return effects + self.inherit(
            found, revision=event.revision, last=last, knows=_AS_RECORDED, lost=None, now=now
        )

    def on_step_committed(self, event: StepCommitted, now: float) -> list[Effect]:
        """The leader's own training thread has committed a step."""
        effects = self.conductor.on_step_committed(event, now) or self._preempted(event, now)
        return [*effects, *self.mitigation.on_step_committed(event, now)]

    def on_replicas_differ(self, event: ReplicasDiffer) -> list[Effect]:
        """Emit what the training thread has found; it acts on it by itself."""
        counted = {"times": event.times} if event.times else {}
        return self.voice.tell(
            event.what,
            workers=",".join(event.workers),
            subject=event.subject,
            policy=event.policy,
            why=event.why,
            **counted,
        )

    def on_switch_decided(self, number: int, step: int, now: float) -> list[Effect]:
        """The committed records made the switch happen; a leader that leaves hands over."""
        if number == STOP:
            return self.on_job_over(now)
        effects = self.conductor.on_switch_decided(number, step, now)
        if not self.conductor.leaves:
            return effects + self.recovery.on_switch_happened(now)
        generation = self.conductor.generation
        return [*effects, *self.hand_over(now, to=generation.leader if generation else self.me)]

    def hand_over(self, now: float, *, to: WorkerId) -> list[Effect]:
        """To the successor of a leader that leaves; again whenever it may have been lost."""
        generation = self.conductor.generation
        if generation is None or not self.conductor.leaves or to != generation.leader:
            return []
        if self.recovery.awaits_parting:
            return []  # it goes last of those who go
        self._passed = generation.number
        past = handed_over(
            self.conductor,
            self.recovery.owing - {self.me},
            self.voice,
            now,
            failed=self.recovery.is_successors,
        )
        return [*self.voice.to([to], past), *self.parting.succeeded()]

    def _pass_on(self, effects: list[Effect], now: float) -> list[Effect]:
        """A failure may carry the switch out that leaves this leader out: its successor acts."""
        generation = self.conductor.generation
        if generation is None or not self.conductor.leaves or self._passed == generation.number:
            return effects
        return [*effects, *self.hand_over(now, to=generation.leader)]

    # -- small things ----------------------------------------------------------------------

    def status(self, request_id: str, now: float) -> m.Status:
        conductor, adjustment = self.conductor, self.conductor.adjustment
        state = "training" if conductor.founded else "starting"
        state = "recovering" if self.recovery.active else state
        state = "finished" if self.over else "stopping" if conductor.stopping else state
        arriving: list[Member] = list(adjustment.arrived.values()) if adjustment else []
        arriving += [] if conductor.founded else self.founding.arrived.values()
        status = conductor.pace.status(
            request_id=request_id,
            state=state,
            leader=self.me,
            generation=conductor.generation,
            arriving=arriving,
            adjustment=adjustment.status(now) if adjustment else None,
            adjustments=len(self.voice.chronicle.records),
            settings=conductor.settings,
        )
        # A new leader has committed no step as such; the job has.
        status = replace(status, step=max(status.step, self.voice.step))
        quiet = self.liveness.quiet(now)
        workers = [
            replace(each, silent_s=quiet[each.id].seconds, process_runs=quiet[each.id].runs)
            if each.id in quiet
            else each
            for each in status.workers
        ]
        return self.mitigation.shown(replace(status, workers=tuple(workers)))

    def _preempted(self, event: StepCommitted, now: float) -> list[Effect]:
        """A record may say that its worker was told to go (SIGTERM): scale it in."""
        conductor, generation = self.conductor, self.conductor.generation
        if conductor.adjustment or conductor.stopping or self.over or generation is None:
            return []
        if self.recovery.busy:
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
