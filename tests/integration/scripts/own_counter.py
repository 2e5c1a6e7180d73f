"""Trains with a learning rate that the script sets itself at every step, and can go wrong by it.

`--rate own` takes it from a counter of the script's own, which a new worker begins at 0 (as in
nanoGPT); `--rate job` takes it from edl.step(). `--disturb STEP` adds to one weight of one worker
after that step. Prints, at the end, a digest of the parameters.
"""

import argparse
import hashlib
import math
import os
import time
from pathlib import Path

import torch

import edl.torch as edl


def schedule(number: int) -> float:
    """Cosine from 0.05 down to 0.005 in 400 steps."""
    return 0.005 + 0.0225 * (1 + math.cos(math.pi * min(number, 400) / 400))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", choices=["own", "job"], default="own")
    parser.add_argument("--disturb", type=int, default=-1)
    parser.add_argument("--worker", default="w1", help="whose weight is disturbed")
    parser.add_argument("--until", required=True, help="go on until this file exists")
    parser.add_argument("--most", type=int, default=100_000, help="and at most so many epochs")
    return parser.parse_args()


def main() -> None:
    options = parse()
    edl.init()
    torch.manual_seed(1)
    last = torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), last)
    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.05), model=model)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(240, 8, generator=data)
    loader = edl.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=24, seed=5)
    iter_num = 0
    for _ in edl.epochs(options.most):
        for rows, targets in loader:
            number = iter_num if options.rate == "own" else edl.step()
            for group in optimizer.param_groups:
                group["lr"] = schedule(number)
            loss = (model(rows).squeeze(1) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            iter_num += 1
            mine = os.environ.get("EDL_WORKER", "") == options.worker
            if mine and edl.step() == options.disturb:
                with torch.no_grad():
                    last.weight[0, 3] += 1e-3
            time.sleep(0.01)
            edl.notify_batch_end()
        if edl.all_reduce(float(Path(options.until).exists()), "max"):
            break
    edl.shutdown()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    print("digest", hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main()
