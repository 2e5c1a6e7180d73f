"""A training script that logs who reduced what in each step, and what came of it.

With `--leave-first` a worker that has just come leaves its loop inside its first step.
"""

import argparse
import os
import threading
from pathlib import Path
from typing import Any

import journal  # type: ignore[import-not-found]
import torch
import torch.nn.functional as functional

import edl.torch as edl
from edl.collective.gloo import GlooGroup
from edl.collective.relay import Relay


class Net(torch.nn.Module):
    """One layer is used by nobody, one by no newcomer in its first step."""

    def __init__(self) -> None:
        super().__init__()
        self.main = torch.nn.Sequential(
            torch.nn.Linear(6, 300), torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 3)
        )
        self.never = torch.nn.Linear(4, 4)
        self.owned = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.main(x)
        return out + self.owned(x) if edl.local_batch_size() else out


def count_bytes() -> dict[str, int]:
    """How many bytes go through each kind of reduction from now on."""
    seen = {"whole": 0, "apart": 0}
    of_group, opened = GlooGroup.all_reduce, GlooGroup.open_relay

    def whole(self: GlooGroup, tensor: torch.Tensor, op: str = "sum") -> Any:
        seen["whole"] += tensor.nbytes
        return of_group(self, tensor, op)

    def open_relay(self: GlooGroup, **named: Any) -> None:
        opened(self, **named)
        assert isinstance(self.relay, Relay)
        reduce = self.relay.all_reduce

        def apart(tensor: torch.Tensor) -> Any:
            seen["apart"] += tensor.nbytes
            return reduce(tensor)

        self.relay.all_reduce = apart

    GlooGroup.all_reduce = whole  # type: ignore[method-assign]
    GlooGroup.open_relay = open_relay  # type: ignore[method-assign]
    return seen


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--until", required=True)
    parser.add_argument("--compression")
    parser.add_argument("--leave-first", action="store_true")
    options = parser.parse_args()
    seen = count_bytes()
    edl.init(bucket_mb=0.004, compression=options.compression)
    model = Net()
    optimizer = edl.Optimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1), model=model
    )
    made = torch.Generator().manual_seed(3)
    inputs, targets = torch.randn(96, 6, generator=made), torch.arange(96) % 3
    loader = edl.DataLoader(torch.utils.data.TensorDataset(inputs, targets), batch_size=12)
    log = journal.Log(options.log)
    new = bool(os.environ.get("EDL_REQUEST"))
    for _ in edl.epochs(10_000):
        for x, y in loader:
            step, generation, rows = edl.step(), edl.generation(), edl.local_batch_size()
            if new and options.leave_first:
                new = False
                log.write(left=step, generation=generation)
                break
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            unused = sum(p.grad is None for p in model.parameters())
            optimizer.step()
            threading.Event().wait(0.02)
            edl.notify_batch_end()
            log.write(
                step=step,
                committed=edl.step() > step,
                generation=generation,
                size=edl.size(),
                rows=rows,
                unused=unused,
                gradients=journal.digest(gradients),
                seen=journal.digest(list(model.parameters())) + journal.state_digest(optimizer),
                buffers=journal.digest(list(model.buffers())),
                **seen,
            )
            seen.update(whole=0, apart=0)
        if edl.all_reduce(float(Path(options.until).exists()), "max"):
            break
        seen.update(whole=0, apart=0)
    edl.shutdown()


if __name__ == "__main__":
    main()
