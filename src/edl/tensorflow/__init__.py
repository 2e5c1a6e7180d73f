"""Elastic TensorFlow 2: `import edl.tensorflow as edl`.

    edl.init()
    model = keras.Sequential([keras.Input((28, 28)), ...])
    opt = edl.Optimizer(keras.optimizers.Adam(), model=model)
    loader = edl.DataLoader((x, y), batch_size=384, seed=0)    # 384 = the aggregate batch

    @edl.function                                              # tf.function, traced once
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        opt.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                model.trainable_variables))

    for epoch in edl.epochs(3):
        for x, y in loader:
            train_step(x, y)
            edl.notify_batch_end()
    edl.shutdown()

Or `model.compile(optimizer=opt, ...)` and
`model.fit(loader, epochs=3, callbacks=[edl.Callback()])`. The same script runs alone with
`python train.py`, or on any number of workers with `edl run -n 4 train.py`; workers may come and
go at any batch boundary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import keras as _keras
    import tensorflow as tf
except ImportError as error:
    raise ImportError(
        "edl.tensorflow needs TensorFlow 2 and Keras 3: pip install 'edl-elastic[tensorflow]', "
        "or tensorflow-cpu>=2.21,<2.22 and torch>=2.13,<2.14, whose collectives it uses"
    ) from error

from edl.data.listing import Given as _Given
from edl.data.listing import list_partitions as _list_partitions
from edl.errors import Leave, UsageError
from edl.plugin.face import (
    epoch,
    epochs,
    generation,
    is_leader,
    job,
    local_batch_size,
    notify_batch_end,
    rank,
    report,
    shutdown,
    size,
    step,
)
from edl.plugin.face import here as _here_of
from edl.plugin.face import register as _register
from edl.plugin.face import start as _start
from edl.plugin.reducing import Reduction as _Reduction
from edl.runtime.partitions import Partition, Shard
from edl.tensorflow.dataset import Loader as _Loader
from edl.tensorflow.dataset import Shards as _Shards
from edl.tensorflow.fit import Callback as _Callback
from edl.tensorflow.optimizer import elastic as _elastic
from edl.tensorflow.plugin import Plugin as _Plugin
from edl.tensorflow.registered import holder_of as _holder_of
from edl.tensorflow.traced import Function as _Function

__all__ = [
    "SHARD",
    "Callback",
    "DataLoader",
    "Leave",
    "Optimizer",
    "Partition",
    "Shard",
    "all_reduce",
    "device",
    "elastic_shard_generator",
    "epoch",
    "epochs",
    "function",
    "generation",
    "init",
    "is_leader",
    "job",
    "local_batch_size",
    "notify_batch_end",
    "rank",
    "register",
    "report",
    "shutdown",
    "size",
    "step",
]

SHARD = (tf.TensorSpec((), tf.string), *[tf.TensorSpec((), tf.int64)] * 4)
"""`output_signature` of a Dataset.from_generator over an elastic_shard_generator."""


def init(*, bucket_mb: float = 25.0, compression: str | None = None) -> None:
    """Start this worker. Call it once, first; the model and data are built meanwhile.

    Gradients are reduced in buckets of about `bucket_mb`. `compression` is "bf16" or "fp16":
    float32 gradients travel in half the bytes, and are rounded; fp16 also turns what is above 65504
    into infinity, which bf16 does not.
    """
    if _keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on {_keras.backend.backend()} here, and edl.tensorflow needs it on "
            "TensorFlow: set KERAS_BACKEND=tensorflow, before keras is imported"
        )
    _start(lambda identity: _Plugin(identity, _Reduction(bucket_mb, compression)))


def Optimizer(optimizer: Any, *, model: Any = None) -> Any:  # noqa: N802 - it stands for a class
    """Make any Keras optimizer elastic. It stays an instance of its class.

    `model` must have its variables already. It may be left out where `model.fit` is called with
    `edl.Callback()`, which finds it.
    """
    return _elastic(optimizer, model, _here())


def Callback() -> _Callback:  # noqa: N802 - it stands where a class would
    """Makes `model.fit` elastic; first among its callbacks."""
    return _Callback(_here())


def function(step: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A training step as `tf.function`, with the same options, for batches of every size.

    It is traced once, however many rows the batches have that it is called with; and a worker that
    joins traces it before the others wait for it, given that it takes what the loader yields.
    """
    if step is None:
        return lambda given: _Function(given, **options)
    return _Function(step, **options)


