"""The training thread of one fake worker, as a script: it yields what it waits for.

The model is two integers whose update depends on every sample of a step, so that replicas can be
compared exactly; the second one stands for an optimizer's state.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any, Protocol

from edl.protocol.effects import Announce
from edl.protocol.events import (
    ContextReady,
    Entered,
    Event,
    JobOver,
    StepCommitted,
    SwitchDecided,
)
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.progress import Progress, Round, StepPlan, Verdict
from edl.protocol.record import STOP, Kind, StepRecord, pack, unpack
from edl.protocol.shards import ShardLedger, ShardPart
from edl.protocol.topology import Generation
from edl.types import WorkerId
from tests.seeded.collective import Collective, Exchange, Gate
from tests.seeded.history import Committed, Gathered, History, Moved
from tests.seeded.plan import Plan

__all__ = ["Host", "Trainer", "Wait", "gradient", "updated"]

Wait = float | Gate
_PRIME = 2_147_483_647


def updated(model: tuple[int, int], indexes_sum: int) -> tuple[int, int]:
    """One optimizer step of the fake model."""
    weights, momentum = model
    momentum = (momentum * 48_271 + indexes_sum) % _PRIME
    return (weights * 69_621 + momentum + 1) % _PRIME, momentum


def gradient(indexes: tuple[int, ...]) -> int:
    return sum((index + 1) * (index + 17) for index in indexes)


def indexes_of(ledger: MapLedger | ShardLedger, part: Slice | ShardPart | None) -> tuple[int, ...]:
    """The samples of a part: the dataset's indexes, counted through all partitions."""
    if isinstance(part, Slice) and isinstance(ledger, MapLedger):
        return tuple(ledger.indexes(part))
    if isinstance(part, ShardPart) and isinstance(ledger, ShardLedger):
        starts = [0, *accumulate(ledger.lengths)]
        return tuple(
            starts[piece.partition] + piece.offset + index
            for piece in part.pieces
            for index in range(piece.length)
        )
    return ()


class Host(Protocol):
    """What a training thread needs of its process."""

    me: WorkerId
    word: Announce
    begun: Gate
    may_go: Gate
    generation: Generation | None
    history: History
    plan: Plan

    def post(self, event: Event) -> None: ...

    def adopt_progress(self, progress: Progress) -> None: ...

    def group(self, generation: Generation) -> Collective: ...

    def jitter(self, mean: float) -> float: ...

    def now(self) -> float: ...

    def exit(self, status: int, why: str) -> None: ...


class How(Enum):
    """How a loop ended."""

    CLOSED = "closed"
    OVER = "over"
    LEFT = "left"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Line:
    """What one worker puts into a round: its record, and the state that a source sends beside."""

    values: list[int]
    snapshot: dict[str, Any] | None
    model: tuple[int, int]


