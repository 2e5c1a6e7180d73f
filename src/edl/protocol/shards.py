"""The ledger of partitioned data: who reads which ranges, as the paper's partitions.

Partitions are metadata: a path and how many samples it has. Each worker has a queue of ranges of
its own, so that it reads one partition from front to back; the next unassigned partition of the
epoch's order goes to whoever needs one, in rank order, and a leaver's unread rest goes first in
line. All of it is a function of committed records, so every worker holds the same queues. Holds:
every sample of an epoch is queued, free or used, and in exactly one of these.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from edl.protocol.ledger import Weights, check_same_data, weights_in, weights_of
from edl.protocol.permutation import Permutation
from edl.protocol.topology import split_among, weighed
from edl.types import WorkerId

__all__ = ["Piece", "ShardLedger", "ShardPart", "Table", "amount", "common", "cut"]


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Consecutive samples of one partition."""

    partition: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPart:
    """One worker's part of one step."""

    epoch: int
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        return sum(piece.length for piece in self.pieces)


class Table:
    """How many samples each partition has. One for all ledgers of a job: a ledger changes at every
    step, this never does, and there may be a million partitions. Equal tables have one digest."""

    __slots__ = ("digest", "lengths", "samples")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = array("q", lengths)
        self.samples = sum(self.lengths)
        self.digest = hashlib.sha256(self.lengths.tobytes()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Table({len(self.lengths)} partitions, {self.samples} samples)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLedger:
    """Queues, free ranges and position in one epoch. Immutable: a commit makes the next one."""

    table: Table
    batch: int
    seed: int
    shuffle: bool  # the order of partitions; each is read from front to back
    epochs: int
    untouched: int  # samples of the partitions that nobody has been handed
    epoch: int = 0
    handed: int = 0  # partitions of the epoch's order that have left the free list
    returned: tuple[Piece, ...] = ()  # first in line
    queues: tuple[tuple[WorkerId, tuple[Piece, ...]], ...] = ()
    weights: Weights = ()  # of those that carry less than a full share

    @staticmethod
    def opened(
        lengths: Sequence[int], *, batch: int, seed: int, epochs: int, shuffle: bool = True
    ) -> ShardLedger:
        """The ledger at the start of the first epoch."""
        table = Table(lengths)
        return ShardLedger(
            table=table,
            batch=batch,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            untouched=table.samples,
        )

    # -- what every ledger tells -----------------------------------------------------------

    @property
    def samples(self) -> int:
        return self.table.samples

    def remaining(self) -> int:
        """Samples of this epoch that nobody has used yet."""
        queued = sum(amount(queue) for _, queue in self.queues)
        return queued + amount(self.returned) + self.untouched

    def job_over(self) -> bool:
        return bool(self.epochs) and self.epoch >= self.epochs

    def step_size(self) -> int:
        return min(self.batch, self.remaining())

    def epoch_over(self) -> bool:
        return self.remaining() == 0

    def parts(self, carriers: Sequence[WorkerId]) -> tuple[int, ...]:
        """How many samples of the next step each carrier should use."""
        return split_among(self.step_size(), carriers, self.weights)

    def slice_of(self, worker: WorkerId, carriers: Sequence[WorkerId]) -> ShardPart:
        """The front of a carrier's queue, as much as its share of the next step."""
        queues = dict(self._provided(carriers).queues)
        front, _ = cut(queues[worker], self.parts(carriers)[carriers.index(worker)])
        return ShardPart(epoch=self.epoch, pieces=front)

    def committed(self, used: Mapping[WorkerId, int]) -> ShardLedger:
        """The ledger after a step in which the fronts of the queues were used."""
        total = sum(used.values())
        if total != self.step_size():
            raise ValueError(
                f"a step used {total} samples where the ledger has {self.step_size()} "
                f"(epoch {self.epoch}, {self.remaining()} left)"
            )
        carriers = [worker for worker, count in used.items() if count]
        ready = self._provided(carriers)
        queues = tuple(
            (worker, cut(queue, used.get(worker, 0))[1]) for worker, queue in ready.queues
        )
        return replace(ready, queues=queues)

    def used_by(self, used: Mapping[WorkerId, int]) -> tuple[Piece, ...]:
        """What everybody together uses in the next step."""
        # In most steps, the front of the first range in each queue: then that is all of it.
        fronts = tuple(
            Piece(queue[0].partition, queue[0].offset, used[worker])
            for worker, queue in self.queues
            if queue and 0 < used.get(worker, 0) <= queue[0].length
        )
        if amount(fronts) == sum(used.values()):
            return fronts
        ready = self._provided([worker for worker, count in used.items() if count])
        return tuple(
            piece for worker, queue in ready.queues for piece in cut(queue, used.get(worker, 0))[0]
        )

    def entered(self, members: Sequence[WorkerId]) -> Self:
        """Another membership: what a leaver has not read goes first in line."""
        queues = dict(self.queues)
        back = [piece for worker, queue in self.queues if worker not in members for piece in queue]
        kept = tuple((worker, queues.get(worker, ())) for worker in members)
        weights = weights_of(members, self.weights)
        return replace(self, queues=kept, returned=(*back, *self.returned), weights=weights)

    def weighed(self, worker: WorkerId, weight: int) -> Self:
        """From the next step on this worker carries so many thousandths of a full share."""
        return replace(self, weights=weighed(self.weights, worker, weight))

    def next_epoch(self) -> Self:
        emptied = tuple((worker, ()) for worker, _ in self.queues)
        return replace(
            self,
            epoch=self.epoch + 1,
            untouched=self.samples,
            handed=0,
            returned=(),
            queues=emptied,
        )

    # -- handing out -----------------------------------------------------------------------

    def order(self) -> Permutation | range:
        """The epoch's order of partitions: a function of (seed, epoch) alone."""
        partitions = len(self.table.lengths)
        if not self.shuffle:
            return range(partitions)
        return _order(partitions, self.seed, self.epoch)

    def _provided(self, carriers: Sequence[WorkerId]) -> ShardLedger:
        """Everyone has what its next share takes: from the free list, else from the fullest."""
        shares = self.parts(carriers)
        held = dict(self.queues)
        if all(w in held and amount(held[w]) >= s for w, s in zip(carriers, shares, strict=True)):
            return self
        known = [worker for worker, _ in self.queues]
        queues = {worker: list(queue) for worker, queue in self.queues}
        for worker in carriers:
            queues.setdefault(worker, [])
        lengths, order = self.table.lengths, self.order()
        returned, handed, untouched = list(self.returned), self.handed, self.untouched
        for worker, share in zip(carriers, shares, strict=True):
            lacking = share - amount(queues[worker])
            while lacking > 0 and (returned or handed < len(lengths)):
                if returned:
                    piece = returned.pop(0)
                else:
                    partition = order[handed]
                    handed += 1
                    piece = Piece(partition, 0, lengths[partition])
                    untouched -= piece.length
                queues[worker].append(piece)
                lacking -= piece.length
        _level(queues, dict(zip(carriers, shares, strict=True)))
        names = [*known, *(worker for worker in carriers if worker not in known)]
        return replace(
            self,
            handed=handed,
            untouched=untouched,
            returned=tuple(returned),
            queues=tuple((worker, tuple(queues[worker])) for worker in names),
        )

    # -- as plain values -------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {
            "kind": "shards",
            "table": self.table.digest,
            "samples": self.samples,
            "batch": self.batch,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "epochs": self.epochs,
            "epoch": self.epoch,
            "untouched": self.untouched,
            "handed": self.handed,
            "returned": [_plain(piece) for piece in self.returned],
            "queues": [[worker, [_plain(p) for p in queue]] for worker, queue in self.queues],
            "weights": [list(pair) for pair in self.weights],
        }

    def like(self, values: Mapping[str, Any]) -> ShardLedger:
        """The ledger that these values are of; UsageError unless it is of the same data."""
        check_same_data(
            values,
            kind="shards",
            samples=self.samples,
            batch=self.batch,
            table=self.table.digest,
        )
        return self.restored(values, self.table)

    @staticmethod
    def restored(values: Mapping[str, Any], table: Table) -> ShardLedger:
        """`table`: the one that `values` names by its digest."""
        return ShardLedger(
            table=table,
            batch=values["batch"],
            seed=values["seed"],
            shuffle=bool(values["shuffle"]),
            epochs=values["epochs"],
            epoch=values["epoch"],
            untouched=values["untouched"],
            handed=values["handed"],
            returned=tuple(Piece(*piece) for piece in values["returned"]),
            queues=tuple(
                (WorkerId(worker), tuple(Piece(*piece) for piece in queue))
                for worker, queue in values["queues"]
            ),
            weights=weights_in(values),
        )


