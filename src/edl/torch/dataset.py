"""The elastic loader: each sample once an epoch, whoever comes and goes.

Owns: where this worker's batches come from; the ledger says which. Holds: the aggregate batch never
changes, and neither does the order of samples, however many workers share it; and batches that were
fetched ahead are used in the step that they are for, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from edl.data.source import Source, whole
from edl.errors import UsageError
from edl.protocol.forecast import Forecast
from edl.protocol.progress import StepPlan
from edl.runtime.loop import cut, steps
from edl.torch.ahead import Ahead, ByProcesses, ByThreads, Request
from edl.torch.collate import Parcels, collated, columns_of
from edl.torch.moving import Moving, OnDevice, chosen_device, pinned, side_of
from edl.torch.plugin import Plugin
from edl.torch.views import view_of

__all__ = ["Loader", "Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How batches are fetched; names and meaning are those of torch's DataLoader.

    All but the last two, which say where batches are copied, and how many before they are wanted.
    """

    num_workers: int = 0
    prefetch_factor: int | None = None
    pin_memory: bool = False
    collate_fn: Callable[[list[Any]], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    timeout: float = 0.0
    device: torch.device | str | None = None
    device_prefetch: int = 2

    def check(self) -> None:
        whole("num_workers", self.num_workers, least=0)
        whole("device_prefetch", self.device_prefetch, least=0)
        if self.num_workers == 0 and self.prefetch_factor is not None:
            raise UsageError(
                f"prefetch_factor={self.prefetch_factor} without worker processes; give "
                "num_workers too"
            )
        if self.timeout < 0:
            raise UsageError(f"timeout={self.timeout}: give seconds, or 0 for none")
        if self.prefetch_factor is not None:
            whole("prefetch_factor", self.prefetch_factor)


class Loader:
    """What `edl.DataLoader` makes."""

    def __init__(
        self,
        plugin: Plugin,
        dataset: Dataset[Any] | Source,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        epochs: int | None,
        micro_batch: int | None,
        options: Options,
    ) -> None:
        options.check()
        self.dataset = dataset
        self.batch_size = batch_size = whole("batch_size", batch_size)
        self.epochs = whole("epochs", epochs) if epochs is not None else None
        self.micro_batch = whole("micro_batch", micro_batch) if micro_batch is not None else None
        self._plugin = plugin
        self._options = options
        self._collate = options.collate_fn or collated
        self._view = view_of(
            dataset,
            batch=batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=epochs or 0,
        )
        self._ahead: Ahead | None = None
        device = chosen_device(options.device) if options.device is not None else None
        self._moving = Moving(device, side_of(device)) if device is not None else None
        wanted = options.pin_memory or (device is not None and device.type == "cuda")
        self._pins = wanted and torch.cuda.is_available()
        session = plugin.session
        if session.audit is not None and isinstance(dataset, Source):
            session.audit.name([(p.path, p.offset, p.length) for p in dataset.partitions])
        session.open_data(self._view.ledger)

    def __len__(self) -> int:
        """Steps in one epoch; in the whole loop, if it runs over several."""
        return -(-self._view.ledger.remaining() // self.batch_size) * (self.epochs or 1)

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

    # -- fetching --------------------------------------------------------------------------

    def _fetch(self, plan: StepPlan, first: int, count: int) -> Any:
        session = self._plugin.session
        progress = session.progress
        assert progress is not None
        asked = (progress.ledger.epoch, plan.part, first, count)
        if self._ahead is None:
            self._ahead = self._open_ahead()
        if self._ahead is None:
            batch = self._read(self._view.samples(*asked))
            return self._moving.hand_over(*self._moving.begin(batch)) if self._moving else batch
        batch = self._ahead.get(self._view.key(*asked))
        session.ahead = self._ahead.steps_beyond(plan.step)
        return batch

    def _read(self, samples: list[Any]) -> Any:
        dataset = self._view.dataset
        columns = columns_of(dataset) if self._collate is collated else ()
        getitems = getattr(dataset, "__getitems__", None)
        if columns:
            rows = torch.tensor(samples)
            # Not `column[rows]`: it wakes a second thread, and on a busy machine waits for it.
            batch = [column.index_select(0, rows.to(column.device)) for column in columns]
        elif getitems is not None:
            batch = self._collate(getitems(samples))
        else:
            batch = self._collate([dataset[sample] for sample in samples])
        return pinned(batch) if self._pins else batch

    def _open_ahead(self) -> Ahead | None:
        fetched = self._open_fetching()
        if fetched is None or self._moving is None:
            return fetched
        return OnDevice(fetched, self._moving, self._options.device_prefetch)

    def _open_fetching(self) -> Ahead | None:
        options = self._options
        if options.num_workers:
            return ByProcesses(
                self._foresee,
                dataset=self._view.dataset,
                num_workers=options.num_workers,
                prefetch_factor=options.prefetch_factor,
                pin_memory=options.pin_memory or self._pins,
                collate_fn=Parcels(self._options.collate_fn),
                worker_init_fn=options.worker_init_fn,
                multiprocessing_context=options.multiprocessing_context,
                timeout=options.timeout,
            )
        return ByThreads(self._foresee, self._read) if self._reads_files() else None

    def _reads_files(self) -> bool:
        return isinstance(self.dataset, Source)

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
