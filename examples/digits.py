"""Train a small convolutional network on handwritten digits, with any number of workers.

    python examples/digits.py                      # alone
    edl run -n 2 examples/digits.py --epochs 60    # two workers; scale it while it runs

The digits come with scikit-learn, so nothing is downloaded. With `--log DIR` each worker writes
down which samples it used in which step; `examples/exactly_once.py` judges from that.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import edl.torch as edl


class Digits(Dataset[tuple[torch.Tensor, int, int]]):
    """Images of 8x8 pixels; each sample also tells its own index."""

    def __init__(self, *, train: bool) -> None:
        images, labels = load_digits(return_X_y=True)
        # Every fifth image is kept for the test.
        mine = [i for i in range(len(labels)) if (i % 5 != 0) == train]
        self.images = torch.tensor(images[mine], dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels[mine])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return self.images[index], int(self.labels[index]), index


class Log:
    """One JSON line before and one after each step, in a file of this worker's own."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            name = os.environ.get("EDL_WORKER", "solo")
            self._file = (folder / f"{name}.jsonl").open("a", buffering=1)

    def write(self, what: str, **fields: Any) -> None:
        if self._file is not None:
            line = {"what": what, "time": time.time(), **fields}
            self._file.write(json.dumps(line) + "\n")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def accuracy(model: nn.Module, data: Digits) -> float:
    with torch.no_grad():
        guessed = model(data.images).argmax(1)
    return float((guessed == data.labels).double().mean())


def fingerprint(model: nn.Module) -> str:
    """Equal on two workers only if every weight is, bit for bit."""
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits, elastically.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=96, help="aggregate batch of all workers")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--log", type=Path, default=None, metavar="DIR")
    # Stands for the accelerator, which computes while the host is idle: with it, workers help
    # each other also where there are more of them than processor cores.
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of timed wait per row")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    edl.init()
    torch.manual_seed(0)
    data = Digits(train=True)
    model = network()
    opt = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9), model=model)
    sched = edl.register(torch.optim.lr_scheduler.StepLR(opt, max(1, args.epochs // 2), gamma=0.2))
    loader = edl.DataLoader(data, batch_size=args.batch, seed=0)
    log = Log(args.log)
    for epoch in edl.epochs(args.epochs):
        for images, labels, indexes in loader:
            step = edl.step()
            loss = F.cross_entropy(model(images), labels)
            time.sleep(args.pace * len(images))
            log.write(
                "began",
                generation=edl.generation(),
                epoch=epoch,
                step=step,
                # Of a batch without a share in the step no row is used.
                indexes=indexes[: edl.local_batch_size()].tolist(),
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            edl.report(loss=loss.item())
            try:
                edl.notify_batch_end()
            finally:
                # Also on a worker that leaves here: its last step counts.
                log.write(
                    "ended",
                    generation=edl.generation(),
                    epoch=epoch,
                    step=step,
                    advanced=edl.step() > step,
                    loss=loss.item(),
                )
        sched.step()
    # Only workers that finish the job come here.
    score = accuracy(model, Digits(train=False))
    log.write("finished", accuracy=score, fingerprint=fingerprint(model))
    print(f"test accuracy {score:.4f} after {edl.step()} steps", flush=True)
    edl.shutdown()


if __name__ == "__main__":
    main()