def _level(queues: dict[WorkerId, list[Piece]], shares: Mapping[WorkerId, int]) -> None:
    """Near an epoch's end the free list is empty: take from the tails of the fullest queues."""
    for worker, share in shares.items():
        lacking = share - amount(queues[worker])
        while lacking > 0:
            spare = {
                other: amount(queue) - shares.get(other, 0)
                for other, queue in queues.items()
                if other != worker
            }
            richest = max(sorted(spare), key=lambda other: spare[other])
            take = min(lacking, spare[richest])
            kept, tail = cut(queues[richest], amount(queues[richest]) - take)
            queues[richest] = list(kept)
            queues[worker].extend(tail)
            lacking -= take


def cut(queue: Sequence[Piece], count: int) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
    """The first `count` samples of a queue, and the rest."""
    front: list[Piece] = []
    rest = list(queue)
    while count > 0 and rest:
        piece = rest.pop(0)
        if piece.length > count:
            rest.insert(0, Piece(piece.partition, piece.offset + count, piece.length - count))
            piece = Piece(piece.partition, piece.offset, count)
        front.append(piece)
        count -= piece.length
    return tuple(front), tuple(rest)


def common(known: Iterable[Piece], queue: Sequence[Piece]) -> int:
    """How many samples at the front of a queue are those that are known, in the same order."""
    count, rest = 0, list(queue)
    for piece in known:
        offset, end = piece.offset, piece.offset + piece.length
        while offset < end:
            if not rest or (rest[0].partition, rest[0].offset) != (piece.partition, offset):
                return count
            length = min(end - offset, rest[0].length)
            _, rest[:1] = cut(rest[:1], length)
            offset, count = offset + length, count + length
    return count


@lru_cache(maxsize=4)
def _order(size: int, seed: int, epoch: int) -> Permutation:
    """Its keys are hashed once an epoch, and not whenever a partition is handed out."""
    return Permutation(size, seed=seed, epoch=epoch)


def amount(pieces: Sequence[Piece]) -> int:
    return sum(piece.length for piece in pieces)


def _plain(piece: Piece) -> list[int]:
    return [piece.partition, piece.offset, piece.length]