def register(holder: Any, *, same: bool = True) -> Any:
    """Let new workers receive this too: anything with `state_dict()` and `load_state_dict()`, or
    with TensorFlow's variables, such as a metric or a tf.Module; a variable itself; or a Keras
    callback that remembers something, such as EarlyStopping.

    Its numbers are compared between workers at every step, but not those of a Keras metric.
    `same=False`: they may differ, as those of a count of each worker's own samples or of a random
    generator do, and are not compared.
    """
    _register(_holder_of(holder), same=same)
    return holder


def DataLoader(  # noqa: N802 - it stands where a class would
    dataset: Any,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    epochs: int | None = None,
    micro_batch: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
) -> _Loader:
    """The elastic loader. `batch_size` is the aggregate batch of all workers together.

    `dataset` is arrays, as `(x, y)` or a dict of them; or anything with `__len__` and
    `__getitem__`; or a reader of edl.data. Iterate over it, or give it to `model.fit`. With
    `epochs` one loop runs over all of them; without, one loop is one epoch. A worker whose share is
    larger than `micro_batch` gets it in pieces, and only the last one updates the model.
    """
    return _Loader(
        _here(),
        dataset,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        epochs=epochs,
        micro_batch=micro_batch,
        collate_fn=collate_fn,
    )


def elastic_shard_generator(
    partitions: _Given,
    *,
    batch_size: int | None = None,
    epochs: int | None = None,
    seed: int = 0,
    shuffle: bool = True,
    record_bytes: int | None = None,
    header_bytes: int = 0,
    partition_samples: int | None = None,
    read_ahead: int | None = None,
    micro_batch: int | None = None,
) -> _Shards:
    """Metadata of the samples to read next: `Shard(path, offset, length, epoch, index)`.

    `partitions` are (path, offset, length), a reader of edl.data, a manifest (.json, .jsonl, .csv),
    or paths and patterns: files of records of `record_bytes`, cut into partitions of
    `partition_samples`; without it every file is one sample. Each is read by one worker, unless
    membership changes or the epoch ends: then its unread rest goes to another.

    `tf.data.Dataset.from_generator(shards, output_signature=edl.SHARD)` is a pipeline's beginning.
    With `batch_size`, the aggregate batch, `.batches(pipeline)` gives one batch of tensors a step.
    Without, let the pipeline make batches of its own, and say by `notify_batch_end(samples=n)` how
    many samples each step took.
    """
    plugin = _here()
    shards = _Shards(
        plugin.session,
        _list_partitions(
            partitions,
            record_bytes=record_bytes,
            header_bytes=header_bytes,
            partition_samples=partition_samples,
        ),
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        shuffle=shuffle,
        read_ahead=read_ahead,
        micro_batch=micro_batch,
        on_begin=plugin.begin_step,
        reduced=plugin.left,
    )
    shards.plugin = plugin
    return shards


def all_reduce(tensor: Any, op: str = "mean") -> Any:
    """Combine a tensor (or a number) of every worker: op is mean, sum, max or min."""
    plugin = _here()
    if tf.is_tensor(tensor):
        return plugin.all_reduce_tensor(tensor, op)
    return float(plugin.all_reduce_tensor(tf.constant(float(tensor), tf.float64), op))


def device() -> str:
    """Where this worker computes, as `tf.device` takes it."""
    return "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"


def _here() -> _Plugin:
    return _here_of(_Plugin)
