"""The fake model and its data: two integers whose update depends on every sample of a step.

Replicas can be compared exactly, and a step can be checked against the samples that made it; the
second integer stands for an optimizer's state.
"""

from __future__ import annotations

from itertools import accumulate

from edl.protocol.drawing import DrawnLedger
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.shards import ShardLedger, ShardPart
from tests.seeded.plan import Plan

__all__ = ["gradient", "indexes_of", "ledger_of", "updated"]

_PRIME = 2_147_483_647


def updated(model: tuple[int, int], indexes_sum: int) -> tuple[int, int]:
    """One optimizer step of the fake model."""
    weights, momentum = model
    momentum = (momentum * 48_271 + indexes_sum) % _PRIME
    return (weights * 69_621 + momentum + 1) % _PRIME, momentum


def gradient(indexes: tuple[int, ...]) -> int:
    return sum((index + 1) * (index + 17) for index in indexes)


def ledger_of(plan: Plan) -> MapLedger | ShardLedger:
    """The data of a plan's job."""
    if plan.shards and plan.seed % 2:
        return DrawnLedger.prepared(
            plan.shards,
            batch=plan.batch,
            seed=plan.seed,
            epochs=plan.epochs,
            shuffle=True,
            ahead=0,
        )
    if plan.shards:
        return ShardLedger.opened(plan.shards, batch=plan.batch, seed=plan.seed, epochs=plan.epochs)
    return MapLedger(
        samples=plan.samples,
        batch=plan.batch,
        seed=plan.seed,
        shuffle=plan.shuffle,
        drop_last=plan.drop_last,
        epochs=plan.epochs,
    )


def indexes_of(ledger: MapLedger | ShardLedger, part: Slice | ShardPart | None) -> tuple[int, ...]:
    """The samples of a part: the dataset's indexes, counted through all partitions."""
    if isinstance(part, Slice) and isinstance(ledger, MapLedger):
        return tuple(ledger.indexes(part))
    if isinstance(part, ShardPart) and isinstance(ledger, ShardLedger):
        starts = [0, *accumulate(ledger.table.lengths)]
        return tuple(
            starts[piece.partition] + piece.offset + index
            for piece in part.pieces
            for index in range(piece.length)
        )
    return ()
