"""The elastic loader of every plug-in: each sample once an epoch, whoever comes and goes.

Owns: where this worker's batches come from; the ledger says which. Holds: the aggregate batch never
changes, and neither does the order of samples, however many workers share it; and batches that were
fetched ahead are used in the step that they are for, or not at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from edl.data.source import Source, whole
from edl.errors import UsageError
from edl.plugin.ahead import Ahead, ByThreads, Request
from edl.plugin.face import Plugin
from edl.plugin.views import view_of
from edl.protocol.forecast import Forecast
from edl.protocol.progress import StepPlan
from edl.runtime.loop import cut, steps

__all__ = ["Loader"]


class Loader(ABC):
    """What `edl.DataLoader` makes. Derive from it, and say how samples become a batch.

    `stream`: the dataset has no indexes, and every worker reads all of it.
    """

    def __init__(
        self,
        plugin: Plugin,
        dataset: Any,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        epochs: int | None,
        micro_batch: int | None,
        stream: bool = False,
    ) -> None:
        self.dataset = dataset
        self.batch_size = batch_size = whole("batch_size", batch_size)
        self.epochs = whole("epochs", epochs) if epochs is not None else None
        self.micro_batch = whole("micro_batch", micro_batch) if micro_batch is not None else None
        self._plugin = plugin
        self._view = view_of(
            dataset,
            batch=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=epochs or 0,
            stream=stream,
        )
        self._ahead: Ahead | None = None
        session = plugin.session
        if session.audit is not None and isinstance(dataset, Source):
            session.audit.name([(p.path, p.offset, p.length) for p in dataset.partitions])
        session.open_data(self._view.ledger)

    def __len__(self) -> int:
        """Steps in one epoch; in the whole loop, if it runs over several."""
        return -(-self._view.ledger.remaining() // self.batch_size) * (self.epochs or 1)

    def __iter__(self) -> Iterator[Any]:
        plugin = self._plugin
        return steps(
            plugin.session,
            self._fetch,
            micro_batch=self.micro_batch,
            epochs=self.epochs,
            on_begin=plugin.begin_step,
            reduced=self._left,
        )

    # -- where the job is ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """How far the data is used, as of the last committed step: plain values."""
        progress = self._plugin.session.progress
        if progress is None:
            return {"step": 0, **self._view.ledger.snapshot()}
        return progress.snapshot()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there. Before the first batch, and on every worker alike."""
        session = self._plugin.session
        if session.progress is not None:
            raise UsageError("load_state_dict after the first batch: call it before the loop")
        session.reopen_data(self._view.ledger.like(state), step=int(state["step"]))

    # -- what a framework says -------------------------------------------------------------

    @abstractmethod
    def _read(self, samples: list[Any]) -> Any:
        """The batch of these samples; what they are is the view's business."""

    def _handed(self, batch: Any) -> Any:
        """The batch as the script gets it, if it was not fetched ahead."""
        return batch

    def _left(self) -> bool:
        """The loop is over: whether gradients were exchanged in the step that it was left in."""
        return self._plugin.reduced

    def _open_ahead(self) -> Ahead | None:
        """Who fetches ahead; None: batches are read when they are wanted."""
        return ByThreads(self._foresee, self._read) if isinstance(self.dataset, Source) else None

    # -- fetching --------------------------------------------------------------------------

    def _fetch(self, plan: StepPlan, first: int, count: int) -> Any:
        session = self._plugin.session
        progress = session.progress
        assert progress is not None
        asked = (progress.ledger.epoch, plan.part, first, count)
        if self._ahead is None:
            self._ahead = self._open_ahead()
        if self._ahead is None:
            return self._handed(self._read(self._view.samples(*asked)))
        batch = self._ahead.get(self._view.key(*asked))
        session.ahead = self._ahead.steps_beyond(plan.step)
        return batch

    def _foresee(self) -> Iterator[Request]:
        """This worker's batches from the present step on."""
        session = self._plugin.session
        assert session.progress is not None
        forecast = Forecast(session.progress, epochs=self.epochs or session.teller.epochs)
        while (step := forecast.next()) is not None:
            count = step.part.count if step.part is not None else 0
            for rows, start in cut(count, self.micro_batch):
                asked = (step.epoch, step.part, start, rows)
                yield Request(self._view.key(*asked), step.step, self._view.samples(*asked))
