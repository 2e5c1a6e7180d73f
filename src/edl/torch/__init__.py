"""Elastic PyTorch: `import edl.torch as edl`.

    edl.init()
    model = Net()
    opt = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    loader = edl.DataLoader(dataset, batch_size=384, seed=0)   # 384 = the aggregate batch
    for epoch in edl.epochs(3):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad(); loss.backward(); opt.step()
            edl.notify_batch_end()
    edl.shutdown()

The same script runs alone with `python train.py`, or on any number of workers with
`edl run -n 4 train.py`; workers may come and go at any batch boundary.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

try:
    import torch
except ImportError as error:
    raise ImportError(
        "edl.torch needs PyTorch: pip install 'edl-elastic[torch]', or torch>=2.13,<2.14"
    ) from error
from torch.utils.data import Dataset

from edl.collective.gloo import check_torch
from edl.data.listing import Given as _Given
from edl.data.listing import list_partitions as _list_partitions
from edl.data.source import Source
from edl.errors import Leave, UsageError
from edl.runtime.departure import install_signals
from edl.runtime.identity import identify
from edl.runtime.partitions import Partition, Shard
from edl.runtime.shards import ShardGenerator
from edl.torch.dataset import Loader as _Loader
from edl.torch.dataset import Options as _Options
from edl.torch.optimizer import elastic as _elastic
from edl.torch.plugin import Plugin as _Plugin
from edl.torch.reducer import Reduction as _Reduction
from edl.torch.state import Holder

__all__ = [
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

_Registered = TypeVar("_Registered", bound=Holder)
_plugin: _Plugin | None = None


def init(*, bucket_mb: float = 25.0, compression: str | None = None) -> None:
    """Start this worker. Call it once, first; the model and data are built meanwhile.

    Gradients are reduced in buckets of about `bucket_mb` while backward is still running.
    `compression` is "bf16" or "fp16": float32 gradients travel in half the bytes, and are rounded;
    fp16 also turns what is above 65504 into infinity, which bf16 does not.
    """
    global _plugin
    if _plugin is not None:
        raise UsageError("edl.init() was called before; call it once, at the script's start")
    check_torch()
    _plugin = _Plugin(identify(), _Reduction(bucket_mb, compression))
    install_signals(_plugin.session)
    atexit.register(_at_exit)


def shutdown() -> None:
    """End this worker's part in the job. Also happens by itself when the script ends."""
    _here().session.shutdown()


def Optimizer(  # noqa: N802 - it stands where a class would
    optimizer: torch.optim.Optimizer, *, model: torch.nn.Module
) -> torch.optim.Optimizer:
    """Make any torch optimizer elastic. It stays an instance of its class."""
    return _elastic(optimizer, model, _here())


def register(holder: _Registered) -> _Registered:
    """Let new workers receive this too: an LR scheduler, GradScaler, EMA, your own counters."""
    if not callable(getattr(holder, "state_dict", None)) or not callable(
        getattr(holder, "load_state_dict", None)
    ):
        raise UsageError(
            f"edl.register needs state_dict() and load_state_dict(); "
            f"{type(holder).__name__} has not both"
        )
    _here().state.registered.append(holder)
    return holder


