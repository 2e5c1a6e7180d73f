"""The ledger of a job's data: what is done, what is next, and for whom.

Every worker holds its own copy and changes it by committed step records only, so that workers
which committed the same steps hold equal ledgers and a crashed leader takes nothing with it.
This one serves map-style datasets: one global cursor, and step t is the next B positions of
the epoch's order, split by rank. Holds: every sample of an epoch is used exactly once, and the
order does not depend on how many workers there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.errors import UsageError
from edl.protocol.permutation import Permutation
from edl.protocol.topology import part_of, split_among, weighed
from edl.types import WorkerId

__all__ = ["MapLedger", "Slice", "Weights", "check_same_data", "weights_in", "weights_of"]

Weights = tuple[tuple[WorkerId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """One worker's part of one step: positions of the epoch's order."""

    epoch: int
    start: int
    count: int


def weights_of(members: Sequence[WorkerId], weights: Weights) -> Weights:
    """The weights of those that are members."""
    return tuple(pair for pair in weights if pair[0] in members) if weights else weights


def weights_in(values: Mapping[str, Any]) -> Weights:
    """The weights in a snapshot; older ones have none."""
    return tuple((WorkerId(worker), int(weight)) for worker, weight in values.get("weights", ()))


def check_same_data(
    values: Mapping[str, Any], *, kind: str, samples: int, batch: int, table: str = ""
) -> None:
    """Whether a snapshot is of the data that this worker has opened."""
    same = values["kind"] == kind and values.get("table", "") == table
    if not same or (values["samples"], values["batch"]) != (samples, batch):
        raise UsageError(
            f"this worker has a dataset of {samples} samples with batch_size {batch}, the job one "
            f"of {values['samples']} with {values['batch']}"
            f"{'' if same else ', partitioned otherwise'}; every worker must open the same data"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MapLedger:
    """Cursor over the epochs of a map-style dataset. Immutable: a commit makes the next one."""

    samples: int
    batch: int
    seed: int
    shuffle: bool
    drop_last: bool
    epochs: int  # 0: not limited by the ledger
    epoch: int = 0
    position: int = 0
    weights: Weights = ()  # of those that carry less than a full share

    def usable(self) -> int:
        """How many samples of an epoch are used at all."""
        return self.samples - self.samples % self.batch if self.drop_last else self.samples

    def remaining(self) -> int:
        """Samples of this epoch that nobody has used yet."""
        return self.usable() - self.position

    def step_size(self) -> int:
        """The aggregate batch of the next step: B, or what an epoch's end leaves of it."""
        return min(self.batch, self.remaining())

    def epoch_over(self) -> bool:
        return self.position >= self.usable()

    def job_over(self) -> bool:
        return bool(self.epochs) and self.epoch >= self.epochs

    def parts(self, carriers: Sequence[WorkerId]) -> tuple[int, ...]:
        """How many samples of the next step each carrier uses."""
        return split_among(self.step_size(), carriers, self.weights)

    def shares(self, carriers: Sequence[WorkerId]) -> dict[WorkerId, int]:
        """The same, by name."""
        return dict(zip(carriers, self.parts(carriers), strict=True))

    def slice_of(self, worker: WorkerId, carriers: Sequence[WorkerId]) -> Slice:
        """Where a carrier's samples of the next step lie."""
        rank = carriers.index(worker)
        if self.weights:
            parts = self.parts(carriers)
            before, count = sum(parts[:rank]), parts[rank]
        else:
            # Without listing the others: there may be a thousand.
            before, count = part_of(self.step_size(), len(carriers), rank)
        return Slice(epoch=self.epoch, start=self.position + before, count=count)

    def order(self, epoch: int) -> Permutation | range:
        """The epoch's order: a function of (seed, epoch) alone."""
        if not self.shuffle:
            return range(self.samples)
        return Permutation(self.samples, seed=self.seed, epoch=epoch)

    def indexes(self, part: Slice) -> list[int]:
        """The dataset's indexes behind a slice."""
        order = self.order(part.epoch)
        return [order[position] for position in range(part.start, part.start + part.count)]

    def committed(self, used: Mapping[WorkerId, int]) -> MapLedger:
        """The ledger after a step in which these samples were used."""
        total = sum(used.values())
        if total != self.step_size():
            raise ValueError(
                f"a step used {total} samples where the ledger has {self.step_size()} "
                f"(epoch {self.epoch}, position {self.position})"
            )
        return self._at(self.epoch, self.position + total)

    def entered(self, members: Sequence[WorkerId]) -> MapLedger:
        """Shares are drawn anew at every step; only a leaver's weight is forgotten."""
        kept = weights_of(members, self.weights)
        return self if kept == self.weights else replace(self, weights=kept)

    def weighed(self, worker: WorkerId, weight: int) -> MapLedger:
        """From the next step on this worker carries so many thousandths of a full share."""
        return replace(self, weights=weighed(self.weights, worker, weight))

    def next_epoch(self) -> MapLedger:
        """The ledger at the start of the next epoch; what was left of this one stays unused."""
        return self._at(self.epoch + 1, 0)

    def _at(self, epoch: int, position: int) -> MapLedger:
        # Spelled out: `dataclasses.replace` takes three times as long, at every step.
        return MapLedger(
            samples=self.samples,
            batch=self.batch,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            epochs=self.epochs,
            epoch=epoch,
            position=position,
            weights=self.weights,
        )

    def snapshot(self) -> dict[str, Any]:
        """The ledger as plain values, for a newcomer or a checkpoint."""
        return {
            "kind": "map",
            "samples": self.samples,
            "batch": self.batch,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
            "drop_last": int(self.drop_last),
            "epochs": self.epochs,
            "epoch": self.epoch,
            "position": self.position,
            "weights": [list(pair) for pair in self.weights],
        }

    def like(self, values: Mapping[str, Any]) -> MapLedger:
        """The ledger that these values are of; UsageError unless it is of the same data."""
        check_same_data(values, kind="map", samples=self.samples, batch=self.batch)
        return self.restored(values)

    @staticmethod
    def restored(values: Mapping[str, Any]) -> MapLedger:
        plain = dict(values)
        return MapLedger(
            samples=plain["samples"],
            batch=plain["batch"],
            seed=plain["seed"],
            shuffle=bool(plain["shuffle"]),
            drop_last=bool(plain["drop_last"]),
            epochs=plain["epochs"],
            epoch=plain["epoch"],
            position=plain["position"],
            weights=weights_in(plain),
        )
