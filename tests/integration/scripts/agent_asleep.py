"""Trains while the agent's thread of every worker is kept from doing anything at all."""

import threading

import torch

import edl.torch as edl

FIRST, LAST = 10, 90


def main() -> None:
    edl.init()
    model = torch.nn.Linear(8, 2)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    loader = edl.DataLoader(torch.utils.data.TensorDataset(torch.randn(600, 8)), batch_size=6)
    asleep, wake = threading.Event(), threading.Event()
    agent = edl._here().session.agent
    assert agent is not None

    def sleep() -> None:
        asleep.set()
        wake.wait()

    during = 0
    for (x,) in loader:
        if edl.step() == FIRST:
            agent._hub.post(sleep)
            asleep.wait()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        edl.notify_batch_end()
        during += asleep.is_set() and not wake.is_set()
        if edl.step() == LAST:
            wake.set()
    edl.shutdown()
    print(f"steps {edl.step()} asleep for {during}", flush=True)


if __name__ == "__main__":
    main()
