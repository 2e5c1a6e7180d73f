"""Registers an object whose values rightly differ between workers, and trains a few epochs.

`--registers average`: a moving average of a model with BatchNorm, whose buffers it copies.
`--registers total`: a sum over this worker's own rows, with `same=False`; `--compared` leaves
`same=False` out.
"""

import argparse
import os

import torch

import edl.torch as edl


class Total:
    """The sum of one worker's losses, each times its rows."""

    def __init__(self) -> None:
        self.value = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--registers", choices=["average", "total"], required=True)
    parser.add_argument("--compared", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = parse()
    edl.init()
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    )
    optimizer = edl.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.05), model=model)
    average, total = torch.optim.swa_utils.AveragedModel(model), Total()
    if options.registers == "average":
        edl.register(average)
    else:
        edl.register(total, same=options.compared)
    data = torch.Generator().manual_seed(7)
    x = torch.randn(240, 8, generator=data)
    loader = edl.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1)), batch_size=24, seed=5)
    for _ in edl.epochs(3):
        for rows, targets in loader:
            if os.environ.get("EDL_WORKER", "") == "w1":
                # Its BatchNorm counts one batch more in every step.
                with torch.no_grad():
                    model(rows)
            loss = (model(rows).squeeze(1) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model)
            total.value += loss.item() * edl.local_batch_size()
            edl.notify_batch_end()
    edl.shutdown()


if __name__ == "__main__":
    main()
