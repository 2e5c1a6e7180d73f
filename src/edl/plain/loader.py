"""Batches of NumPy arrays, by the loader that every plug-in has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edl.errors import UsageError
from edl.plugin.adapter import Array
from edl.plugin.face import Plugin
from edl.plugin.loader import Loader

__all__ = ["ArrayLoader", "collated"]


class _Columns:
    """Arrays side by side: a sample is a row of each."""

    def __init__(self, given: Any, arrays: list[Array]) -> None:
        lengths = {len(array) for array in arrays}
        if len(lengths) != 1:
            raise UsageError(
                f"edl.DataLoader got arrays of {sorted(lengths)} rows side by side; they must have "
                "the same number"
            )
        self._given = given
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def rows(self, samples: list[int]) -> Any:
        if isinstance(self._given, Mapping):
            return {name: array[samples] for name, array in self._given.items()}
        if isinstance(self._given, tuple):
            return tuple(array[samples] for array in self._given)
        return self._given[samples]


class ArrayLoader(Loader):
    """What `edl.DataLoader` makes."""

    def __init__(
        self,
        plugin: Plugin,
        dataset: Any,
        batch_size: int,
        *,
        collate_fn: Callable[[list[Any]], Any] | None,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        epochs: int | None,
        micro_batch: int | None,
    ) -> None:
        self._collate = collate_fn or collated
        arrays = _columns_of(dataset) if collate_fn is None else []
        super().__init__(
            plugin,
            _Columns(dataset, arrays) if arrays else dataset,
            batch_size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            epochs=epochs,
            micro_batch=micro_batch,
        )
        self.dataset = dataset

    def _read(self, samples: list[Any]) -> Any:
        dataset = self._view.dataset
        if isinstance(dataset, _Columns):
            return dataset.rows(samples)
        getitems = getattr(dataset, "__getitems__", None)
        if getitems is not None:
            return self._collate(getitems(samples))
        return self._collate([dataset[sample] for sample in samples])


def _columns_of(dataset: Any) -> list[Array]:
    """The arrays of a dataset that is nothing else: one, a tuple or a dictionary of them."""
    if isinstance(dataset, np.ndarray):
        return [dataset]
    given: list[Any] = []
    if isinstance(dataset, tuple):
        given = list(dataset)
    elif isinstance(dataset, Mapping):
        given = list(dataset.values())
    return given if all(isinstance(each, np.ndarray) for each in given) else []


def collated(samples: list[Any]) -> Any:
    """Samples laid side by side: tuples and dictionaries part by part, the rest as one array."""
    first = samples[0]
    if isinstance(first, (tuple, list)):
        return tuple(collated(list(column)) for column in zip(*samples, strict=True))
    if isinstance(first, Mapping):
        return {name: collated([sample[name] for sample in samples]) for name in first}
    if isinstance(first, (str, bytes)):
        return samples
    return np.stack([np.asarray(sample) for sample in samples])
