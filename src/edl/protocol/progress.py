"""How far this worker is, and what a round of records means for it.

The training thread's own machine: it plans a step, judges the round that opened it, and commits
it. Everything here is a function of records that everyone saw, so every worker of a generation
comes to the same verdict at the same step. Holds: a switch announced in the record of step t-1
happens at t for everybody; who is `leaving` in a generation is out of it after its first committed
step; a step in which anyone left the loop counts for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.errors import UsageError
from edl.protocol.divergence import Divergence, find_divergence
from edl.protocol.drawing import DrawnLedger
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.record import (
    STOP,
    Announcement,
    Kind,
    StepRecord,
    Weighing,
    loudest,
    weighing_of,
)
from edl.protocol.shards import Piece, ShardLedger, ShardPart, common
from edl.protocol.topology import FULL, Generation
from edl.types import WorkerId

__all__ = ["Ledger", "Progress", "Round", "StepPlan", "Switch", "Verdict"]


Ledger = MapLedger | ShardLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One worker's part in one step."""

    step: int
    generation: int
    rank: int
    size: int
    part: Slice | ShardPart | None  # None: no share in this step; a stand-in batch is run instead
    total: int

    @property
    def count(self) -> int:
        return self.part.count if self.part is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round of records says: go on, or the loop (or the job) is over."""

    go: bool
    closed: bool
    ended: bool
    samples: dict[WorkerId, int]
    wanted: Mapping[WorkerId, int] = field(default_factory=dict)
    back: Mapping[WorkerId, int] = field(default_factory=dict)
    weighing: Weighing | None = None  # a change of shares, for the next step
    told: int = 0  # the largest batch that a pipeline made by itself, stand-ins included
    diverged: tuple[Divergence, ...] = ()  # replicas that are not equal, by their digests
    check: bool = False  # everything is digested at the boundary after this step

    def weight(self, worker: WorkerId) -> float:
        """This worker's part of the step's gradient."""
        total = sum(self.samples.values())
        return self.samples.get(worker, 0) / total if total else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A change of generation that is announced, and the first step in it."""

    step: int
    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happens at the boundary after a committed step."""

    switch_to: Generation | None = None
    leave: bool = False
    stop: bool = False


class Progress:
    """Step, generation and ledger of one worker."""

    def __init__(
        self, *, me: WorkerId, generation: Generation, ledger: Ledger, step: int = 0
    ) -> None:
        self.me = me
        # The ledger as of the last commit. A generation in which nothing was committed leaves no
        # trace in it: survivors that moved through one hold what the others hold.
        self._settled: Ledger = ledger
        self.ledger: Ledger = ledger
        self.step = step
        self.ended = False
        self.passed: list[Piece] = []  # this worker's, that flowed by in steps that did not count
        self.back = 0  # how many of them are at the front of its queue
        self.announced: Switch | None = None  # what the last round announced for later
        self._prepared: dict[int, Generation] = {}
        self.generation: Generation = generation
        self._take_place(generation)

    # -- generations -----------------------------------------------------------------------

    def prepare(self, generation: Generation) -> None:
        """A later generation whose group stands ready."""
        self._prepared[generation.number] = generation

    def withdraw(self, number: int) -> None:
        """A prepared generation that will not be."""
        self._prepared.pop(number, None)

    def verdict(self, records: Sequence[StepRecord]) -> Verdict:
        """What the latest round announces for the step that comes next."""
        word = loudest(records)
        coming = self._prepared.get(word.generation) if word is not None else None
        self.announced = None
        if word is not None and coming is not None and coming.number > self.generation.number:
            self.announced = Switch(step=word.switch_step, generation=coming)
        if word is None or word.switch_step > self.step:
            return Verdict()
        if word.generation == STOP:
            return Verdict(stop=True, leave=True)
        if word.generation <= self.generation.number:
            return Verdict()
        target = self._announced(word)
        return Verdict(switch_to=target, leave=self.me not in target)

    def enter(self, generation: Generation) -> None:
        """Move to a generation; the next step is its first."""
        self._take_place(generation)
        for number in [n for n in self._prepared if n <= generation.number]:
            del self._prepared[number]

    def settle(self) -> None:
        """The first step is committed: who stayed for it only is gone, and hands back its data."""
        assert not self.entering
        settled = self.generation = self.generation.settled()
        self._workers = settled.workers()
        self.ledger = self._settled.entered(self._workers)

    def _take_place(self, generation: Generation) -> None:
        # Drawn once per generation: a thousand members are too many to list at every step.
        self.generation = generation
        self.entering = True  # the next step is the first one of this generation
        self._workers = generation.workers()
        self._first_carriers = generation.carriers(entering=True)
        self.ledger = self._settled.entered(self._workers)

    def _announced(self, word: Announcement) -> Generation:
        target = self._prepared.get(word.generation)
        if target is None:
            raise AssertionError(
                f"generation {word.generation} is announced for step {word.switch_step} "
                f"but {self.me} never prepared it (has {sorted(self._prepared)})"
            )
        return target

    # -- steps -----------------------------------------------------------------------------

    @property
    def carriers(self) -> Sequence[WorkerId]:
        """Who has a share in the next step, by the present generation."""
        return self._first_carriers if self.entering else self._workers

    def plan(self) -> StepPlan:
        """This worker's part of the next step, by the present generation."""
        carriers = self.carriers
        part: Slice | ShardPart | None = None
        if isinstance(self.ledger, DrawnLedger):
            self.ledger = self.ledger.provided(carriers)
            self.back = common(self.passed, self.ledger.queue_of(self.me))
            if self.me in carriers:
                part = self.ledger.slice_of(self.me, carriers, back=self.back)
        elif self.me in carriers:
            part = self.ledger.slice_of(self.me, carriers)
        return StepPlan(
            step=self.step,
            generation=self.generation.number,
            rank=self._workers.index(self.me),
            size=len(self._workers),
            part=part if part is not None and part.count else None,
            total=self.ledger.step_size(),
        )

    def judge(self, records: Sequence[StepRecord]) -> Round:
        """What a round means. Mixed rounds are the script's doing; they never hang anyone."""
        by = dict(zip(self._workers, records, strict=True))
        samples = {worker: record.samples for worker, record in by.items()}
        asides: dict[str, Any] = {
            "weighing": weighing_of(records),
            "diverged": find_divergence(by),
            "check": any(record.check for record in records),
        }
        if isinstance(self.ledger, DrawnLedger):
            asides["wanted"] = {worker: record.want for worker, record in by.items() if record.want}
            asides["back"] = {worker: record.back for worker, record in by.items() if record.back}
        said = {(record.kind, record.step) for record in records}
        if said == {(Kind.STEP, self.step)}:
            return Round(go=True, closed=False, ended=False, samples=samples, **asides)
        kinds = {kind for kind, _ in said}
        ended, closed = Kind.END in kinds, Kind.CLOSE in kinds
        if kinds & {Kind.REDUCE, Kind.COUNT} and len(kinds) > 1:
            raise UsageError(self._mixed(records))
        if Kind.REDUCE in kinds and len({(r.detail, r.step) for r in records}) > 1:
            raise UsageError(self._mixed(records))
        for kind, step in said:
            if kind == Kind.STEP and step != self.step:
                raise AssertionError(f"{self.me} is at step {self.step}, a peer at {step}")
        return Round(
            go=not (ended or closed), closed=closed, ended=ended, samples=samples, **asides
        )

    def commit(self, decided: Round) -> None:
        """The step is done here: gradients and records are complete."""
        ledger = self.ledger
        if isinstance(ledger, DrawnLedger):
            self._settled = self.ledger = ledger.committed(
                decided.samples, wanted=decided.wanted, back=decided.back, told=decided.told
            )
        else:
            self._settled = self.ledger = ledger.committed(decided.samples)
        word = decided.weighing
        if word is not None and word.generation == self.generation.number:
            worker = self._workers[word.rank]
            if dict(self._settled.weights).get(worker, FULL) != word.weight:
                self._settled = self.ledger = self._settled.weighed(worker, word.weight)
        self.step, self.back, self.passed = self.step + 1, 0, []
        self.entering = False

    def close(self) -> None:
        """The loop over this epoch is over, by its end or by a `break`."""
        self._settled = self.ledger = self.ledger.next_epoch()

    def _mixed(self, records: Sequence[StepRecord]) -> str:
        said = ", ".join(
            f"{w} {Kind(r.kind).name.lower()} at step {r.step}"
            for w, r in zip(self.generation.workers(), records, strict=True)
        )
        return (
            f"workers called different things at the same point ({said}); every worker must "
            "call edl.all_reduce with the same shape, dtype and op, and equally often, and "
            "notify_batch_end with samples= or without it"
        )

    # -- what a newcomer receives -----------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """Step and ledger as plain values, as of the last commit."""
        return {"step": self.step, **self._settled.snapshot()}

    def adopt(self, values: dict[str, Any]) -> None:
        """Take over the source's step and ledger; the dataset must be the same one."""
        theirs: Ledger = self.ledger.like(values)
        self._settled = theirs
        self.ledger = theirs.entered(self._workers)
        if values["step"] != self.step:
            self.passed = []
        self.step = values["step"]
