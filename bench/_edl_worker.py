"""The benchmarks' workload on EDL."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from _workload import MODELS, Log, Work, optimizer_of, options_of_worker

import edl.torch as edl


def main() -> None:
    options = options_of_worker()
    edl.init()
    model = MODELS[options.model]()
    optimizer = edl.Optimizer(optimizer_of(options, model), model=model)
    data = torch.utils.data.TensorDataset(torch.arange(options.batch * 100_000))
    loader = edl.DataLoader(data, batch_size=options.batch, shuffle=False)
    work, log = Work(options), Log(options.log, os.environ["EDL_WORKER"])
    counted = False
    for _ in loader:
        rows = edl.local_batch_size()
        loss = work.forward(model, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        edl.notify_batch_end()
        log.write(edl.step(), edl.size())
        if rows and not counted:
            counted = True
            log.counted()
        if Path(options.until).exists():
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
