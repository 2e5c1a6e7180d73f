"""Trains with a timed wait for each row, which stands for an accelerator; `--wait` is for all.

Until the file `--until` is there.
"""

import argparse
import threading
from pathlib import Path

import torch

import edl.torch as edl

BATCH = 12


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, required=True)
    parser.add_argument("--until", type=Path, required=True)
    options = parser.parse_args()
    edl.init()
    model = torch.nn.Linear(4, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model=model)
    dataset = torch.utils.data.TensorDataset(torch.randn(BATCH * 1000, 4))
    for (x,) in edl.DataLoader(dataset, batch_size=BATCH, epochs=100):
        threading.Event().wait(options.wait * edl.local_batch_size() / BATCH)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        edl.notify_batch_end()
        if options.until.exists():
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
