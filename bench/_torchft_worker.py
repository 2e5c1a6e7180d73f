"""The benchmarks' workload on torchft: one replica a process, its own DDP and optimizer wrapper.

--rest REPLICA TIMEOUT_S [GO]: the replica's name, the process group's timeout, and a file that
tells this replica to leave after its step.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from _workload import BATCH, MODELS, Log, Work, optimizer_of, options_of_worker
from torchft import (  # type: ignore[import-not-found]
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)


def main() -> None:
    options = options_of_worker()
    name, timeout_s, *leave = options.rest
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = MODELS[options.model]()
    inner = optimizer_of(options, model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=float(timeout_s))),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        replica_id=name,
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        timeout=timedelta(seconds=60),
    )
    wrapped = DistributedDataParallel(manager, model, gradient_as_bucket_view=True)
    optimizer = Optimizer(manager, inner)
    work, log = Work(options), Log(options.log, name)
    while not Path(options.until).exists() and not any(Path(file).exists() for file in leave):
        optimizer.zero_grad()
        work.forward(wrapped, BATCH // 2).backward()
        optimizer.step()
        log.write(manager.current_step(), manager.num_participants())
    manager.shutdown(wait=False)
    os._exit(0)


if __name__ == "__main__":
    main()
