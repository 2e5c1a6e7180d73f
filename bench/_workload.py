"""What the benchmarks train, the same for EDL and for everybody it is compared with.

With a wait, compute is mostly a timed sleep that stands for an accelerator: on two cores, three
busy workers would slow each other by themselves. Around it is a real step. Each worker writes when
each of its steps ended: `STEP SIZE TIME`, one line a step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 24  # of two workers together


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, come: int, go: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(come, go, 3, stride, 1, bias=False), nn.BatchNorm2d(go), nn.ReLU(),
            nn.Conv2d(go, go, 3, 1, 1, bias=False), nn.BatchNorm2d(go),
        )  # fmt: skip
        self.skip = nn.Sequential()
        if stride != 1 or come != go:
            self.skip = nn.Sequential(
                nn.Conv2d(come, go, 1, stride, bias=False), nn.BatchNorm2d(go)
            )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.skip(x))


def resnet18() -> nn.Module:
    """ResNet-18 for images of 32x32: 11.2M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)]
    layers.append(nn.ReLU())
    come = 64
    for go, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(come, go, stride), Block(go, go, 1)]
        come = go
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """24.9M parameters, 99 MB."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 3072), nn.ReLU(), nn.Linear(3072, 4096), nn.ReLU(),
        nn.Linear(4096, 700), nn.ReLU(), nn.Linear(700, 10),
    )  # fmt: skip


def tiny() -> nn.Module:
    """So small that a step is mostly what EDL or DDP add to it."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10))


MODELS = {"mlp": mlp, "resnet": resnet18, "tiny": tiny}


def options_of_worker() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True, help="stop when this file exists")
    parser.add_argument("--model", choices=[*MODELS], default="mlp")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the whole batch")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples of all workers together")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--rest", nargs="*", default=[], help="what one kind of worker needs more")
    return parser.parse_args()


def optimizer_of(options: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    # Fused: one pass over the parameters, so that workers fight less over the cores.
    if options.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)


class Work:
    """One worker's compute. With a wait, few real rows; without, all of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._wait = options.wait / options.batch
        count = BATCH if options.wait else options.batch
        self._x, self._y = torch.randn(count, 3, 32, 32), torch.randint(0, 10, (count,))

    def forward(self, model: Any, rows: int) -> Tensor:
        if self._wait:
            time.sleep(self._wait * rows)
            rows = 4
        rows = max(2, rows)
        return nn.functional.cross_entropy(model(self._x[:rows]), self._y[:rows])


class Log:
    """When each step ended."""

    def __init__(self, folder: str, worker: str) -> None:
        self._file = Path(folder, f"{worker}.steps").open("w", buffering=1)  # noqa: SIM115

    def write(self, step: int, size: int) -> None:
        self._file.write(f"{step} {size} {time.time()}\n")

    def counted(self) -> None:
        """A first step with samples of this worker's own has ended."""
        Path(f"{self._file.name}.counted").write_text(f"{time.time()}\n")
