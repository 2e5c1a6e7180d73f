"""The same network, momentum and a running mean, in PyTorch."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import edl.torch as edl
from tests.contract.scripts.diary import FEATURES, MOMENTUM, Diary, Schedule, data, parse, weights


class Net(torch.nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.mean: torch.Tensor
        for name, array in weights(seed).items():
            setattr(self, name, torch.nn.Parameter(torch.from_numpy(array)))
        self.register_buffer("mean", torch.zeros(FEATURES))

    def forward(self, x: Any) -> Any:
        self.mean += 0.1 * (x.mean(0) - self.mean)
        w1, b1, w2, b2 = self.parameters()
        return torch.tanh(x @ w1 + b1) @ w2 + b2


def main() -> None:
    options = parse()
    edl.init(bucket_mb=options.bucket_mb)
    model = Net(options.seed)
    schedule = edl.register(Schedule())
    plain = torch.optim.SGD(model.parameters(), lr=schedule.rate, momentum=MOMENTUM)
    optimizer = edl.Optimizer(plain, model=model)
    columns = [torch.from_numpy(array) for array in data(options.samples)]
    loader = edl.DataLoader(
        torch.utils.data.TensorDataset(*columns),
        options.batch,
        seed=5,
        micro_batch=options.micro_batch,
    )

    def look() -> Any:
        moments = [optimizer.state[p].get("momentum_buffer") for p in model.parameters()]
        found = [moment for moment in moments if moment is not None]
        return (p.detach() for p in model.parameters()), found, model.buffers(), schedule.rate

    diary = Diary(edl, options, look)
    for _ in edl.epochs(options.epochs):
        for x, y, indexes in loader:
            loss = functional.cross_entropy(model(x), y)
            diary.intent(indexes, loss.item())
            optimizer.param_groups[0]["lr"] = schedule.rate
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            diary.end_batch()
        schedule.fall()
        if diary.enough():
            break
    edl.shutdown()
    diary.end()


if __name__ == "__main__":
    main()
