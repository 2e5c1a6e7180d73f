"""The training thread of one fake worker, as a script: it yields what it waits for.

Where a collective breaks it does what a real session does: it says so to its agent, waits for the
generation that is made of the survivors, compares its position with theirs, takes the state or the
result that it lacks, and does again what nobody has completed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, cast

from edl.config import Settings
from edl.protocol.events import (
    Broke,
    ContextReady,
    Entered,
    JobOver,
    RoundJoined,
    Settled,
    StepCommitted,
    SwitchDecided,
)
from edl.protocol.position import Position, compare
from edl.protocol.progress import Progress, Round, StepPlan, Verdict
from edl.protocol.record import STOP, Kind, StepRecord, pack, unpack
from edl.runtime.digests import part_of
from edl.runtime.replica_check import ReplicaCheck
from edl.types import WorkerId
from tests.seeded.collective import Broken, Exchange
from tests.seeded.farewell import Farewell
from tests.seeded.history import Committed, Gathered, Moved, Tried
from tests.seeded.host import Found, Host, How, Line, Wait
from tests.seeded.model import gradient, indexes_of, ledger_of, updated

__all__ = ["DIGEST_STEPS", "Trainer"]

# All of a model is compared within so many steps.
DIGEST_STEPS = 4


class Trainer:
    """One script: prepare, begin, loop over the epochs, end."""

    def __init__(self, host: Host, *, context_s: float, first_model: int) -> None:
        self.host = host
        self.context_s = context_s
        self.model = (first_model, first_model + 1)
        self.carried = 0  # samples of the last step
        self.progress: Progress
        self.wish = 0
        self.joining = False
        self.state = 0  # 1: this model is the job's
        self.acts = 0  # completed since the last commit
        self.last_act: Any = None
        self.step_began = 0.0
        self.farewell = Farewell(host)
        self._news: Entered | None = None  # of the last commit, to be told with the next one
        # Of a framework it only calls the two methods that this class has.
        self.check = ReplicaCheck(cast(Any, self), Settings(digest_steps=DIGEST_STEPS))

    # -- what the check for divergence asks a framework ------------------------------------

    def settings(self) -> list[tuple[str, str]]:
        """The learning rate of a schedule that goes by the job's step."""
        return [("lr", repr(1 / (1 + self.progress.step)))]

    def digests(self, part: int, parts: int) -> Callable[[], list[tuple[str, str]]]:
        """The model's two numbers are all of its elements."""
        begin, end = part_of(len(self.model), part, parts)
        found = [(f"element {at}", str(self.model[at])) for at in range(begin, end)]
        return lambda: found

    def run(self) -> Generator[Wait, None, None]:
        host = self.host
        yield self.context_s
        host.post(ContextReady(context_s=self.context_s))
        yield host.begun
        assert host.generation is not None
        generation = host.generation
        self.progress = Progress(me=host.me, generation=generation, ledger=ledger_of(host.plan))
        host.adopt_progress(self.progress)
        self.joining = not (generation.founding or generation.mended)
        self.state = int(generation.founding and generation.source == host.me)
        try:
            if generation.founding:
                yield from self._sync()
            elif generation.mended:
                yield from self._compare()
        except Broken as broken:
            yield from self._recover(broken)
        how = yield from self._epochs()
        if how is How.OVER:
            host.post(JobOver(step=self.progress.step))
        yield host.may_go
        host.exit(0, how.value)

    def _epochs(self) -> Generator[Wait, None, How]:
        host, plan = self.host, self.host.plan
        while not self.progress.ledger.job_over():
            how = yield from self._loop()
            if how is How.QUIT:
                # The script leaves its epochs early: what was left of them stays unused.
                ledger = self.progress.ledger
                host.history.broken_epochs |= set(range(ledger.epoch, ledger.epochs))
                break
            if how is not How.CLOSED:
                return how
            for call in range(plan.reduces):
                yield from self._all_reduce(call + 1)
        yield from self._act(Kind.END)
        return How.OVER

    def _sync(self) -> Generator[Wait, None, None]:
        """The founders take the first leader's state."""
        generation = self.progress.generation
        state = (self.progress.snapshot(), self.model)
        exchange = self.host.group(generation).put("sync", self.host.me, state)
        yield from self._completed(exchange)
        snapshot, self.model = exchange.values[generation.source]
        self.progress.adopt(snapshot)
        self.state = 1

    # -- one loop over an epoch ------------------------------------------------------------

    def _loop(self) -> Generator[Wait, None, How]:
        progress, done = self.progress, 0
        while True:
            if done and self._strikes(self.host.plan.breaks):
                return (yield from self._close())
            if done and self._strikes(self.host.plan.quits):
                return How.QUIT
            self.step_began = self.host.now()
            records: tuple[StepRecord, ...] = ()
            before = progress.step
            try:
                how, records = yield from self._attempt(first=not done)
            except Broken as broken:
                committed = progress.step > before  # and what broke was the parting after it
                found = yield from self._recover(broken)
                how = None if found.result is None else self._closed(found.result)
                if how is None and not (committed or found.committed):
                    continue
            done += 1
            if how is not None:
                return how
            if progress.ledger.epoch_over():
                return (yield from self._close())
            verdict = progress.verdict(records)
            if (verdict.leave or verdict.switch_to) and not self._switch(verdict):
                return How.LEFT

    def _attempt(
        self, *, first: bool
    ) -> Generator[Wait, None, tuple[How | None, tuple[StepRecord, ...]]]:
        """One step, in whatever generation this worker is."""
        progress = self.progress
        part = None if self.joining else progress.plan()
        launched = self._launch(Kind.JOIN if self.joining else Kind.STEP, part)
        if first and not self.joining:
            # A loop's first round is waited for in the present generation: what was
            # announced meanwhile happens here.
            yield from self._completed(launched)
            records = self._records(launched)
            if progress.judge(records).go:
                verdict = progress.verdict(records)
                if verdict.leave or verdict.switch_to:
                    if not self._switch(verdict):
                        return How.LEFT, records
                    part = progress.plan()
                    launched = self._launch(Kind.STEP, part)
        yield from self._compute()
        yield from self._completed(launched)
        records = self._records(launched)
        if self.joining:
            self.host.post(RoundJoined(generation=progress.generation.number))
            self._take_state(launched)
            part, self.joining = progress.plan(), False
        judged = progress.judge(records)
        if not judged.go:
            return self._closed(judged.ended), records
        assert part is not None
        indexes = indexes_of(progress.ledger, part.part)
        number, step = progress.generation.number, progress.step
        self.host.history.tried.append(
            Tried(self.host.me, number, step, progress.ledger.epoch, indexes)
        )
        group = self.host.group(progress.generation)
        reduced = group.put("reduce", self.host.me, gradient(indexes))
        yield from self._completed(reduced)
        yield from self.farewell.said()
        entering = progress.entering
        self._commit(judged, sum(reduced.values.values()), indexes, records)
        stops = not progress.ledger.epoch_over() and progress.verdict(records).stop
        left = False
        if entering and progress.generation.leaving and not stops:
            left = yield from self.farewell.say(progress)
        return How.LEFT if left else None, records

    def _compute(self) -> Generator[Wait, None, None]:
        host, plan = self.host, self.host.plan
        pause = plan.pauses.get(self.progress.step)
        if pause and not self.joining and self._chosen(pause[0]):
            yield pause[1]
        yield host.jitter(plan.step_s)

    def _commit(
        self,
        judged: Round,
        total: int,
        indexes: tuple[int, ...],
        records: tuple[StepRecord, ...],
    ) -> None:
        host, progress = self.host, self.progress
        self._tell_news()
        step, epoch, entering = progress.step, progress.ledger.epoch, progress.entering
        before, self.model = self.model, updated(self.model, total)
        progress.commit(judged)
        drifts = host.plan.drifts.get(progress.step)
        if drifts is not None and self._chosen(drifts):
            self.model = (self.model[0] + 1, self.model[1])
            host.history.drifted.append((host.me, progress.generation.number, progress.step))
        if progress.generation.size > 1:
            self.check.boundary(progress.step, everything=judged.check)
        else:
            self.check.reset()
        self.carried = len(indexes)
        self.state, self.acts, self.last_act = 1, 0, None
        host.history.commits.append(
            Committed(
                worker=host.me,
                generation=progress.generation.number,
                step=step,
                epoch=epoch,
                indexes=indexes,
                weight=judged.weight(host.me),
                before=before,
                after=self.model,
                time=host.now(),
            )
        )
        host.post(
            StepCommitted(
                step=progress.step,
                epoch=epoch,
                epochs=progress.ledger.epochs,
                batch=progress.ledger.batch,
                samples=sum(judged.samples.values()),
                duration_s=host.now() - self.step_began,
                records=records,
                report={},
                weights=dict(progress.ledger.weights),
            )
        )
        number = progress.generation.number
        if entering and (progress.generation.newcomers or progress.generation.leaving):
            host.post(Settled(generation=number))
        entered = Entered(
            generation=number, step=step, transfer_s=0.0, transfer_bytes=0, stop_s=0.0
        )
        if entering and host.plan.entered_late and host.me not in progress.generation.leaving:
            self._news = entered
        elif entering and not progress.generation.leaving:
            host.post(entered)
        elif entering and host.me not in progress.generation.leaving:
            self.farewell.news = entered

    def _tell_news(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            self.host.post(news)

    # -- boundaries ------------------------------------------------------------------------

    def _switch(self, verdict: Verdict) -> bool:
        """Move to the next generation; False: this worker is not in it."""
        progress, target = self.progress, verdict.switch_to
        number = target.number if target is not None else STOP
        here = progress.generation.number
        self.host.history.moves.append(Moved(self.host.me, here, number, progress.step))
        self.host.post(SwitchDecided(generation=number, step=progress.step))
        if verdict.leave or target is None:
            self._tell_news()
            return False
        progress.enter(target)
        return True

    def _close(self) -> Generator[Wait, None, How]:
        """This worker's loop is over, by its end or by a `break`."""
        ended = yield from self._act(Kind.CLOSE)
        return How.OVER if ended else How.CLOSED

    def _act(self, kind: Kind) -> Generator[Wait, None, bool]:
        """A closing round, done again among survivors unless one has completed it."""
        while True:
            try:
                launched = self._launch(kind, None)
                yield from self._completed(launched)
                yield from self.farewell.said()
                result: bool = self.progress.judge(self._records(launched)).ended
            except Broken as broken:
                found = yield from self._recover(broken)
                if found.result is None:
                    continue
                result = found.result
            return self._closed(result) is How.OVER

    def _closed(self, ended: bool) -> How:
        """Everybody's loop is over, or everybody's job."""
        self._did(ended)
        self._tell_news()
        if ended:
            return How.OVER
        ledger = self.progress.ledger
        if not ledger.epoch_over():
            self.host.history.broken_epochs.add(ledger.epoch)
        self.progress.close()
        return How.CLOSED

    def _all_reduce(self, call: int) -> Generator[Wait, None, None]:
        """The script's own reduction; its result decides, so it must be the same everywhere."""
        host, progress = self.host, self.progress
        place = (progress.step, self.acts)
        while True:
            try:
                launched = self._launch(Kind.REDUCE, None, call)
                yield from self._completed(launched)
                progress.judge(self._records(launched))
                mine = (progress.generation.number, host.me)
                shared = host.group(progress.generation).put("value", host.me, mine)
                yield from self._completed(shared)
                yield from self.farewell.said()
                result = tuple(shared.values[w] for w in progress.generation.workers())
            except Broken as broken:
                found = yield from self._recover(broken)
                if found.result is None:
                    continue
                result = found.result
            self._did(result)
            number = progress.generation.number
            host.history.reduced.setdefault(place, {})[host.me] = (number, result)
            return

    def _did(self, result: Any) -> None:
        self.acts += 1
        self.last_act = result

    def _take_state(self, launched: Exchange) -> None:
        """A newcomer becomes what the source was at the boundary."""
        line: Line = launched.values[self.progress.generation.source]
        assert line.snapshot is not None, "the source sent no state"
        self.progress.adopt(line.snapshot)
        self.model = line.model

    # -- when a collective breaks ------------------------------------------------------------

    def _recover(self, broken: Broken) -> Generator[Wait, None, Found]:
        """Wait for the survivors' generation, and become what the most advanced of them is."""
        host = self.host
        self.farewell.forget()
        self.check.reset()
        self._news = None
        while True:
            here = self.progress.generation.number
            host.post(Broke(generation=here, why=str(broken)))
            yield host.begun_after(here)
            assert host.generation is not None
            assert host.generation.mended, "only survivors go on after a failure"
            self.progress.enter(host.generation)
            try:
                return (yield from self._compare())
            except Broken as again:
                broken = again

    def _compare(self) -> Generator[Wait, None, Found]:
        """The first act in a mended generation: who is how far, and who needs what."""
        host, progress = self.host, self.progress
        group, me = host.group(progress.generation), progress.generation.rank(host.me)
        mine = Position(state=self.state, step=progress.step, calls=0, acts=self.acts)
        said = group.put("position", host.me, mine.pack())
        yield from self._completed(said)
        positions = [Position.unpack(said.values[w]) for w in progress.generation.workers()]
        found = compare(positions)
        self.joining = False
        if not found.behind and not found.late:
            return Found()
        state = (progress.snapshot(), self.model, self.acts, self.last_act)
        sent = group.put("state", host.me, state)
        yield from self._completed(sent)
        source = progress.generation.workers()[found.source]
        snapshot, model, acts, last_act = sent.values[source]
        if me in found.behind:
            host.history.adopted.append((host.me, progress.step, snapshot["step"]))
            progress.adopt(snapshot)
            self.model, self.state, self.acts, self.last_act = model, 1, acts, last_act
            return Found(committed=positions[me].step < positions[found.source].step)
        self.state = 1
        return Found(result=last_act) if me in found.late else Found()

    # -- rounds ----------------------------------------------------------------------------

    def _completed(self, exchange: Exchange) -> Generator[Wait, None, None]:
        yield exchange
        if exchange.broken:
            raise Broken(exchange.broken)

    def _launch(self, kind: Kind, part: StepPlan | None, detail: int = 0) -> Exchange:
        host, progress = self.host, self.progress
        if self._strikes(host.plan.wishes) and not self.joining:
            self.wish = 1
        word = host.word
        said = word.generation != 0
        settings_digest, state_digest = self._digests_for(kind)
        record = StepRecord(
            kind=kind,
            step=progress.step,
            samples=part.count if part else 0,
            want=progress.step % 3,
            back=0,
            compute_us=self._computed_us(),
            leaving=self.wish,
            ahead=0,
            next_generation=word.generation if said else 0,
            switch_step=word.switch_step if said else 0,
            token=word.token if said or word.weighing else 0,
            detail=detail,
            weighing=word.weighing,
            settings_digest=settings_digest,
            state_digest=state_digest,
        )
        sends = progress.entering and progress.generation.source == host.me
        snapshot = progress.snapshot() if sends else None
        line = Line(pack(record), snapshot, self.model)
        return host.group(progress.generation).put("round", host.me, line)

    def _digests_for(self, kind: Kind) -> tuple[int, int]:
        if self.progress.generation.size > 1 and kind == Kind.STEP:
            return self.check.in_step(self.progress.step)
        if self.progress.generation.size > 1 and kind == Kind.CLOSE:
            return self.check.at_end(self.progress.step)
        return 0, 0

    def _computed_us(self) -> int:
        """What the record tells of the last step. Without slow workers, the same for all."""
        plan, me = self.host.plan, self.host.me
        if not plan.slow:
            return int(plan.step_s * 1e6)
        return int(1000 * self.carried * plan.slow.get(me, 1.0))

    def _records(self, launched: Exchange) -> tuple[StepRecord, ...]:
        """The same tuple for everybody, as everybody sees the same round."""
        seen: Any = launched.values.get(WorkerId(""))
        if seen is None:
            lines = launched.values.values()
            seen = tuple(unpack(line.values) for line in lines)
            launched.values[WorkerId("")] = seen
            self.host.history.rounds.append(Gathered(self.progress.generation, seen))
        found: tuple[StepRecord, ...] = seen
        return found

    def _strikes(self, whom: dict[int, int]) -> bool:
        chosen = whom.get(self.progress.step)
        return chosen is not None and self._chosen(chosen)

    def _chosen(self, number: int) -> bool:
        generation = self.progress.generation
        return generation.workers()[number % generation.size] == self.host.me
