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

from collections.abc import Callable
from typing import Any

try:
    import torch
except ImportError as error:
    raise ImportError(
        "edl.torch needs PyTorch: pip install 'edl-elastic[torch]', or torch>=2.13,<2.14"
    ) from error
from torch.utils.data import Dataset

from edl.collective.gloo import check_torch
from edl.data.source import Source
from edl.errors import Leave
from edl.plugin import face as _face
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
from edl.torch.dataset import Loader as _Loader
from edl.torch.dataset import Options as _Options
from edl.torch.optimizer import elastic as _elastic
from edl.torch.plugin import Plugin as _Plugin

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


def init(*, bucket_mb: float = 25.0, compression: str | None = None) -> None:
    """Start this worker. Call it once, first; the model and data are built meanwhile.

    Gradients are reduced in buckets of about `bucket_mb` while backward is still running.
    `compression` is "bf16" or "fp16": float32 gradients travel in half the bytes, and are rounded;
    fp16 also turns what is above 65504 into infinity, which bf16 does not.
    """
    check_torch()
    reduction = _Reduction(bucket_mb, compression)
    _face.start(lambda identity: _Plugin(identity, reduction))


def Optimizer(  # noqa: N802 - it stands where a class would
    optimizer: torch.optim.Optimizer, *, model: torch.nn.Module
) -> torch.optim.Optimizer:
    """Make any torch optimizer elastic. It stays an instance of its class."""
    return _elastic(optimizer, model, _here())


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


def all_reduce(tensor: Any, op: str = "mean") -> Any:
    """Combine a tensor (or a number) of every worker: op is mean, sum, max or min."""
    plugin = _here()
    if isinstance(tensor, torch.Tensor):
        return plugin.all_reduce(tensor, op)
    combined = plugin.all_reduce(torch.tensor(float(tensor), dtype=torch.float64), op)
    return float(combined.item())


def device() -> torch.device:
    """Where this worker computes."""
    return _here().device


def _here() -> _Plugin:
    return _face.here(_Plugin)
