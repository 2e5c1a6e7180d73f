"""One worker's rounds in its present generation, and its way from one generation to the next.

Owns: the group, the round under way, the switch that was decided and the state that travels; what
the script calls (`session.py`) is built on this. Holds: every worker of a generation takes part in
the same rounds in the same order, and after a failure everybody who is left begins anew together.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from edl.config import Settings
from edl.errors import Diverged, GroupBroken, Leave, UsageError
from edl.protocol.divergence import Divergence, choose_resync
from edl.protocol.events import Parted, ReplicasDiffer, Settled, SwitchDecided, Through
from edl.protocol.progress import Ledger, Progress, Round, StepPlan, Verdict
from edl.protocol.record import STOP, Kind, StepRecord, pack, unpack
from edl.protocol.shards import Piece, amount
from edl.protocol.topology import Generation
from edl.runtime.agent import Agent
from edl.runtime.audit import audit_of
from edl.runtime.clock import now
from edl.runtime.descriptors import raise_descriptor_limit
from edl.runtime.drawing import Drawing
from edl.runtime.framework import Exchange, Framework, Group, Task, Transfer
from edl.runtime.identity import Identity
from edl.runtime.keeper import keeper_of
from edl.runtime.mending import Act, Mender
from edl.runtime.piece import WHOLE
from edl.runtime.replica_check import ReplicaCheck
from edl.runtime.stopwatch import Stopwatch
from edl.runtime.teller import Teller
from edl.types import WorkerId

__all__ = ["Rounds"]

log = logging.getLogger("edl.replicas")


class Rounds:
    """Where a worker is, and what it exchanges there."""

    def __init__(self, framework: Framework, identity: Identity | None) -> None:
        self.framework = framework
        self.me = identity.worker if identity else WorkerId("w0")
        self.job = identity.job if identity else "solo"
        if identity is not None:
            raise_descriptor_limit()
        self.agent = Agent(identity, framework.build_group) if identity else None
        self.teller = Teller(self.agent)
        self.ledger: Ledger | None = None
        self._first_step = 0
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
        self.drawing: Drawing | None = None  # what is read ahead of the steps, if anything
        # Where the loop is the script's own: what is due between two steps, and what opens one.
        self.between_steps: Callable[[], None] | None = None
        self.opener: Callable[[], None] | None = None
        self.draining = False  # what still comes out of the script's pipeline is of no step
        self._used = self._told = 0  # samples of this step, where the script says how many
        self._began = now()
        self._exchange: Exchange | None = None
        self._records: list[StepRecord] | None = None
        self._round: Round | None = None
        self._void = False
        self._left: bool | None = None
        self._pending: Generation | None = None
        self._moving: Callable[[], Transfer] | None = None  # state on its way, out or in
        self._parting: Task[None] | None = None  # leavers let the others go on
        settings = identity.settings if identity else Settings()
        confirm = self.agent.confirm_member if self.agent else lambda: None
        self._keeper = keeper_of(framework, settings, confirm=confirm)
        self.audit = audit_of(self.me) if identity else None
        self.check = ReplicaCheck(framework, settings)
        self._resyncs = 0
        self._mender = Mender(
            framework, self.agent, self.check, approximate=bool(settings.approximate_recovery)
        )
        self._stopwatch = Stopwatch()
        if self.agent is not None:
            self.agent.start()

    def round(self) -> Round:
        """What this step's round says; waits for it."""
        if self._round is None:
            assert self.progress is not None
            if self._records is None:
                assert self._exchange is not None
                with self.waiting():
                    rows = self._exchange.result()
                self._records = [unpack(row) for row in rows]
            self._round = self.progress.judge(self._records)
        return self._round

    def waiting(self) -> AbstractContextManager[None]:
        """What is done inside is waiting for others, not computing."""
        return self._stopwatch.waiting()

    def computed(self) -> None:
        """The worker's own part of the step is done, unless there is another backward."""
        self._stopwatch.computed()

    def _judged(self) -> Round | None:
        """The round's meaning if that is known without waiting."""
        if self._round is None and self._exchange is not None and not self._exchange.ready():
            return None
        return self.round()

    def sweep(self) -> None:
        """The script has its batch and computes: what is not urgent is done beside it."""
        if self.agent is not None:
            self.agent.sweep()

    def drain(self) -> None:
        """The loop is over, but the script's pipeline may still hold stand-ins."""
        self.draining = True
        if self.shown is not None:
            self.shown = replace(self.shown, part=None)

    # -- failure ---------------------------------------------------------------------------

    def broke(self, error: GroupBroken) -> None:
        """What the script does now counts for nobody, until the next boundary."""
        assert self.progress is not None
        self._mender.broke(self.progress.generation.number, error)

    def _mend(self) -> Act | None:
        """Go on with whoever is left; the result of the act that broke, if somebody has one."""
        progress = self.progress
        assert progress is not None
        was_step, in_step = progress.step, self.plan is not None
        self.plan, self._records, self._round, self._exchange = None, None, None, None
        self._pending, self._void, self._left = None, False, None
        self.check.reset()
        self.loop_closed = self.over = False
        moving, self._moving = self._moving, None
        self._parting = None
        keeper = self._keeper
        try:
            group, act = self._mender.mend(
                progress, lambda: keeper.begin(progress) if keeper is not None else None
            )
            self.group = group or self.group
        except Leave:
            self.gone = True
            raise
        finally:
            if moving is not None:
                # Its path is broken, so this ends; the model is nobody's but ours again.
                with contextlib.suppress(GroupBroken):
                    moving()
        if in_step and progress.step == was_step:
            self._mender.again()
        self.teller.mended()
        self.shown = progress.plan()
        return act

    def _mended_end(self) -> bool:
        """Mend; whether the loop turned out to be over, as somebody else knew already."""
        act = self._mend()
        if act is None or not (act.ended or act.closed):
            return False
        self.over, self.loop_closed = act.ended, True
        self._mender.end_replay()
        return True

    # -- generations -----------------------------------------------------------------------

    def _verdict(self, records: list[StepRecord]) -> Verdict:
        assert self.progress is not None
        if self.agent is not None and any(record.next_generation for record in records):
            for generation, _ in list(self.agent.groups.values()):
                if generation.number > self.progress.generation.number:
                    self.progress.prepare(generation)
        return self.progress.verdict(records)

    def _decided(self, verdict: Verdict) -> None:
        assert self.progress is not None
        if verdict.stop and self._compares():
            # What is kept of a job that stops is its last checkpoint.
            final = self._finish_round(Kind.CHECK)
            if final.diverged:
                self._on_divergence(final)
        last = self._keeper if verdict.stop else None
        with last.stopping(self.progress) if last is not None else contextlib.nullcontext():
            self._carry_out(verdict)

    def _carry_out(self, verdict: Verdict) -> None:
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
            snapshot = {**self.progress.snapshot(), **self.check.shared()}
            self._moving = self.framework.start_sending(self.group, snapshot)

    def _await_moved(self) -> None:
        """Nobody may change the model while it travels, nor before it has arrived, nor before those
        who stayed for that have gone."""
        self._await_parted()
        if self._moving is not None:
            moved, self._moving = self._moving, None
            with self.waiting():
                self.teller.transfer = moved()

    def _arrived(self, generation: Generation, group: Group) -> None:
        """A generation's first step is committed: whoever was new has the state."""
        if self.agent is not None and (generation.newcomers or generation.leaving):
            self.agent.post(Settled(generation=generation.number))
            self.agent.put_aside(group.drop_state)

    def _settle(self) -> None:
        """A first step is committed that some stayed for: they go, the others go on."""
        agent, progress, group = self.agent, self.progress, self.group
        assert agent is not None
        assert progress is not None
        assert group is not None
        generation = progress.generation
        number, leaves = generation.number, self.me in generation.leaving

        def through() -> None:
            agent.post(Through(generation=number))
            if leaves:
                agent.wait_let_go(number)

        parting = group.part(through)
        if not leaves:
            self._parting = parting
            progress.settle()
            group.settle()
            return
        with self.waiting():
            self._say_goodbye(agent, number, parting)
        self.teller.mended()
        self._depart("this worker was scaled in")

    def _say_goodbye(self, agent: Agent, number: int, parting: Task[None]) -> None:
        try:
            parting.wait()
        except GroupBroken as error:
            if agent.let_go != number:
                raise
            # Nobody counts on this worker any more, but somebody may wait for its last word.
            agent.broke(number, str(error))
        agent.post(Parted(generation=number))

    def _await_parted(self) -> None:
        """Nothing is changed or completed before leavers have let the others go on: until then one
        of them may still lead, and what it leads must be all there is of the job."""
        if self._parting is not None:
            parting, self._parting = self._parting, None
            with self.waiting():
                parting.wait()

    def _depart(self, why: str) -> None:
        assert self.agent is not None
        self.gone = True
        self.teller.flush()
        if self.drawing is not None:
            self.drawing.finish()
        self.agent.wait_may_go(self.agent.identity.settings.leave_allowance_s)
        self.agent.stop()
        if self.progress is not None:
            self.agent.identity.announce(
                f"worker {self.me} left job {self.agent.identity.job} after step "
                f"{self.progress.step}: {why}"
            )
        raise Leave(why)

    # -- records ---------------------------------------------------------------------------

    def _end_loop(self, decided: Round) -> None:
        """Everyone sees the same round, so everyone's loop ends here."""
        self._await_parted()
        if decided.diverged:
            self._on_divergence(decided)
        self.plan, self._records = None, None
        self.teller.flush()
        self.over = decided.ended
        self.loop_closed = True
        if self.group is not None and self.group.size > 1:
            self.framework.even_out(self.group, 0, None)
        self._mender.done(Act(ended=decided.ended, closed=not decided.ended))
        self.check.seen.update(found.subject for found in decided.diverged)
        if self.progress is not None:
            self.check.closed_step = self.progress.step

    def _finish_round(self, kind: Kind) -> Round:
        assert self.progress is not None
        exchange = self._launch(kind)
        return self.progress.judge([unpack(row) for row in exchange.result()])

    def _flowed(self, samples: int | None) -> tuple[list[Piece], list[Piece]]:
        """Which of this worker's own samples the step used, and which only flowed by."""
        assert self.plan is not None
        if self.opener is None or self.drawing is None:
            if samples is not None and self.plan.count not in (0, samples):
                raise UsageError(
                    f"notify_batch_end(samples={samples}), but this worker's part of the step is "
                    f"{self.plan.count}; use edl.local_batch_size() samples, or make the "
                    "elastic_shard_generator without batch_size"
                )
            return [], []
        if samples is None or samples < 0:
            raise UsageError(
                f"notify_batch_end(samples={samples}): without batch_size only the script knows "
                "how many samples a step used; tell it, with stand-ins included"
            )
        used, passed = self.drawing.flowed(samples)
        if not self.plan.count:
            used, passed = [], used + passed
        self._used, self._told = amount(used), samples
        return used, passed

    def _counted(self, decided: Round, records: list[StepRecord]) -> Round:
        """Where workers say after a step how many samples they used: ask everybody."""
        progress = self.progress
        assert progress is not None
        exchange = self._launch(Kind.COUNT, samples=self._used, detail=self._told)
        said = [unpack(row) for row in exchange.result()]
        counts = progress.judge(said).samples
        for index, worker in enumerate(progress.generation.workers()):
            records[index] = replace(records[index], samples=counts[worker])
        return replace(decided, samples=counts, told=max(record.detail for record in said))

    def _launch(self, kind: Kind, *, samples: int = 0, detail: int = 0) -> Exchange:
        progress = self.progress
        assert progress is not None
        assert self.group is not None
        word = self.agent.word if self.agent is not None else None
        settings_digest, state_digest = self._digests_for(kind)
        record = StepRecord(
            kind=kind,
            step=progress.step,
            samples=samples,
            want=self.drawing.want() if self.drawing is not None else 0,
            back=progress.back,
            compute_us=int(self._stopwatch.compute_s * 1e6),
            leaving=int(self.leave_wish),
            ahead=self.ahead,
            next_generation=word.generation if word else 0,
            switch_step=word.switch_step if word else 0,
            token=word.token if word else 0,
            detail=detail,
            weighing=word.weighing if word else 0,
            settings_digest=settings_digest,
            state_digest=state_digest,
            check=int(kind == Kind.STEP and self._wants_check()),
        )
        return self.group.exchange(pack(record))

    # -- replicas --------------------------------------------------------------------------

    def _compares(self) -> bool:
        """Whether there are other replicas, and digests of them are compared."""
        return self.group is not None and self.group.size > 1 and self.check.steps > 0

    def _digests_for(self, kind: Kind) -> tuple[int, int]:
        """Digests of settings and state that go into a record of this kind."""
        assert self.progress is not None
        step = self.progress.step
        if not self._compares():
            return 0, 0
        if kind == Kind.STEP:
            return self.check.in_step(step)
        # After a loop's end scripts go separate ways: one worker may evaluate, or load other
        # weights. So the job's end is checked only where no loop's end was.
        ends = kind in (Kind.CLOSE, Kind.CHECK) or (
            kind == Kind.END and self.check.closed_step != step
        )
        return self.check.at_end(step) if ends else (0, 0)

    def _wants_check(self) -> bool:
        """Whether this worker will copy its state for a checkpoint after the present step."""
        if self._keeper is None or self.progress is None or not self._compares():
            return False
        assert self.group is not None
        return self._keeper.wants(self.progress.step + 1, rank=self.group.rank)

    def _checked(self, decided: Round) -> None:
        """A step is committed: digest what the next records will tell."""
        assert self.progress is not None
        self.check.seen.update(found.subject for found in decided.diverged)
        if self._compares():
            self.check.boundary(self.progress.step, everything=decided.check)
        else:
            self.check.reset()

    def _on_divergence(self, decided: Round) -> None:
        """Replicas differ, as everybody has seen in the same round; everybody calls this."""
        assert self.progress is not None
        policy = self.check.policy
        news = [
            (found, self._explained(found))
            for found in decided.diverged
            if policy == "stop" or found.subject not in self.check.seen
        ]
        if policy == "stop":
            text = "; ".join(text for _, text in news)
            raise Diverged(f"{text}\n{self.check.advice(decided.diverged)}")
        for found, text in news:
            log.warning("replicas.diverged policy=%s %s", policy, text)
            self._report("replicas.diverged", found, text)
        if policy == "resync":
            self._resync(decided.diverged)

    def _explained(self, found: Divergence) -> str:
        assert self.progress is not None
        assert self.group is not None
        try:
            with self.waiting():
                workers = self.progress.generation.workers()
                return self.check.explained(found, workers, self.group)
        except GroupBroken:
            if self.check.policy != "stop":
                raise
            # The others stop too, and may have gone already.
            return self.check.unexplained(found)

    def _resync(self, diverged: tuple[Divergence, ...]) -> None:
        """Workers that differ take the state of one that is right."""
        assert self.progress is not None
        assert self.group is not None
        generation, group = self.progress.generation, self.group
        chosen = choose_resync(diverged)
        source = generation.rank(chosen.source)
        targets = sorted(generation.rank(worker) for worker in chosen.targets)
        with self.waiting():
            for target in targets:
                if group.rank == source:
                    path = group.pair(source, target)
                    self.framework.start_sending(path, self.progress.snapshot())()
                elif group.rank == target:
                    path = group.pair(source, target)
                    self.framework.start_receiving(path, aside=True)[1]()
        self.check.reset()
        self._resyncs += 1
        if self._resyncs & (self._resyncs - 1) == 0:
            # A script that makes replicas differ at every step would flood the events.
            names = ", ".join(sorted(chosen.targets))
            text = f"state of {chosen.source} copied to {names}"
            log.warning("replicas.resynced times=%d %s", self._resyncs, text)
            self._report("replicas.resynced", diverged[0], text, times=self._resyncs)

    def _report(self, what: str, found: Divergence, why: str, times: int = 0) -> None:
        if self.agent is None or not self.agent.leads:
            return
        self.agent.post(
            ReplicasDiffer(
                what=what,
                step=found.step,
                subject=str(found.subject),
                workers=found.differing,
                policy=self.check.policy,
                why=why,
                times=times,
            )
        )

    def _present(self) -> tuple[Progress, Group, Round]:
        assert self.progress is not None
        assert self.group is not None
        return self.progress, self.group, self.round()
