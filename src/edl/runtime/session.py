"""What the training thread calls: from `init` to `shutdown`, framework-free.

Owns: where this worker is in its step (planned, judged, committed) and in its loop. Control
travels in rounds of step records on the present generation's group; this module launches them,
`protocol/progress.py` says what they mean. Holds: whatever a script does (`break`, an early
shutdown, a skipped optimizer), every worker of a generation takes part in the same rounds in the
same order, so nobody hangs. Whatever breaks because a peer is lost is mended at the next boundary
(`mending.py`), and the script does not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from edl.errors import GroupBroken, Leave, UsageError
from edl.protocol.events import JobOver
from edl.protocol.progress import Ledger, Progress, StepPlan, Verdict
from edl.protocol.record import Kind, unpack
from edl.runtime.entry import Entry, enter_alone, enter_job
from edl.runtime.framework import Group, Relay
from edl.runtime.mending import Act
from edl.runtime.updating import Updating
from edl.types import workers_said

__all__ = ["Session"]


class Session(Updating):
    """One worker's training, from the script's point of view."""

    # -- entering --------------------------------------------------------------------------

    def open_data(self, ledger: Ledger) -> None:
        """The data of this job; one loader a job, since one ledger counts its samples."""
        if self.ledger is not None:
            raise UsageError(
                "a second edl.DataLoader (or elastic_shard_generator): a job has one, which "
                "it trains on; use the framework's own loader for validation"
            )
        self.ledger = ledger

    def reopen_data(self, ledger: Ledger, *, step: int) -> None:
        """The data as it was left; a job that is on its way already overrules it."""
        self.ledger, self._first_step = ledger, step

    def enter(self) -> Progress:
        """Wait to be let into the job. Returns at once when that has happened."""
        self.settle()
        if self.progress is not None:
            return self.progress
        if self.ledger is None:
            raise UsageError(
                "no data: make the edl.DataLoader (or elastic_shard_generator) before edl.epochs"
            )
        if self.gone:
            raise UsageError("this worker has left the job already")
        entry: Entry
        if self.agent is None:
            entry = enter_alone(
                self.framework, self.me, self.ledger, self._keeper, step=self._first_step
            )
        else:
            try:
                entry = enter_job(
                    self.agent,
                    self.framework,
                    self.me,
                    self.ledger,
                    step=self._first_step,
                    began=self._began,
                    keeper=self._keeper,
                    check=self.check,
                )
            except Leave:
                self.gone = True
                raise
        self.progress, self.group = entry.progress, entry.group
        self._records, self._moving = entry.records, entry.receiving
        self._mender.whole = entry.whole
        self.teller.entered(entry.transfer, arrived=entry.records is not None)
        if self.agent is not None:
            self.agent.identity.announce(
                f"worker {self.me} joined job {self.agent.identity.job} at step "
                f"{self.progress.step}; {workers_said(len(self.progress.generation.members))}"
            )
        if entry.fault is not None:
            self.broke(entry.fault)
            self._mend()
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
        while True:
            progress = self.enter()
            if self.over:
                return None
            self._mender.enter_act()
            try:
                return self._open_step(progress, first=first)
            except GroupBroken as error:
                self.broke(error)
            if self._mended_end():
                return None

    def _open_step(self, progress: Progress, *, first: bool) -> StepPlan | None:
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
        self._stopwatch.opened(own_loop=self.opener is not None and not first)
        if not first or self._exchange is None:
            decided = self._judged()
            if decided is not None and not decided.go:
                self._end_loop(decided)
                return None
        return self.plan

    def _launch_step(self, progress: Progress) -> None:
        self._records = None
        self.plan = progress.plan()
        samples = self.plan.count
        if self.drawing is not None and self.drawing.counted:
            self.plan = self.drawing.opened(self.plan, progress)
            samples = min(1, self.plan.count)
        self._exchange = self._launch(Kind.STEP, samples=samples)

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

    def end_step(self, samples: int | None = None) -> None:
        """The boundary: commit, and do what the records decided. May raise Leave.

        `samples`: how many the script took for this step, where only the script knows.
        """
        self.ensure_open()
        if self.plan is None:
            if self.draining:
                self.framework.put_back()
            if self.loop_closed or self.over or self.draining:
                return
            raise UsageError(
                "edl.notify_batch_end() without a batch: call it once for each batch that the "
                "edl.DataLoader gave"
            )
        if not self.piece.last:
            self.framework.put_back()
            self.piece = replace(self.piece, rows=-1)
            return
        used, passed = self._flowed(samples)
        before = self.progress.step if self.progress is not None else 0
        try:
            if self._mender.fault is None:
                self._commit()
        except GroupBroken as error:
            self.broke(error)
        if self._mender.fault is not None:
            self._mended_end()
        if self.between_steps is not None and self.progress is not None:
            if self.progress.step == before:
                self.progress.passed += used
            self.progress.passed += passed
            self.between_steps()
        self._stopwatch.freed()

    def _commit(self) -> None:
        progress, group, decided = self._present()
        if self._void or not decided.go:
            # What the script did with registered objects in this step counts for nobody.
            self.framework.put_back()
            self._end_loop(decided)
            return
        entering, relay = progress.entering, self.relay
        self._await_moved()
        if entering and group.size > 1:
            source = progress.generation.rank(progress.generation.source)
            self.framework.even_out(group, source, relay)
        if decided.diverged:
            self._on_divergence(decided)
        before = progress.ledger
        assert self._records is not None
        if self.opener is not None:
            decided = self._counted(decided, self._records)
        progress.commit(decided)
        if self.audit is not None:
            self.audit.committed(before, progress, decided)
        self._mender.committed()
        self._checked(decided)
        if entering:
            self._arrived(progress.generation, group)
        self.plan = None
        records, self._records = self._records, None
        self.teller.committed(progress, records, decided, entering=entering)
        if self._keeper is not None:
            self._keeper.boundary(
                progress, rank=group.rank, take=decided.check or not self._compares()
            )
        verdict = self._verdict(records) if not self.ends_loop() else Verdict()
        if verdict.stop or verdict.switch_to is not None:
            self._decided(verdict)
        elif entering and progress.generation.leaving:
            self._settle()

    # -- loops -----------------------------------------------------------------------------

    def leave_loop(self, *, reduced: bool) -> None:
        """The script left its loop early; `settle` tells the others when that is sure."""
        self._left = reduced
        if self.progress is not None and not self.gone and self._compares():
            self.check.leave_loop(self.progress.step)

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
            self._leave_step(reduced=reduced)
        if not self.loop_closed and not self.over:
            self._finish(Kind.CLOSE)
        else:
            self._let_arrive()
        if self.loop_closed:
            self.loop_closed = False
            self.close_epoch()

    def close_epoch(self) -> None:
        """The next step is of the next epoch; what is left of this one stays unused."""
        assert self.progress is not None
        if self.audit is not None:
            self.audit.epoch_over(self.progress.ledger)
        self.progress.close()

    def _leave_step(self, *, reduced: bool) -> None:
        """Left in the middle of a step: done if its gradients were exchanged, else void."""
        if reduced:
            self.end_step()
            return
        if self.counts():
            try:
                self.framework.void_step(self._present()[1], self.relay)
                self.void()
                self._end_loop(self.round())
            except GroupBroken as error:
                self.broke(error)
        if self._mender.fault is not None:
            self._mended_end()

    def _let_arrive(self) -> None:
        """A loop that ended inside a first step: its newcomers still need the state."""
        closed, over = self.loop_closed, self.over
        try:
            self._await_moved()
        except GroupBroken as error:
            self.broke(error)
            self._mend()
            self.loop_closed, self.over = closed, over

    def _finish(self, kind: Kind) -> None:
        """End the loop, or the job, with everybody; again if a peer is lost meanwhile."""
        while True:
            self._mender.enter_act()
            try:
                self._apply_switch()
                self._end_loop(self._finish_round(kind))
                self._await_moved()
                return
            except GroupBroken as error:
                self.broke(error)
            if self._mended_end():
                return

    def reduce(self, detail: int, reduce: Callable[[Group], Any]) -> Any:
        """Everyone calls all_reduce: its result, or None if it counts for nobody.

        What breaks inside a step is done again with the step. After a void step the script makes
        the reductions of before that step again: they have the same results as then.
        """
        self.settle()
        if self.progress is None:
            raise UsageError("edl.all_reduce works from the first batch on, not before")
        while True:
            if self.over or (self.plan is not None and not self.counts()):
                return None
            if self.plan is None:
                if self._mender.replaying:
                    return self._mender.replay(detail)
                self._mender.enter_act()
            try:
                return self._reduce(detail, reduce)
            except GroupBroken as error:
                self.broke(error)
            if self.plan is not None:
                return None
            act = self._mend()
            if act is not None and act.reduced is not None:
                self._mender.reduced(detail, act.reduced)
                return act.reduced

    def _reduce(self, detail: int, reduce: Callable[[Group], Any]) -> Any:
        assert self.progress is not None
        if self._pending is not None and not self._pending.newcomers:
            self._apply_switch()
        assert self.group is not None
        with self.waiting():
            exchange = self._launch(Kind.REDUCE, detail=detail)
            self.progress.judge([unpack(row) for row in exchange.result()])
            result = reduce(self.group)
            self._await_parted()
        self._mender.done(Act(reduced=result))
        if self.plan is None:
            self._mender.reduced(detail, result)
        return result

    # -- the end ---------------------------------------------------------------------------

    def shutdown(self) -> None:
        """The closing record proves that everyone committed the last step."""
        if self.gone:
            return
        self.settle()
        if self.drawing is not None:
            self.drawing.finish()
        if self.progress is not None:
            if self.plan is not None:
                self.close_loop(reduced=False)
            if not self.over:
                self._finish(Kind.END)
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
        if self.drawing is not None:
            self.drawing.finish()
        if self.agent is not None:
            self.agent.abandon()