def DataLoader(  # noqa: N802 - it stands where a class would
    dataset: Dataset[Any] | Source,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    epochs: int | None = None,
    micro_batch: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    num_workers: int = 0,
    prefetch_factor: int | None = None,
    pin_memory: bool = False,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: Any = None,
    timeout: float = 0.0,
    device: torch.device | str | None = None,
    device_prefetch: int = 2,
) -> _Loader:
    """The elastic loader. `batch_size` is the aggregate batch of all workers together.

    With `epochs` one loop runs over all of them; without, one loop is one epoch. A worker whose
    share is larger than `micro_batch` gets it in pieces: the loop's body runs once for each, and
    only the last one updates the model, so scaling in does not run out of memory. The arguments
    from `collate_fn` to `timeout` are those of torch's DataLoader.

    With `device=edl.device()` batches come on that device; the next `device_prefetch` of them are
    copied there while the present one is computed with.
    """
    options = _Options(
        num_workers=num_workers,
        prefetch_factor=prefetch_factor,
        pin_memory=pin_memory,
        collate_fn=collate_fn,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=multiprocessing_context,
        timeout=timeout,
        device=device,
        device_prefetch=device_prefetch,
    )
    return _Loader(
        _here(),
        dataset,
        batch_size,
        seed=seed,
        shuffle=shuffle,
        drop_last=drop_last,
        epochs=epochs,
        micro_batch=micro_batch,
        options=options,
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
) -> ShardGenerator:
    """Metadata of the samples to read next: `Shard(path, offset, length, epoch, index)`.

    `partitions` are (path, offset, length), a reader of edl.data, a manifest (.json, .jsonl, .csv),
    or paths and patterns: files of records of `record_bytes`, cut into partitions of
    `partition_samples`; without it every file is one sample. Each is read by one worker, unless
    membership changes or the epoch ends: then its unread rest goes to another.

    One iteration is one epoch, inside `edl.epochs(n)`; with `epochs` it goes over all of them.

    With `batch_size`, the aggregate batch, iterate over `.batches(read)` to get one list of samples
    a step, or over the generator itself. Without, let a pipeline make batches of its own of the
    shards, and say by `notify_batch_end(samples=n)` how many samples each step took.
    """
    plugin = _here()
    return ShardGenerator(
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
        on_begin=plugin.reducer.begin_step,
        reduced=lambda: plugin.reducer.reduced,
    )


def epochs(count: int) -> Iterator[int]:
    """The epochs of the job; a new worker starts in the current one."""
    if count < 1:
        raise UsageError(f"edl.epochs({count}): give at least 1")
    session = _here().session
    session.teller.epochs = count
    progress = session.enter()
    while not session.over and progress.ledger.epoch < count:
        current = progress.ledger.epoch
        yield current
        session.settle()
        if progress.ledger.epoch == current and not session.over:
            # The script did not touch the loader in this epoch; it counts all the same.
            session.close_epoch()


def notify_batch_end(*, samples: int | None = None) -> None:
    """The batch is over: commit it, and gain or lose workers if that is due. May raise Leave.

    `samples`: how many samples this worker's batch had, where an `elastic_shard_generator` without
    batch_size feeds a pipeline that makes batches of its own.
    """
    _here().session.end_step(samples)


def all_reduce(tensor: Any, op: str = "mean") -> Any:
    """Combine a tensor (or a number) of every worker: op is mean, sum, max or min."""
    plugin = _here()
    if isinstance(tensor, torch.Tensor):
        return plugin.all_reduce(tensor, op)
    combined = plugin.all_reduce(torch.tensor(float(tensor), dtype=torch.float64), op)
    return float(combined.item())


def report(**values: float) -> None:
    """Show these numbers in `edl status` and the live table; the leader's are shown."""
    _here().session.teller.reports.update({name: float(value) for name, value in values.items()})


def rank() -> int:
    """This worker's rank in the present generation."""
    shown = _here().session.shown
    return shown.rank if shown is not None else 0


def size() -> int:
    """How many workers the present generation has."""
    shown = _here().session.shown
    return shown.size if shown is not None else 1


def step() -> int:
    """How many steps are committed."""
    progress = _here().session.progress
    return progress.step if progress is not None else 0


def epoch() -> int:
    """The current epoch, from 0."""
    progress = _here().session.progress
    return progress.ledger.epoch if progress is not None else 0


def generation() -> int:
    """The number of the present generation; it grows with every change of membership."""
    shown = _here().session.shown
    return shown.generation if shown is not None else 0


def local_batch_size() -> int:
    """How many rows of the present batch are this worker's own; 0 on a stand-in batch."""
    session = _here().session
    session.ensure_open()
    if session.shown is None:
        return 0
    return session.piece.rows if session.piece.pieces > 1 else session.shown.count


def is_leader() -> bool:
    """Whether this worker leads the job at the moment."""
    agent = _here().session.agent
    return agent.leads if agent is not None else True


def job() -> str:
    """The job's name; `solo` when the script runs alone."""
    return str(_here().session.job)


def device() -> torch.device:
    """Where this worker computes."""
    return _here().device


def _here() -> _Plugin:
    if _plugin is None:
        raise UsageError("call edl.init() first")
    return _plugin


def _at_exit() -> None:
    if _plugin is None:
        return
    if getattr(sys, "last_value", None) is not None:
        # The script ended with an uncaught exception: it takes part in nothing any more.
        _plugin.session.abandon()
        return
    try:
        _plugin.session.shutdown()
    except BaseException:
        # Python would print this and still end with status 0.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
