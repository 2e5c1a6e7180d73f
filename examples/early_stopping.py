"""What scripts do between epochs, elastically: validate, keep the best model, stop early.

    edl run -n 2 examples/early_stopping.py --out best

Workers may come and go meanwhile, also across an epoch's end. Every worker sees the same metric
(`edl.all_reduce`), so all of them decide alike; what they remember from epoch to epoch is
registered, so that a new worker has it too.

A script may also leave the batch loop early. `--break-at STEP --break-rank RANK` makes one
worker do so on its own: the step counts for nobody, and the epoch ends there for everybody.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import edl.torch as edl


class Best:
    """The best metric so far, and how many epochs have passed without a better one."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.metric = 0.0
        self.epoch = -1
        self.waited = 0

    def improved(self, metric: float, epoch: int) -> bool:
        better = metric > self.metric
        self.waited = 0 if better else self.waited + 1
        if better:
            self.metric, self.epoch = metric, epoch
        return better

    def exhausted(self) -> bool:
        return self.waited >= self.patience

    # These two are all that `edl.register` asks for.

    def state_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "epoch": self.epoch, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.metric, self.epoch = state["metric"], state["epoch"]
        self.waited = state["waited"]


def save(model: nn.Module, best: Best, folder: Path) -> None:
    """Atomically: a reader, or a crash, finds the whole of the old or the whole of the new."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / "best.pt.part"
    torch.save({"model": model.state_dict(), **best.state_dict()}, part)
    part.replace(folder / "best.pt")


def validate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Each worker looks at its part of the images; all of them get the accuracy of the whole."""
    mine = slice(edl.rank(), None, edl.size())
    with torch.no_grad():
        right = (model(images[mine]).argmax(1) == labels[mine]).sum().item()
    seen = edl.all_reduce(len(labels[mine]), op="sum")
    return float(edl.all_reduce(right, op="sum") / seen)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Validation and early stopping, elastically.")
    parser.add_argument("--epochs", type=int, default=50, help="at most")
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--out", type=Path, default=None, metavar="DIR", help="keep the best here")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of timed wait per row")
    parser.add_argument("--break-at", type=int, default=-1, metavar="STEP")
    parser.add_argument("--break-rank", type=int, default=0, metavar="RANK")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    edl.init()
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels, dtype=torch.float32) / 16
    labels = torch.tensor(digits)
    train, held = slice(0, 1437), slice(1437, None)
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    opt = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.01), model=model)
    sched = edl.register(torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.8))
    best = edl.register(Best(args.patience))
    loader = edl.DataLoader(TensorDataset(images[train], labels[train]), batch_size=96, seed=1)
    for epoch in edl.epochs(args.epochs):
        model.train()
        for x, y in loader:
            if edl.step() == args.break_at:
                args.break_at = -1  # once only: the next epoch begins with the same step
                if edl.rank() == args.break_rank:
                    break
            time.sleep(args.pace * len(x))
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            edl.notify_batch_end()
        sched.step()
        model.eval()
        accuracy = validate(model, images[held], labels[held])
        if best.improved(accuracy, epoch) and args.out is not None and edl.rank() == 0:
            save(model, best, args.out)
        line = {"epoch": epoch, "step": edl.step(), "workers": edl.size(), "accuracy": accuracy}
        print(json.dumps({**line, "lr": sched.get_last_lr()[0], "best": best.state_dict()}))
        if best.exhausted():
            break
    print(f"best accuracy {best.metric:.4f} in epoch {best.epoch}, {edl.step()} steps")
    edl.shutdown()


if __name__ == "__main__":
    main()
