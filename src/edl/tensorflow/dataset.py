"""Batches of tensors, step by step: for a loop of the script's own, and for `model.fit`.

Keras lets TensorFlow ask for batches, in its own threads and as early as it likes; but a step of an
elastic job is opened when the one before it is over. So `edl.Callback` opens it on the training
thread and offers its batch here, where the dataset that Keras iterates over finds it. Holds: that
dataset reads nothing ahead, and an epoch has as many batches as the job has steps for this worker:
fewer for one that joined in its middle, more if a step is done again.
"""

from __future__ import annotations

import ctypes
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from edl.errors import UsageError
from edl.plugin.loader import Loader as BaseLoader
from edl.runtime.shards import ShardGenerator
from edl.tensorflow.plugin import Plugin
from edl.tensorflow.traced import STAND_IN, blank, signature_of

__all__ = ["Batches", "Loader", "Shards", "Stepped"]

Collate = Callable[[list[Any]], Any]


class Stepped(DataAdapter, ABC):  # type: ignore[misc]
    """One batch a step. Keras takes it as data of its own kind."""

    _offered: Any = None
    _signature: Any = None

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    @abstractmethod
    def stand_in(self) -> Any:
        """A batch to rehearse with, whether or not this worker is in its job yet."""

    @property
    def signature(self) -> Any:
        """What batches are made of."""
        if self._signature is None:
            self._signature = signature_of(self.stand_in())
        return self._signature

    def offer(self, batch: Any) -> None:
        """The next batch; None: the epoch is over."""
        self._offered = (batch,)

    # -- what Keras asks -------------------------------------------------------------------

    def get_tf_dataset(self) -> Any:
        """Not by `from_generator`, which costs more and changes how the process frees memory."""
        flat = tf.nest.flatten(self.signature)
        dtypes = [spec.dtype for spec in flat]

        def pull(_: Any) -> tuple[Any, Any]:
            go, *parts = tf.numpy_function(self._pull, [], [tf.bool, *dtypes])
            go.set_shape(())
            for part, spec in zip(parts, flat, strict=True):
                part.set_shape(spec.shape)
            return go, tf.nest.pack_sequence_as(self.signature, parts)

        made = tf.data.Dataset.counter().map(pull).take_while(lambda go, _: go)
        options = tf.data.Options()
        # TensorFlow would add a buffer at the end, and read ahead of the steps.
        options.experimental_optimization.inject_prefetch = False
        options.autotune.enabled = False
        return made.map(lambda _, batch: batch).with_options(options)

    def _pull(self) -> list[Any]:
        """Whether there is a batch, and its parts."""
        offered, self._offered = self._offered, None
        if offered is None:
            raise UsageError(
                "model.fit asks for a batch that no step was opened for; give it "
                "callbacks=[edl.Callback()], and this data as it is"
            )
        if offered[0] is None:
            specs = tf.nest.flatten(self.signature)
            return [np.False_, *(_empty(spec) for spec in specs)]
        return [np.True_, *map(np.asarray, tf.nest.flatten(offered[0]))]

    @property
    def num_batches(self) -> int:
        """None and a number would both be taken for a limit, by and by; each epoch has its own."""
        return 0

    # Keras has no use for these where there are no arrays.
    batch_size: Any = None
    has_partial_batch: Any = None
    partial_batch_size: Any = None


def _exits_at_once() -> bool:
    """Whether a launcher started this process: it ends without finalising the interpreter.

    A process that joined by itself is finalised; threads of a living pipeline may not survive that.
    """
    return "EDL_JOB" in os.environ and os.environ.get("EDL_JOIN") != "1"


class _Arrays:
    """Arrays of one length, as a dataset."""

    def __init__(self, arrays: Any) -> None:
        self._arrays = tf.nest.map_structure(np.asarray, arrays)
        lengths = {len(array) for array in tf.nest.flatten(self._arrays)}
        if len(lengths) != 1:
            raise UsageError(f"edl.DataLoader: arrays of different lengths, {sorted(lengths)}")
        self._length = lengths.pop()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return tf.nest.map_structure(lambda array: array[index], self._arrays)

    def batch(self, samples: Sequence[int]) -> Any:
        rows = np.asarray(samples)
        return tf.nest.map_structure(lambda array: array.take(rows, axis=0), self._arrays)


