"""Trains, pauses for a long time at one point, trains on. `--who` says who pauses."""

import argparse
import threading

import torch
import torch.nn.functional as functional

import edl.torch as edl


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--who", choices=["one", "all"], required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    edl.init()
    model = torch.nn.Linear(8, 2)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    inputs = torch.randn(60, 8)
    dataset = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    loader = edl.DataLoader(dataset, batch_size=6)
    for epoch in edl.epochs(3):
        for x, y in loader:
            if epoch == 1 and edl.step() == 15 and options.who == "one" and edl.rank() == 1:
                threading.Event().wait(options.seconds)
            loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            edl.notify_batch_end()
        if epoch == 1 and options.who == "all":
            # A validation that takes its time, on every worker at once.
            threading.Event().wait(options.seconds)
    edl.shutdown()
    print(f"steps {edl.step()} workers {edl.size()}", flush=True)


if __name__ == "__main__":
    main()
