"""Trains; the worker that the test names holds the GIL for a while in the middle of it."""

import argparse
import ctypes
import os
from pathlib import Path

import torch

import edl.torch as edl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hold", type=float, default=6.0, help="seconds")
    parser.add_argument("--go", required=True, help="once this file exists, it names who holds it")
    parser.add_argument("--end", required=True, help="train until this file exists")
    options = parser.parse_args()
    edl.init()
    model = torch.nn.Linear(8, 2)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    loader = edl.DataLoader(data, batch_size=8)
    go, held = Path(options.go), False
    for _ in edl.epochs(100000):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            edl.notify_batch_end()
            if not held and go.exists() and go.read_text() == os.environ["EDL_WORKER"]:
                held = True
                print("holds the GIL", flush=True)
                # PyDLL, unlike CDLL, keeps the GIL while the function runs.
                ctypes.PyDLL(None).usleep(ctypes.c_uint(int(options.hold * 1e6)))
                print("held the GIL", flush=True)
        if edl.all_reduce(float(Path(options.end).exists()), "max"):
            break
    edl.shutdown()


if __name__ == "__main__":
    main()
