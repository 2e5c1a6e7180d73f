"""What this worker will be asked to load: its parts of the steps to come.

A loader that fetches ahead must guess, and a guess from the ledger is nearly always right: shares
are a function of the ledger and the membership, and a change of membership is announced before it
happens. Owns: one guess, as far as it went. Holds: as long as nothing unforeseen happens, what is
foreseen is what `Progress.plan` will say.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.ledger import Slice
from edl.protocol.progress import Progress
from edl.protocol.shards import ShardPart

__all__ = ["Forecast", "Foreseen"]


@dataclass(frozen=True, slots=True)
class Foreseen:
    """This worker's part of a step to come; None: a stand-in batch, as it has no share."""

    step: int
    epoch: int
    part: Slice | ShardPart | None


class Forecast:
    """The steps from the present one on, one after another."""

    def __init__(self, progress: Progress, *, epochs: int) -> None:
        """`epochs`: where the script says that it ends; 0: it has not said."""
        self._progress = progress
        self._epochs = epochs
        self._step = progress.step
        self._ledger = progress.ledger
        self._generation = progress.generation
        self._entering = progress.entering

    def next(self) -> Foreseen | None:
        """None: as far as can be seen, this worker has nothing more to do."""
        me, announced = self._progress.me, self._progress.announced
        due = announced is not None and self._step >= announced.step
        if due and announced and self._generation.number < announced.generation.number:
            self._generation, self._entering = announced.generation, True
            self._ledger = self._ledger.entered(self._generation.workers())
        if self._ledger.epoch_over():
            self._ledger = self._ledger.next_epoch()
        ended = self._ledger.job_over() or (self._epochs and self._ledger.epoch >= self._epochs)
        if ended or me not in self._generation:
            return None
        carriers = self._generation.carriers(entering=self._entering)
        shares = self._ledger.parts(carriers)
        part = self._ledger.slice_of(me, carriers) if me in carriers else None
        mine = part if part is not None and part.count else None
        foreseen = Foreseen(self._step, self._ledger.epoch, mine)
        self._ledger = self._ledger.committed(dict(zip(carriers, shares, strict=True)))
        if self._entering and self._generation.leaving:
            self._generation = self._generation.settled()
            self._ledger = self._ledger.entered(self._generation.workers())
        self._step, self._entering = self._step + 1, False
        return foreseen