class Trainer:
    """One script: prepare, begin, loop over the epochs, end."""

    def __init__(self, host: Host, *, context_s: float, first_model: int) -> None:
        self.host = host
        self.context_s = context_s
        self.model = (first_model, first_model + 1)
        self.progress: Progress
        self.wish = 0
        self.joining = False
        self.step_began = 0.0

    def run(self) -> Generator[Wait, None, None]:
        host, plan = self.host, self.host.plan
        yield self.context_s
        host.post(ContextReady(context_s=self.context_s))
        yield host.begun
        assert host.generation is not None
        self._begin(host.generation, plan)
        if host.generation.founding:
            yield from self._sync()
        else:
            self.joining = True
        while not self.progress.ledger.job_over():
            how = yield from self._loop()
            if how is How.QUIT:
                # The script leaves its epochs early: what was left of them stays unused.
                ledger = self.progress.ledger
                host.history.broken_epochs |= set(range(ledger.epoch, ledger.epochs))
                break
            if how is not How.CLOSED:
                yield from self._end(how)
                return
            for call in range(plan.reduces):
                records = yield from self._round(Kind.REDUCE, detail=call + 1)
                self.progress.judge(records)
        yield from self._round(Kind.END)
        yield from self._end(How.OVER)

    def _begin(self, generation: Generation, plan: Plan) -> None:
        ledger: MapLedger | ShardLedger = MapLedger(
            samples=plan.samples,
            batch=plan.batch,
            seed=plan.seed,
            shuffle=plan.shuffle,
            drop_last=plan.drop_last,
            epochs=plan.epochs,
        )
        if plan.shards:
            ledger = ShardLedger.opened(
                plan.shards, batch=plan.batch, seed=plan.seed, epochs=plan.epochs
            )
        self.progress = Progress(me=self.host.me, generation=generation, ledger=ledger)
        self.host.adopt_progress(self.progress)

    def _sync(self) -> Generator[Wait, None, None]:
        """The founders take the first leader's state."""
        generation = self.progress.generation
        state = (self.progress.snapshot(), self.model)
        exchange = self.host.group(generation).put("sync", self.host.me, state)
        yield exchange
        snapshot, self.model = exchange.values[generation.source]
        self.progress.adopt(snapshot)

    def _end(self, how: How) -> Generator[Wait, None, None]:
        if how is How.OVER:
            self.host.post(JobOver(step=self.progress.step))
        yield self.host.may_go
        self.host.exit(0, how.value)

    # -- one loop over an epoch ------------------------------------------------------------

    def _loop(self) -> Generator[Wait, None, How]:
        progress, done = self.progress, 0
        while True:
            if done and self._strikes(self.host.plan.breaks):
                return (yield from self._close())
            if done and self._strikes(self.host.plan.quits):
                return How.QUIT
            self.step_began = self.host.now()
            part = None if self.joining else progress.plan()
            launched = self._launch(Kind.JOIN if self.joining else Kind.STEP, part)
            if not done and not self.joining:
                # A loop's first round is waited for in the present generation: what was
                # announced meanwhile happens here.
                yield launched
                records = self._records(launched)
                if progress.judge(records).go:
                    verdict = progress.verdict(records)
                    if verdict.leave or verdict.switch_to:
                        if not self._switch(verdict):
                            return How.LEFT
                        part = progress.plan()
                        launched = self._launch(Kind.STEP, part)
            how, records = yield from self._step(launched, part)
            done += 1
            if how is not None:
                return how
            if progress.ledger.epoch_over():
                return (yield from self._close())
            verdict = progress.verdict(records)
            if (verdict.leave or verdict.switch_to) and not self._switch(verdict):
                return How.LEFT

    def _step(
        self, launched: Exchange, part: StepPlan | None
    ) -> Generator[Wait, None, tuple[How | None, tuple[StepRecord, ...]]]:
        progress = self.progress
        yield from self._compute()
        yield launched
        records = self._records(launched)
        if self.joining:
            self._take_state(launched)
            part, self.joining = progress.plan(), False
        judged = progress.judge(records)
        if judged.ended:
            return How.OVER, records
        if judged.closed:
            return self._closed(), records
        assert part is not None
        indexes = indexes_of(progress.ledger, part.part)
        group = self.host.group(progress.generation)
        reduced = group.put("reduce", self.host.me, gradient(indexes))
        yield reduced
        self._commit(judged, sum(reduced.values.values()), indexes, records)
        return None, records

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
        step, epoch, entering = progress.step, progress.ledger.epoch, progress.entering
        before, self.model = self.model, updated(self.model, total)
        progress.commit(judged)
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
            )
        )
        if entering:
            number = progress.generation.number
            host.post(
                Entered(generation=number, step=step, transfer_s=0.0, transfer_bytes=0, stop_s=0.0)
            )

    # -- boundaries ------------------------------------------------------------------------

    def _switch(self, verdict: Verdict) -> bool:
        """Move to the next generation; False: this worker is not in it."""
        progress, target = self.progress, verdict.switch_to
        number = target.number if target is not None else STOP
        here = progress.generation.number
        self.host.history.moves.append(Moved(self.host.me, here, number, progress.step))
        self.host.post(SwitchDecided(generation=number, step=progress.step))
        if verdict.leave or target is None:
            return False
        progress.enter(target)
        return True

    def _close(self) -> Generator[Wait, None, How]:
        """This worker's loop is over, by its end or by a `break`."""
        records = yield from self._round(Kind.CLOSE)
        if self.progress.judge(records).ended:
            return How.OVER
        return self._closed()

    def _closed(self) -> How:
        ledger = self.progress.ledger
        if not ledger.epoch_over():
            self.host.history.broken_epochs.add(ledger.epoch)
        self.progress.close()
        return How.CLOSED

    def _take_state(self, launched: Exchange) -> None:
        """A newcomer becomes what the source was at the boundary."""
        line: Line = launched.values[self.progress.generation.source]
        assert line.snapshot is not None, "the source sent no state"
        self.progress.adopt(line.snapshot)
        self.model = line.model

    # -- rounds ----------------------------------------------------------------------------

    def _round(self, kind: Kind, detail: int = 0) -> Generator[Wait, None, tuple[StepRecord, ...]]:
        launched = self._launch(kind, None, detail)
        yield launched
        return self._records(launched)

    def _launch(self, kind: Kind, part: StepPlan | None, detail: int = 0) -> Exchange:
        host, progress = self.host, self.progress
        if self._strikes(host.plan.wishes) and not self.joining:
            self.wish = 1
        word = host.word
        said = word.generation != 0
        record = StepRecord(
            kind=kind,
            step=progress.step,
            samples=part.count if part else 0,
            want=0,
            compute_us=int(host.plan.step_s * 1e6),
            leaving=self.wish,
            ahead=0,
            next_generation=word.generation if said else 0,
            switch_step=word.switch_step if said else 0,
            token=word.token if said else 0,
            detail=detail,
        )
        sends = progress.entering and progress.generation.source == host.me
        snapshot = progress.snapshot() if sends else None
        line = Line(pack(record), snapshot, self.model)
        return host.group(progress.generation).put("round", host.me, line)

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
