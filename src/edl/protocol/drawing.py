"""The ledger of partitions that workers draw ahead of their steps.

Whoever reads ahead must know that what it reads will be its own, so here a range that was handed
out stays with its worker until that worker has used it, or leaves. The next ranges go to those
that want some, in rank order; near an epoch's end ever smaller ones, so that all run out at about
the same time, and what one lacks then the others make up for. With an aggregate batch each step
uses that many samples; without one (`batch` is 0) every worker says how many it used. Holds: every
sample of an epoch is queued, free or used, and in exactly one of these; the same on every worker
that committed the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.protocol.ledger import check_same_data, weights_in
from edl.protocol.permutation import Permutation
from edl.protocol.shards import Piece, ShardLedger, ShardPart, Table, amount, cut
from edl.protocol.topology import FULL, split
from edl.types import WorkerId

__all__ = ["DrawnLedger"]

_NOBODY: Mapping[WorkerId, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLedger(ShardLedger):
    """Queues that stay with their workers."""

    ahead: int = 0  # samples that everyone has in its queue before the first step is counted
    usual: int = 0  # the largest batch that a pipeline has made by itself

    @staticmethod
    def prepared(
        lengths: Sequence[int], *, batch: int, seed: int, epochs: int, shuffle: bool, ahead: int
    ) -> DrawnLedger:
        """The ledger at the start of the first epoch; `batch` 0: workers say what they used."""
        table = Table(lengths)
        return DrawnLedger(
            table=table,
            batch=batch,
            seed=seed,
            shuffle=shuffle,
            epochs=epochs,
            untouched=table.samples,
            ahead=ahead,
        )

    @property
    def counted(self) -> bool:
        """Whether every worker says after a step how many samples it used."""
        return self.batch == 0

    def free(self) -> int:
        """Samples that nobody has been handed."""
        return amount(self.returned) + self.untouched

    def queue_of(self, worker: WorkerId) -> tuple[Piece, ...]:
        return dict(self.queues).get(worker, ())

    def step_size(self) -> int:
        left = self.remaining()
        return left if self.counted else min(self.batch, left)

    # -- a step ----------------------------------------------------------------------------

    def provided(self, carriers: Sequence[WorkerId]) -> DrawnLedger:
        """Everyone who carries a share has what it takes, as far as anything is free."""
        deal = _Deal(self, carriers)
        fair = -(-deal.free // len(carriers))
        shares = self.parts(carriers)
        for worker, share in zip(carriers, shares, strict=True):
            if not self.counted:
                need = share
            elif self.usual:
                need = 2 * self.usual
            else:
                need = min(self.ahead, fair)
            deal.fill(worker, need)
        return deal.ledger()

    def shares(self, carriers: Sequence[WorkerId]) -> dict[WorkerId, int]:
        """Even shares of the next step; what one has not in its queue, the others make up for."""
        has = {worker: amount(self.queue_of(worker)) for worker in carriers}
        found = dict(zip(carriers, self.parts(carriers), strict=True))
        while True:
            lacking = sum(max(0, found[worker] - has[worker]) for worker in carriers)
            found = {worker: min(found[worker], has[worker]) for worker in carriers}
            able = [worker for worker in carriers if has[worker] > found[worker]]
            if not lacking or not able:
                return found
            for worker, more in zip(able, split(lacking, len(able)), strict=True):
                found[worker] += more

    def slice_of(
        self, worker: WorkerId, carriers: Sequence[WorkerId], *, back: int = 0
    ) -> ShardPart:
        """The front of a carrier's queue; all of it, if it says itself how much it uses.

        `back`: so many samples at its front have flowed by without counting.
        """
        _, queue = cut(self.queue_of(worker), back)
        share = amount(queue) if self.counted else self.shares(carriers)[worker]
        return ShardPart(epoch=self.epoch, pieces=cut(queue, share)[0])

    def committed(
        self,
        used: Mapping[WorkerId, int],
        *,
        wanted: Mapping[WorkerId, int] = _NOBODY,
        back: Mapping[WorkerId, int] = _NOBODY,
        told: int = 0,
    ) -> DrawnLedger:
        """The ledger after a step. `wanted`: how many ranges each wants besides; `back`: how many
        samples at the front of each queue flowed by in steps that did not count; `told`: the
        largest batch that a pipeline made by itself."""
        total = sum(used.values())
        if not self.counted and total != self.step_size():
            raise ValueError(
                f"a step used {total} samples where the ledger has {self.step_size()} "
                f"(epoch {self.epoch}, {self.remaining()} left)"
            )
        queues: list[tuple[WorkerId, tuple[Piece, ...]]] = []
        returned: list[Piece] = []
        for worker, queue in self.queues:
            count, flowed = used.get(worker, 0), back.get(worker, 0)
            if count + flowed > amount(queue):
                raise ValueError(
                    f"{worker} used {count} samples (and let {flowed} pass) where its queue has "
                    f"{amount(queue)} (epoch {self.epoch})"
                )
            passed, rest = cut(queue, flowed)
            returned += passed
            queues.append((worker, cut(rest, count)[1]))
        after = replace(
            self,
            queues=tuple(queues),
            returned=(*returned, *self.returned),
            usual=max(self.usual, told),
        )
        return after._dealt(wanted) if any(wanted.values()) else after

    def used_by(
        self, used: Mapping[WorkerId, int], back: Mapping[WorkerId, int] = _NOBODY
    ) -> tuple[Piece, ...]:
        """What everybody together uses in the next step."""
        return tuple(
            piece
            for worker, queue in self.queues
            for piece in cut(cut(queue, back.get(worker, 0))[1], used.get(worker, 0))[0]
        )

    def _dealt(self, wanted: Mapping[WorkerId, int]) -> DrawnLedger:
        workers = [worker for worker, _ in self.queues]
        deal = _Deal(self, workers)
        enough = max(1, self.usual, self.batch // len(workers))
        for number in range(max(wanted.values())):
            # One each in turn, so that whoever wants many leaves some to the others.
            for worker in [worker for worker in workers if wanted.get(worker, 0) > number]:
                # Near the end nobody gets more than its next step needs.
                limit = deal.limit(worker)
                if limit >= enough:
                    deal.give(worker, limit)
        return deal.ledger()

    # -- as plain values -------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        return {
            **ShardLedger.snapshot(self),
            "kind": "drawn",
            "ahead": self.ahead,
            "usual": self.usual,
        }

    def like(self, values: Mapping[str, Any]) -> DrawnLedger:
        """The ledger that these values are of; UsageError unless it is of the same data."""
        check_same_data(
            values,
            kind="drawn",
            samples=self.samples,
            batch=self.batch,
            table=self.table.digest,
        )
        return replace(
            self,
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
            ahead=values["ahead"],
            usual=values["usual"],
        )


class _Deal:
    """One hand-out. A working copy, since many ranges may change hands at once."""

    def __init__(self, ledger: DrawnLedger, workers: Sequence[WorkerId]) -> None:
        self._ledger = ledger
        self._queues = {worker: list(queue) for worker, queue in ledger.queues}
        for worker in workers:
            self._queues.setdefault(worker, [])
        self._weights = dict(ledger.weights)
        self._returned = list(ledger.returned)
        self._handed = ledger.handed
        self._untouched = ledger.untouched
        self._order: Permutation | range | None = None
        self.free = ledger.free()

    def limit(self, worker: WorkerId) -> int:
        """The most that one worker is given at a time: half of its share of what is free."""
        if not self._weights:
            return self.free // (2 * len(self._queues))
        whole = sum(self._weights.get(other, FULL) for other in self._queues)
        return self.free * self._weights.get(worker, FULL) // (2 * whole)

    def fill(self, worker: WorkerId, need: int) -> None:
        lacking = need - amount(self._queues[worker])
        while lacking > 0 and self.free:
            lacking -= self.give(worker, max(lacking, self.limit(worker)))

    def give(self, worker: WorkerId, most: int) -> int:
        """The next free range, or the front of it."""
        piece = self._next()
        if piece.length > most:
            rest = Piece(piece.partition, piece.offset + most, piece.length - most)
            self._returned.insert(0, rest)
            piece = Piece(piece.partition, piece.offset, most)
        self._queues[worker].append(piece)
        self.free -= piece.length
        return piece.length

    def _next(self) -> Piece:
        if self._returned:
            return self._returned.pop(0)
        if self._order is None:
            self._order = self._ledger.order()
        partition = self._order[self._handed]
        self._handed += 1
        piece = Piece(partition, 0, self._ledger.table.lengths[partition])
        self._untouched -= piece.length
        return piece

    def ledger(self) -> DrawnLedger:
        return replace(
            self._ledger,
            handed=self._handed,
            untouched=self._untouched,
            returned=tuple(self._returned),
            queues=tuple((worker, tuple(queue)) for worker, queue in self._queues.items()),
        )
