"""The elastic loader: a map-style dataset, each sample once an epoch, whoever comes and goes.

Owns: which indexes this worker fetches for a step; the ledger says so. Holds: the aggregate batch
never changes, and neither does the order of samples, however many workers share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

from torch.utils.data import Dataset, IterableDataset, default_collate

from edl.errors import UsageError
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.progress import StepPlan
from edl.runtime.loop import steps
from edl.torch.plugin import Plugin

__all__ = ["Loader"]

# Rows of the batch that a worker without a share runs its loop on; two, for BatchNorm's sake.
_STAND_IN = 2


class Loader:
    """What `edl.DataLoader` makes."""

    def __init__(
        self,
        plugin: Plugin,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        epochs: int | None,
        micro_batch: int | None,
        collate_fn: Callable[[list[Any]], Any] | None,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
            raise UsageError(
                f"edl.DataLoader needs a map-style dataset with a length; "
                f"{type(dataset).__name__} has none"
            )
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: the aggregate batch is at least 1")
        if epochs is not None and epochs < 1:
            raise UsageError(f"epochs={epochs}: give at least 1, or leave it out")
        if micro_batch is not None and micro_batch < 1:
            raise UsageError(f"micro_batch={micro_batch}: give at least 1, or leave it out")
        self.dataset = dataset
        self.batch_size = batch_size
        self.epochs = epochs
        self.micro_batch = micro_batch
        self._plugin = plugin
        self._collate = collate_fn or default_collate
        ledger = MapLedger(
            samples=len(dataset),
            batch=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=epochs or 0,
        )
        if ledger.usable() == 0:
            raise UsageError(
                f"a dataset of {len(dataset)} samples gives no step with batch_size="
                f"{batch_size}{' and drop_last' if drop_last else ''}"
            )
        self._usable = ledger.usable()
        plugin.session.open_data(ledger)

    def __len__(self) -> int:
        """Steps in one epoch; in the whole loop, if it runs over several."""
        return -(-self._usable // self.batch_size) * (self.epochs or 1)

    def __iter__(self) -> Iterator[Any]:
        reducer = self._plugin.reducer
        return steps(
            self._plugin.session,
            self._fetch,
            micro_batch=self.micro_batch,
            epochs=self.epochs,
            on_begin=reducer.begin_step,
            reduced=lambda: reducer.reduced,
        )

    def _fetch(self, plan: StepPlan, first: int, count: int) -> Any:
        progress = self._plugin.session.progress
        assert progress is not None
        ledger, part = progress.ledger, plan.part
        assert isinstance(ledger, MapLedger)
        if not isinstance(part, Slice):
            # Real samples, so that the loop's body runs as ever; they are not consumed.
            rows = min(_STAND_IN, ledger.samples)
            part = Slice(epoch=ledger.epoch, start=0, count=rows)
        else:
            part = Slice(epoch=part.epoch, start=part.start + first, count=count)
        indexes = ledger.indexes(part)
        getitems = getattr(self.dataset, "__getitems__", None)
        if getitems is not None:
            return self._collate(getitems(indexes))
        return self._collate([self.dataset[index] for index in indexes])
