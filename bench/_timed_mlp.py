"""Workload of the join and leave benchmarks: 25M parameters, compute mostly a timed wait.

The wait is proportional to the worker's rows and stands for an accelerator: on two cores, three
busy workers would slow each other by themselves. Around it is a real step. Every worker writes
when each of its steps ended.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

import edl.torch as edl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--wait", type=float, default=1.6, help="seconds for the whole batch")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    options = parser.parse_args()
    edl.init()
    model = nn.Sequential(
        nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 4096), nn.ReLU(),
        nn.Linear(4096, 700), nn.ReLU(), nn.Linear(700, 10),
    )  # fmt: skip
    made: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if options.optimizer == "adamw":
        made = torch.optim.AdamW(model.parameters(), lr=1e-4)
    optimizer = edl.Optimizer(made, model=model)
    batch = 24
    data = torch.utils.data.TensorDataset(torch.arange(batch * 100_000))
    loader = edl.DataLoader(data, batch_size=batch, shuffle=False)
    x, y = torch.randn(4, 3072), torch.randint(0, 10, (4,))
    name = f"{os.environ['EDL_WORKER']}.steps"
    with Path(options.log, name).open("w", buffering=1) as log:
        for _ in loader:
            time.sleep(options.wait * edl.local_batch_size() / batch)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            edl.notify_batch_end()
            log.write(f"{edl.step()} {edl.size()} {time.time()}\n")
            if Path(options.until).exists():
                break
    edl.shutdown()


if __name__ == "__main__":
    main()
