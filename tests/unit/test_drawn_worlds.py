"""Pipelines of several workers over one ledger, while steps break and workers come and go.

Each world is a seed. What a worker's loop is given must be what the ledger says that it uses.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from edl.protocol.drawing import DrawnLedger
from edl.protocol.progress import StepPlan
from edl.protocol.shards import Piece, amount, common
from edl.runtime.drawing import Drawing
from edl.runtime.partitions import Partition
from edl.runtime.shards import Rows
from edl.types import WorkerId

SAMPLES, BATCH, STEPS = 103, 10, 120
PARTITIONS = [Partition("file", at, min(8, SAMPLES - at)) for at in range(0, SAMPLES, 8)]


def samples_of(pieces: list[Piece] | tuple[Piece, ...]) -> list[int]:
    return [
        PARTITIONS[piece.partition].offset + piece.offset + index
        for piece in pieces
        for index in range(piece.length)
    ]


class Side:
    """One worker: its pipeline, and what it knows."""

    def __init__(self, me: WorkerId, *, ahead: int) -> None:
        self.me = me
        self.drawing = Drawing(PARTITIONS, ahead=ahead)
        self.progress: Any = SimpleNamespace(me=me, ledger=None, back=0, passed=[])
        session: Any = SimpleNamespace(progress=self.progress)
        self.line = self.pipeline()
        self.rows = Rows(session, self.drawing, self.line)
        self.fetched: list[int] = []

    @property
    def passed(self) -> list[Piece]:
        return list(self.progress.passed)

    def fetch(self, samples: int) -> None:
        """The pipeline runs ahead of the loop."""
        while len(self.fetched) < samples:
            self.fetched.append(next(self.line))

    def foresee(self, ledger: DrawnLedger, members: list[WorkerId]) -> None:
        self.progress.ledger, self.progress.carriers = ledger, members
        self.drawing.foresee(self.progress)

    def pipeline(self) -> Iterator[int]:
        while (shard := self.drawing.draw()) is not None:
            yield from range(shard.offset, shard.offset + shard.length)


@dataclass(frozen=True)
class Taken:
    """What one worker used in a step, and what only flowed by."""

    used: list[Piece]
    passed: list[Piece]
    back: int


def led(side: Side, ledger: DrawnLedger, carriers: list[WorkerId], step: int) -> Taken:
    """The step of a loop over batches()."""
    side.progress.ledger = ledger
    part = ledger.slice_of(side.me, carriers) if side.me in carriers else None
    part = part if part is not None and part.count else None
    plan = StepPlan(step=step, generation=1, rank=0, size=1, part=part, total=0)
    rows = side.rows.fetch(plan, 0, plan.count)
    assert rows
    assert part is None or rows == samples_of(part.pieces)
    return Taken(list(part.pieces) if part else [], [], 0)


def own(side: Side, ledger: DrawnLedger, carriers: list[WorkerId], size: int) -> Taken:
    """The step of a loop whose pipeline makes batches of its own."""
    back = common(side.passed, ledger.queue_of(side.me))
    part = ledger.slice_of(side.me, carriers, back=back) if side.me in carriers else None
    part = part if part is not None and part.count else None
    plan = StepPlan(step=0, generation=1, rank=0, size=1, part=part, total=0)
    side.progress.ledger, side.progress.back = ledger, back
    plan = side.drawing.opened(plan, side.progress)
    side.fetch(size)
    rows, side.fetched = side.fetched[:size], side.fetched[size:]
    used, passed = side.drawing.flowed(size)
    if not plan.count:
        used, passed = [], used + passed
    assert rows[: min(plan.count, size)] == samples_of(used)
    return Taken(used, passed, back)


def run_world(seed: int, *, batch: int) -> int:
    """Returns how many epochs were used up."""
    rng = random.Random(seed)
    names = iter(WorkerId(f"w{number}") for number in range(10_000))
    ahead = 0 if batch else 64
    sides = {name: Side(name, ahead=ahead) for name in (next(names) for _ in range(3))}
    settled = DrawnLedger.prepared(
        [part.length for part in PARTITIONS],
        batch=batch,
        seed=seed,
        epochs=0,
        shuffle=True,
        ahead=ahead,
    )
    ledger, step, epochs = settled.entered(list(sides)), 0, 0
    used: list[int] = []
    newcomers: list[WorkerId] = []
    for _ in range(STEPS):
        if ledger.epoch_over():
            assert sorted(used) == list(range(SAMPLES))
            used, epochs = [], epochs + 1
            settled = ledger = ledger.next_epoch()
        carriers = [name for name in sides if name not in newcomers] or list(sides)
        ledger = ledger.provided(carriers)
        size = rng.randint(2, 5)
        taken = {
            name: led(side, ledger, carriers, step) if batch else own(side, ledger, carriers, size)
            for name, side in sides.items()
        }
        chance = rng.random()
        if chance < 0.15 and len(sides) - len(newcomers) > 1:
            # A worker is lost within the step, and newcomers without a step with it.
            lost = rng.choice([name for name in sides if name not in newcomers])
            for name in [lost, *newcomers]:
                del sides[name]
            for name, side in sides.items():
                side.progress.passed += taken[name].used + taken[name].passed
            ledger, newcomers = settled.entered(list(sides)), []
            continue
        for each in taken.values():
            used += samples_of(each.used)
        settled = ledger = ledger.committed(
            {name: amount(each.used) for name, each in taken.items()},
            wanted={name: side.drawing.want() for name, side in sides.items()},
            back={name: each.back for name, each in taken.items()},
            told=0 if batch else size,
        )
        for name, side in sides.items():
            side.progress.passed = taken[name].passed
            if not batch and not ledger.epoch_over():
                side.foresee(ledger, list(sides))
                side.fetch(rng.randint(0, 6))
        step, newcomers = step + 1, []
        if chance > 0.85 and len(sides) < 6:
            if len(sides) > 1 and rng.random() < 0.5:
                del sides[rng.choice(list(sides))]
            newcomers = [next(names) for _ in range(rng.randint(1, 2))]
            sides |= {name: Side(name, ahead=ahead) for name in newcomers}
            ledger = settled.entered(list(sides))
    return epochs


@pytest.mark.parametrize("batch", [BATCH, 0])
def test_loops_get_what_the_ledger_says_that_they_use(batch: int) -> None:
    assert sum(run_world(seed, batch=batch) for seed in range(12)) > 12


def steps_of_epochs(*, batch: int, epochs: int) -> list[int]:
    """Two workers, nobody comes or goes, batches of 4 where the pipelines make them."""
    names = [WorkerId("w0"), WorkerId("w1")]
    sides = {name: Side(name, ahead=0 if batch else 4096) for name in names}
    ledger = DrawnLedger.prepared(
        [part.length for part in PARTITIONS],
        batch=batch,
        seed=0,
        epochs=0,
        shuffle=True,
        ahead=0 if batch else 4096,
    ).entered(names)
    counts, step = [0] * epochs, 0
    while ledger.epoch < epochs:
        ledger = ledger.provided(names)
        taken = {
            name: led(side, ledger, names, step) if batch else own(side, ledger, names, 4)
            for name, side in sides.items()
        }
        counts[ledger.epoch] += 1
        step += 1
        ledger = ledger.committed(
            {name: amount(each.used) for name, each in taken.items()},
            wanted={name: side.drawing.want() for name, side in sides.items()},
            back={name: each.back for name, each in taken.items()},
            told=0 if batch else 4,
        )
        if ledger.epoch_over():
            ledger = ledger.next_epoch()
    return counts


def test_nobody_is_given_what_others_will_lack() -> None:
    assert steps_of_epochs(batch=BATCH, epochs=3) == [-(-SAMPLES // BATCH)] * 3
    # At best 13, with batches of 4 from both.
    assert all(count <= 15 for count in steps_of_epochs(batch=0, epochs=4))