class Loader(BaseLoader, Stepped):
    """What `edl.DataLoader` makes."""

    def __init__(
        self, plugin: Plugin, dataset: Any, batch_size: int, *, collate_fn: Collate | None,
        **options: Any,
    ) -> None:  # fmt: skip
        if isinstance(dataset, tf.data.Dataset):
            raise UsageError(
                "edl.DataLoader of a tf.data.Dataset, which can only be read from its beginning: "
                "give its arrays or files; or make it of an elastic_shard_generator, and iterate "
                "over shards.batches(dataset)"
            )
        arrays = isinstance(dataset, (tuple, dict, np.ndarray)) or tf.is_tensor(dataset)
        self._collate = collate_fn
        super().__init__(plugin, _Arrays(dataset) if arrays else dataset, batch_size, **options)
        plugin.feed = self

    def stand_in(self) -> Any:
        return self._read(self._view.samples(0, None, 0, 0))

    def _left(self) -> bool:
        plugin = self._plugin
        assert isinstance(plugin, Plugin)
        return plugin.left()

    def _read(self, samples: list[Any]) -> Any:
        dataset = self._view.dataset
        if isinstance(dataset, _Arrays) and self._collate is None:
            return _tensors(dataset.batch(samples))
        getitems = getattr(dataset, "__getitems__", None)
        found = getitems(samples) if getitems else [dataset[sample] for sample in samples]
        return _tensors((self._collate or stacked)(found))


class Batches(Stepped):
    """What `.batches(...)` of a shard generator gives: rows of a step, as one tensor each."""

    def __init__(self, shards: Shards, source: Any) -> None:
        self._shards = shards
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        source = self._source
        if isinstance(source, tf.data.Dataset):
            # As numpy: handing over a tensor of one sample costs many times the sample.
            source = source.as_numpy_iterator()
        try:
            for rows in self._shards.lists(source):
                yield _tensors(stacked(rows))
        finally:
            session = self._shards.plugin.session
            if (session.over or session.gone) and _exits_at_once():
                # The destructor of a tf.data iterator waits for the thread that tunes the
                # pipeline, and that thread sleeps for up to a minute. The process is about to end.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(source))

    def __len__(self) -> int:
        """Steps in one epoch."""
        batch = self._shards.batch_size
        assert batch is not None
        return math.ceil(len(self._shards) / batch)

    def stand_in(self) -> Any:
        if isinstance(self._source, tf.data.Dataset):
            return tf.nest.map_structure(
                lambda spec: blank(spec, STAND_IN), self._source.element_spec
            )
        if callable(self._source):
            from edl.runtime.partitions import shard_of

            parts = self._shards.partitions
            shard = shard_of(parts, 0, 0, min(STAND_IN, parts[0].length), epoch=0)
            return _tensors(stacked(list(self._source(shard))))
        return None


class Shards(ShardGenerator):
    """The generator of shards, with batches of tensors."""

    plugin: Plugin

    def batches(self, source: Any) -> Batches:
        """One batch of tensors a step, of a tf.data.Dataset of samples over this generator, of
        another pipeline, or of a function that reads a shard's samples."""
        made = Batches(self, source)
        self.plugin.feed = made
        return made

    def lists(self, source: Any) -> Iterator[list[Any]]:
        return super().batches(source)


def stacked(rows: list[Any]) -> Any:
    """Samples, as one array of each of their parts."""
    return tf.nest.map_structure(lambda *parts: np.stack(parts), *rows)


def _tensors(batch: Any) -> Any:
    return tf.nest.map_structure(tf.convert_to_tensor, batch)


def _empty(spec: Any) -> Any:
    shape = [0 if size is None else size for size in spec.shape]
    return np.zeros(shape, spec.dtype.as_numpy_dtype)
