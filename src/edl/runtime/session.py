"""What the training thread calls: from `init` to `shutdown`, framework-free.

Owns: where this worker is in its step (planned, judged, committed) and in its loop. Control
travels in rounds of step records on the present generation's group; this module launches them,
`protocol/progress.py` says what they mean. Holds: whatever a script does (`break`, an early
shutdown, a skipped optimizer), every worker of a generation takes part in the same rounds in the
same order, so nobody hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edl.config import Settings
from edl.errors import Leave, UsageError
from edl.protocol.events import JobOver, SwitchDecided
from edl.protocol.progress import Ledger, Progress, Round, StepPlan, Verdict
from edl.protocol.record import STOP, Kind, StepRecord, pack, unpack
from edl.protocol.topology import Generation
from edl.runtime.agent import Agent
from edl.runtime.clock import now
from edl.runtime.entry import Entry, enter_alone, enter_job
from edl.runtime.framework import Exchange, Framework, Group, Relay, Transfer
from edl.runtime.identity import Identity
from edl.runtime.keeper import keeper_of
from edl.runtime.piece import WHOLE, Piece
from edl.runtime.teller import Teller
from edl.types import WorkerId

__all__ = ["Session"]


class Session:
    """One worker's training, from the script's point of view."""

    def __init__(self, framework: Framework, identity: Identity | None) -> None:
        self.framework = framework
        self.me = identity.worker if identity else WorkerId("w0")
        self.job = identity.job if identity else "solo"
        self.agent = Agent(identity, framework.build_group) if identity else None
        self.teller = Teller(self.agent)
        self.ledger: Ledger | None = None
        self.progress: Progress | None = None
        self.group: Group | None = None
        self.plan: StepPlan | None = None
        self.piece = WHOLE
        self.shown: StepPlan | None = None  # what rank(), size(), ... tell
        self.leave_wish = False
        self.loop_closed = False
        self.over = False
        self.gone = False
        self.ends_loop: Callable[[], bool] = lambda: True
        self.ahead = 0
        self._began = now()
        self._exchange: Exchange | None = None
        self._records: list[StepRecord] | None = None
        self._round: Round | None = None
        self._void = False
        self._left: bool | None = None
        self._pending: Generation | None = None
        self._moving: Callable[[], Transfer] | None = None  # state on its way, out or in
        self._keeper = keeper_of(framework, identity.settings if identity else Settings())
        self._step_began = 0.0
        self._compute_s = 0.0
        if self.agent is not None:
            self.agent.start()

    # -- entering --------------------------------------------------------------------------

    def open_data(self, ledger: Ledger) -> None:
        """The data of this job; one loader a job, since one ledger counts its samples."""
        if self.ledger is not None:
            raise UsageError(
                "a second edl.DataLoader: a job has one elastic loader, the one it trains on; "
                "use torch's DataLoader for validation"
            )
        self.ledger = ledger

    def enter(self) -> Progress:
        """Wait to be let into the job. Returns at once when that has happened."""
        self.settle()
        if self.progress is not None:
            return self.progress
        if self.ledger is None:
            raise UsageError("no data: make the edl.DataLoader before training begins")
        if self.gone:
            raise UsageError("this worker has left the job already")
        entry: Entry
        if self.agent is None:
            entry = enter_alone(self.framework, self.me, self.ledger, self._keeper)
        else:
            try:
                entry = enter_job(
                    self.agent,
                    self.framework,
                    self.me,
                    self.ledger,
                    began=self._began,
                    keeper=self._keeper,
                )
            except Leave:
                self.gone = True
                raise
        self.progress, self.group = entry.progress, entry.group
        self._records, self._moving = entry.records, entry.receiving
        self.teller.entered(entry.transfer, arrived=entry.records is not None)
        return self.progress

    @property
    def relay(self) -> Relay | None:
        """How the present step is reduced, if it is the first one with newcomers."""
        if self.group is None or self.progress is None or not self.progress.entering:
            return None
        return self.group.relay

    # -- a step ----------------------------------------------------------------------------

    def begin_step(self, *, first: bool) -> StepPlan | None:
        """Open the next step; None: the loop (or the job) is over for everybody."""
        progress = self.enter()
        if self.over:
            return None
        self._round, self._void = None, False
        if self._records is not None and self.teller.arrived:
            self.plan = progress.plan()
            self._exchange = None
        elif first:
            if not self._confirm_first(progress):
                return None
        else:
            self._apply_switch()
            self._launch_step(progress)
        self.shown = self.plan
        self._step_began = now()
        if not first or self._exchange is None:
            decided = self._judged()
            if decided is not None and not decided.go:
                self._end_loop(decided)
                return None
        return self.plan

    def _launch_step(self, progress: Progress) -> None:
        self._records = None
        self.plan = progress.plan()
        self._exchange = self._launch(Kind.STEP, samples=self.plan.count)

    def _confirm_first(self, progress: Progress) -> bool:
        """A loop's first step is confirmed in the old generation before anyone moves on.

        Between two loops the script runs code of its own, and one worker may have ended the job
        there; only a round that everybody takes part in can tell.
        """
        self._launch_step(progress)
        decided = self.round()
        if not decided.go:
            self._end_loop(decided)
            return False
        assert self._records is not None
        verdict = self._verdict(self._records)
        if verdict.stop or verdict.switch_to is not None:
            self._decided(verdict)
            self._apply_switch()
            self._round = None
            self._launch_step(progress)
        return True

    def begin_piece(self, piece: Piece) -> None:
        """The batch that comes now is this part of the step."""
        if piece.pieces > 1 and piece.index == 0:
            self.framework.hold()
        self.piece = piece

    def _judged(self) -> Round | None:
        """The round's meaning if that is known without waiting."""
        if self._round is None and self._exchange is not None and not self._exchange.ready():
            return None
        return self.round()

    def round(self) -> Round:
        """What this step's round says; waits for it."""
        if self._round is None:
            assert self.progress is not None
            if self._records is None:
                assert self._exchange is not None
                self._records = [unpack(row) for row in self._exchange.result()]
            self._round = self.progress.judge(self._records)
        return self._round

    def counts(self) -> bool:
        """Whether the present step will count; waits for its round."""
        return self.plan is not None and not self._void and self.round().go

    def weight(self) -> float:
        """This worker's weight in the present step's gradient."""
        return self.round().weight(self.me)

    def void(self) -> None:
        """Somebody left the loop inside this step: it counts for nobody."""
        self._void = True

    def computed(self) -> None:
        """The worker's own part of the step is done; what follows is waiting for others."""
        self._compute_s = now() - self._step_began

    def before_update(self) -> bool:
        """Called before the model changes. False: it must not, or not yet."""
        if self.plan is not None and not self.piece.last:
            return False
        self._await_moved()
        return self.plan is None or self.counts()

    def end_step(self) -> None:
        """The boundary: commit, and do what the records decided. May raise Leave."""
        if self.plan is None:
            if self.loop_closed or self.over:
                return
            raise UsageError(
                "edl.notify_batch_end() without a batch: call it once for each batch that the "
                "edl.DataLoader gave"
            )
        if not self.piece.last:
            self.framework.put_back()
            self.piece = replace(self.piece, rows=-1)
            return
        progress, group, decided = self._present()
        if self._void or not decided.go:
            self._end_loop(decided)
            return
        entering, relay = progress.entering, self.relay
        self._await_moved()
        if entering and group.size > 1:
            source = progress.generation.rank(progress.generation.source)
            self.framework.even_out(group, source, relay)
        progress.commit(decided)
        if entering and progress.generation.newcomers and self.agent is not None:
            self.agent.discard(group, only_state=True)
        self.plan = None
        assert self._records is not None
        records, self._records = self._records, None
        self.teller.committed(progress, records, decided, entering=entering)
        if self._keeper is not None:
            self._keeper.boundary(progress, rank=group.rank)
        if not self.ends_loop():
            verdict = self._verdict(records)
            if verdict.stop or verdict.switch_to is not None:
                self._decided(verdict)

    # -- generations -----------------------------------------------------------------------

    def _verdict(self, records: list[StepRecord]) -> Verdict:
        assert self.progress is not None
        if self.agent is not None and any(record.next_generation for record in records):
            for generation, _ in list(self.agent.groups.values()):
                if generation.number > self.progress.generation.number:
                    self.progress.prepare(generation)
        return self.progress.verdict(records)

    def _decided(self, verdict: Verdict) -> None:
        assert self.agent is not None
        assert self.progress is not None
        number = STOP if verdict.switch_to is None else verdict.switch_to.number
        self.agent.post(SwitchDecided(generation=number, step=self.progress.step))
        if verdict.leave:
            self._depart("the job is stopping" if verdict.stop else "this worker was scaled in")
        self._pending = verdict.switch_to

    def _apply_switch(self) -> None:
        """Move to the decided generation; newcomers get the state as of this moment."""
        target, self._pending = self._pending, None
        if target is None:
            return
        assert self.agent is not None
        assert self.progress is not None
        self.group = self.agent.entered(target.number)
        self.progress.enter(target)
        self.shown = self.progress.plan()
        if target.newcomers and target.source == self.me:
            snapshot = self.progress.snapshot()
            self._moving = self.framework.start_sending(self.group, snapshot)

    def _await_moved(self) -> None:
        """Nobody may change the model while it travels, and nobody before it has arrived."""
        if self._moving is not None:
            waiting, self._moving = self._moving, None
            self.teller.transfer = waiting()

    # -- loops -----------------------------------------------------------------------------

    def leave_loop(self, *, reduced: bool) -> None:
        """The script left its loop early; `settle` tells the others when that is sure."""
        self._left = reduced

    def settle(self) -> None:
        """Close a loop that was left early. Every later call of the script begins with this."""
        if self._left is not None:
            reduced, self._left = self._left, None
            self.close_loop(reduced=reduced)

    def close_loop(self, *, reduced: bool) -> None:
        """The training loop is over on this worker, by its end or by `break`."""
        if self.gone or self.progress is None:
            return
        if self.plan is not None:
            # Left in the middle of a step: done if its gradients were exchanged, else void.
            if reduced:
                self.end_step()
            elif self.counts():
                self.framework.void_step(self._present()[1], self.relay)
                self.void()
                self._end_loop(self.round())
        if not self.loop_closed and not self.over:
            self._apply_switch()
            self._end_loop(self._finish_round(Kind.CLOSE))
        self._await_moved()
        if self.loop_closed:
            self.loop_closed = False
            self.progress.close()

    def _end_loop(self, decided: Round) -> None:
        """Everyone sees the same round, so everyone's loop ends here."""
        self.plan, self._records = None, None
        self.teller.flush()
        self.over = decided.ended
        self.loop_closed = True
        if self.group is not None and self.group.size > 1:
            self.framework.even_out(self.group, 0, None)

    def _finish_round(self, kind: Kind) -> Round:
        assert self.progress is not None
        exchange = self._launch(kind)
        return self.progress.judge([unpack(row) for row in exchange.result()])

    def reduce_round(self, detail: int) -> Group | None:
        """Everyone calls all_reduce: the group to do it in, or None if it counts for nobody."""
        self.settle()
        if self.progress is None:
            raise UsageError("edl.all_reduce works from the first batch on, not before")
        if self.over or (self.plan is not None and not self.counts()):
            return None
        if self._pending is not None and not self._pending.newcomers:
            self._apply_switch()
        assert self.group is not None
        exchange = self._launch(Kind.REDUCE, detail=detail)
        self.progress.judge([unpack(row) for row in exchange.result()])
        return self.group

    # -- the end ---------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The closing record proves that everyone committed the last step."""
        if self.gone:
            return
        self.settle()
        if self.progress is not None:
            if self.plan is not None:
                self.close_loop(reduced=False)
            if not self.over:
                self._apply_switch()
                self._end_loop(self._finish_round(Kind.END))
                self._await_moved()
            self.over = True
            if self._keeper is not None:
                self._keeper.end()
        self.gone = True
        if self.agent is None:
            return
        if self.progress is not None:
            self.agent.post(JobOver(step=self.progress.step))
            self.agent.wait_may_go(self.agent.identity.settings.leave_allowance_s)
        self.agent.stop()

    def abandon(self) -> None:
        """The script failed: take part in nothing any more."""
        self.gone = True

    def _depart(self, why: str) -> None:
        assert self.agent is not None
        self.gone = True
        self.teller.flush()
        self.agent.wait_may_go(self.agent.identity.settings.leave_allowance_s)
        self.agent.stop()
        raise Leave(why)

    # -- records ---------------------------------------------------------------------------

    def _launch(self, kind: Kind, *, samples: int = 0, detail: int = 0) -> Exchange:
        progress = self.progress
        assert progress is not None
        assert self.group is not None
        word = self.agent.word if self.agent is not None else None
        record = StepRecord(
            kind=kind,
            step=progress.step,
            samples=samples,
            want=0,
            compute_us=int(self._compute_s * 1e6),
            leaving=int(self.leave_wish),
            ahead=self.ahead,
            next_generation=word.generation if word else 0,
            switch_step=word.switch_step if word else 0,
            token=word.token if word else 0,
            detail=detail,
        )
        return self.group.exchange(pack(record))

    def _present(self) -> tuple[Progress, Group, Round]:
        assert self.progress is not None
        assert self.group is not None
        return self.progress, self.group, self.round()
