"""Elastic training without a framework: `import edl.plain as edl`.

    edl.init()
    w, b = np.zeros((64, 10)), np.zeros(10)
    edl.share(w=w, b=b)                                       # the model: arrays changed in place
    loader = edl.DataLoader((x, y), batch_size=384, seed=0)   # 384 = the aggregate batch
    for epoch in edl.epochs(3):
        for xs, ys in loader:
            gw, gb = edl.average(*gradients(w, b, xs, ys))    # everyone's, by samples
            w -= 0.1 * gw
            b -= 0.1 * gb
            edl.notify_batch_end()
    edl.shutdown()

The same script runs alone with `python train.py`, or on any number of workers with
`edl run -n 4 train.py`; workers may come and go at any batch boundary. More than one worker need
torch, for its collectives alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edl.errors import Leave, UsageError
from edl.plain.loader import ArrayLoader as _Loader
from edl.plain.plugin import Plugin as _Plugin
from edl.plugin import face as _face
from edl.plugin.adapter import Array as _Array
from edl.plugin.adapter import Kind as _Kind
from edl.plugin.face import (
    elastic_shard_generator,
    epoch,
    epochs,
    generation,
    is_leader,
    job,
    local_batch_size,
    notify_batch_end,
    rank,
    register,
    report,
    shutdown,
    size,
    step,
)
from edl.plugin.reducing import Reduction as _Reduction
from edl.runtime.partitions import Partition, Shard

__all__ = [
    "DataLoader",
    "Leave",
    "Partition",
    "Shard",
    "all_reduce",
    "average",
    "elastic_shard_generator",
    "epoch",
    "epochs",
    "generation",
    "init",
    "is_leader",
    "job",
    "local_batch_size",
    "notify_batch_end",
    "rank",
    "register",
    "report",
    "share",
    "share_buffers",
    "share_state",
    "shutdown",
    "size",
    "step",
]


def init(*, bucket_mb: float = 25.0, compression: str | None = None) -> None:
    """Start this worker. Call it once, first; the model and data are built meanwhile.

    Gradients are reduced in buckets of about `bucket_mb`. `compression` is "bf16" or "fp16":
    float32 gradients travel in half the bytes, and are rounded; fp16 also turns what is above 65504
    into infinity, which bf16 does not.
    """
    reduction = _Reduction(bucket_mb, compression)
    _face.start(lambda identity: _Plugin(identity, reduction))


def share(**arrays: _Array) -> None:
    """These arrays are the model. Each has a gradient, which `average` takes in this order.

    New workers and checkpoints get them; the script changes them in place (`w -= ...`, never
    `w = ...`), between `average` and `notify_batch_end`. In a step that counts for nobody, as when
    a worker is lost, or in a micro-batch that is not the step's last, `average` gives zeros, and
    whatever was done to them is taken back.
    """
    _here().share(_Kind.PARAMETER, arrays)


def share_state(**arrays: _Array) -> None:
    """These have no gradient but belong to the update, as momentum does: the same on every worker,
    and taken back with the model."""
    _here().share(_Kind.SLOT, arrays)


def share_buffers(**arrays: _Array) -> None:
    """These are each worker's own, as running means of its samples are. Everyone takes one worker's
    when workers come or go, and at the end of each loop."""
    _here().share(_Kind.BUFFER, arrays)


def average(*gradients: _Array | None, **named: _Array | None) -> Any:
    """The mean of every worker's gradients, weighted by how many samples each used.

    One for each shared array, in the order they were shared; or some of them by name. None: this
    worker has no gradient for that array. The arrays that are given are changed in place and given
    back, as a tuple, or by name as a dictionary, or one alone; None, where nobody had one.
    """
    plugin = _here()
    names = plugin.shared.parameters()
    if gradients and (named or len(gradients) != len(names)):
        raise UsageError(
            f"edl.average got {len(gradients)} gradients in order and {len(named)} by name; give "
            f"one for each of the {len(names)} shared arrays ({', '.join(names)}), or all by name"
        )
    given = dict(zip(names, gradients, strict=True)) if gradients else named
    wanted = {name: _checked(plugin, name, value) for name, value in given.items()}
    found = plugin.average({name: a for name, a in wanted.items() if a is not None})
    means = {name: _written(array, found.get(name)) for name, array in wanted.items()}
    if not gradients:
        return means
    return tuple(means.values()) if len(means) > 1 else means[names[0]]


def _checked(plugin: _Plugin, name: str, gradient: Any) -> _Array | None:
    if name not in plugin.shared.parameters():
        raise UsageError(f"edl.average({name}=...): no array was shared under this name")
    if gradient is None:
        return None
    array = np.asarray(gradient)
    expected = plugin.shared.read(name).shape
    if array.shape != expected or array.dtype.kind != "f":
        raise UsageError(
            f"the gradient of {name} is {array.dtype} {array.shape}; it must be of floats, and "
            f"{expected} as {name} itself"
        )
    return array


def _written(given: _Array | None, found: _Array | None) -> _Array | None:
    if found is None or given is found:
        return found
    if given is None or not given.flags.writeable:
        return found.copy()
    given[...] = found
    return given


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
    """Batches of NumPy arrays, each sample once an epoch. `batch_size` is the aggregate batch.

    `dataset` is an array, a tuple or a dictionary of arrays whose rows are samples, anything with
    `len` and indexes, or a reader of edl.data. Worker i gets its share of each batch; rows that
    are its own come first, `local_batch_size()` says how many.

    With `epochs` one loop runs over all of them; without, one loop is one epoch. A worker whose
    share is larger than `micro_batch` gets it in pieces: the loop's body runs once for each, and
    only the last one changes the model.
    """
    return _Loader(
        _here(),
        dataset,
        batch_size,
        collate_fn=collate_fn,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        epochs=epochs,
        micro_batch=micro_batch,
    )


def all_reduce(value: Any, op: str = "mean") -> Any:
    """Combine an array (or a number) of every worker: op is mean, sum, max or min."""
    plugin = _here()
    if isinstance(value, np.ndarray):
        return plugin.all_reduce(value, op)
    return float(plugin.all_reduce(np.asarray(float(value)), op))


def _here() -> _Plugin:
    return _face.here(_Plugin)
