"""Two optimizers in a step, as adversarial training has them; one worker dies between their steps.

--die WORKER POINT STEP: it kills itself in that step, after the first optimizer's step ("between")
or before it commits ("commit"). Whoever ends the job writes the parameters to --out.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn

import edl.torch as edl
from edl.runtime.session import Session


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
    x = torch.randn(16 * given.steps, 3, dtype=torch.float64)
    one = edl.Optimizer(torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9), model=first)
    two = edl.Optimizer(torch.optim.Adam(second.parameters(), lr=0.01), model=second)
    losses: list[Any] = []
    for (rows,) in edl.DataLoader(torch.utils.data.TensorDataset(x), batch_size=16, seed=1):
        one.zero_grad()
        (first(rows) - 0.3).square().mean().backward()
        one.step()
        die("between")
        two.zero_grad()
        second(first(rows).detach()).square().mean().backward()
        two.step()
        # Of the script's own, after the model has changed.
        losses.append(edl.all_reduce(torch.tensor([float(edl.step())]), op="max").item())
        edl.notify_batch_end()
    parameters = [p.detach().flatten() for net in (first, second) for p in net.parameters()]
    if edl.is_leader():
        Path(given.out).write_text(json.dumps(torch.cat(parameters).tolist()))
    edl.shutdown()


if __name__ == "__main__":
    main()
