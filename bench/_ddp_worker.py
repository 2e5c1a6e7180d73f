"""The benchmarks' workload on DistributedDataParallel: stopped by hand, saved, started anew.

--rest RANK SIZE RENDEZVOUS CHECKPOINT: the first worker saves there when it is told to stop, and
everybody begins with what is there.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from _workload import MODELS, Log, Work, optimizer_of, options_of_worker
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    options = options_of_worker()
    rank, size = int(options.rest[0]), int(options.rest[1])
    rendezvous, checkpoint = options.rest[2], Path(options.rest[3])
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(rendezvous, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    model = MODELS[options.model]()
    optimizer = optimizer_of(options, model)
    first = 0
    if checkpoint.exists():
        found = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        first = found["step"]
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    work, log = Work(options), Log(options.log, f"{size}-{rank}")
    share = options.batch // size
    for step in range(first + 1, 100_000):
        loss = work.forward(wrapped, share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.write(step, size)
        stop = torch.tensor([float(Path(options.until).exists())])
        dist.all_reduce(stop)
        if stop.item():
            break
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, checkpoint)


if __name__ == "__main__":
    main()
