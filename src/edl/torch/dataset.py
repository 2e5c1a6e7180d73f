"""The elastic loader, with what torch's own DataLoader offers beside: processes, pinned memory, and
batches copied to the device ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

from edl.data.source import Source, whole
from edl.errors import UsageError
from edl.plugin.ahead import Ahead
from edl.plugin.loader import Loader as Base
from edl.torch.ahead import ByProcesses
from edl.torch.collate import Parcels, collated, columns_of
from edl.torch.moving import Moving, OnDevice, chosen_device, pinned, side_of
from edl.torch.plugin import Plugin

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


class Loader(Base):
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
        self._options = options
        self._collate = options.collate_fn or collated
        device = chosen_device(options.device) if options.device is not None else None
        self._moving = Moving(device, side_of(device)) if device is not None else None
        wanted = options.pin_memory or (device is not None and device.type == "cuda")
        self._pins = wanted and torch.cuda.is_available()
        super().__init__(
            plugin,
            dataset,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=epochs,
            micro_batch=micro_batch,
            stream=isinstance(dataset, IterableDataset),
        )

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

    def _handed(self, batch: Any) -> Any:
        return self._moving.hand_over(*self._moving.begin(batch)) if self._moving else batch

    def _open_ahead(self) -> Ahead | None:
        fetched = self._open_processes() if self._options.num_workers else super()._open_ahead()
        if fetched is None or self._moving is None:
            return fetched
        return OnDevice(fetched, self._moving, self._options.device_prefetch)

    def _open_processes(self) -> Ahead:
        options = self._options
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
