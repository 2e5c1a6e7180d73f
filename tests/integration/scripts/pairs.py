"""Two optimizers in a step, as adversarial training has them; one worker dies between their steps.

--die WORKER POINT STEP: it kills itself in that step, after the first optimizer's step ("between")
or before it commits ("commit"). With --search, one optimizer that evaluates the loss several times
in a step, and "search" is the second time. Everybody writes its parameters to a file in --out.
"""

import argparse
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import nn

import edl.torch as edl
from edl.runtime.session import Session

Batches = Iterable[tuple[torch.Tensor]]


class Net(nn.Module):
    scale: torch.Tensor

    def __init__(self, come: int, go: int) -> None:
        super().__init__()
        self.layer = nn.Linear(come, go, dtype=torch.float64)
        # A buffer, so that a generation's first step ends with a round of its own.
        self.register_buffer("scale", torch.ones(1, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.layer(x)) * self.scale


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--die", nargs=3, default=("", "", "-1"))
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--steps", type=int, default=12)
    return parser.parse_args()


def main() -> None:
    given = options()
    worker, point, at = given.die

    def die(here: str) -> None:
        if (os.environ.get("EDL_WORKER"), here, edl.step()) == (worker, point, int(at)):
            os.kill(os.getpid(), signal.SIGKILL)

    commit = Session._commit

    def dying_commit(self: Session) -> None:
        die("commit")
        commit(self)

    Session._commit = dying_commit  # type: ignore[method-assign]
    edl.init()
    torch.manual_seed(7)
    first, second = Net(3, 4), Net(4, 1)
    data = torch.utils.data.TensorDataset(torch.randn(16 * given.steps, 3, dtype=torch.float64))
    train = search if given.search else alternate
    train(first, second, edl.DataLoader(data, batch_size=16, seed=1), die)
    parameters = [p.detach().flatten() for net in (first, second) for p in net.parameters()]
    out = Path(given.out, f"{os.environ.get('EDL_WORKER', 'alone')}.json")
    out.write_text(json.dumps(torch.cat(parameters).tolist()))
    edl.shutdown()


def alternate(first: Net, second: Net, loader: Batches, die: Callable[[str], None]) -> None:
    one = edl.Optimizer(torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9), model=first)
    two = edl.Optimizer(torch.optim.Adam(second.parameters(), lr=0.01), model=second)
    for (rows,) in loader:
        # A step's computation, so that the job lasts until its launcher has heard of it.
        time.sleep(0.1)
        one.zero_grad()
        (first(rows) - 0.3).square().mean().backward()
        one.step()
        die("between")
        two.zero_grad()
        second(first(rows).detach()).square().mean().backward()
        two.step()
        # A reduction of the script's own, after the model has changed.
        told = edl.all_reduce(torch.tensor([float(edl.step())]), op="max")
        assert told.item() == edl.step()
        edl.notify_batch_end()


def search(first: Net, second: Net, loader: Batches, die: Callable[[str], None]) -> None:
    both = nn.Sequential(first, second)
    optimizer = edl.Optimizer(torch.optim.LBFGS(both.parameters(), max_iter=4), model=both)
    for (rows,) in loader:
        evaluations = itertools.count(1)

        def loss(rows: torch.Tensor = rows, evaluations: Iterator[int] = evaluations) -> float:
            optimizer.zero_grad()
            found = (both(rows) - 0.2).square().mean()
            if next(evaluations) == 2:
                die("search")
            found.backward()
            return float(found)

        optimizer.step(loss)
        edl.notify_batch_end()


if __name__ == "__main__":
    main()
