"""Does a step with EDL take as long as with DistributedDataParallel (Gloo), without any scaling?

    python bench/static_throughput.py [--workers 2] [--model mlp|resnet|tiny] [--blocks 40]
        [--steps 4] [--batch 64] [--wait S]

Both run interleaved in the same processes, block by block, on the same model and batch; the ratio
of each pair of blocks is one sample. With --wait the compute is mostly a timed wait proportional
to a worker's rows, which stands for an accelerator: for more workers than cores. With one worker
EDL is compared with the plain loop.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", choices=["mlp", "resnet", "tiny"], default="mlp")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=4, help="in a block")
    parser.add_argument("--batch", type=int, default=64, help="a worker's")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds a worker's batch takes")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_ddp(options: argparse.Namespace, model: Any, rank: int) -> Any:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    store = dist.FileStore(options.inside, options.workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=options.workers)
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


def inside(options: argparse.Namespace) -> None:
    """One worker: blocks of EDL and of the other, in an order all workers share."""
    import torch
    from _workload import MODELS

    import edl.torch as edl

    edl.init()
    torch.manual_seed(0)
    make = MODELS[options.model]
    rows = options.batch
    x, y = torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))
    mine, theirs = make(), make()
    optimizer = edl.Optimizer(torch.optim.SGD(mine.parameters(), lr=1e-3, momentum=0.9), model=mine)
    steps = options.blocks * options.steps + 8
    data = torch.utils.data.TensorDataset(torch.arange(rows * options.workers * steps))
    loader = edl.DataLoader(data, batch_size=rows * options.workers, shuffle=False)
    batches: Iterator[object] = iter(loader)
    next(batches)
    other = in_ddp(options, theirs, edl.rank()) if options.workers > 1 else theirs
    sampler = torch.utils.data.DistributedSampler(
        data, num_replicas=options.workers, rank=edl.rank(), shuffle=False
    )
    their_batches = iter(torch.utils.data.DataLoader(data, batch_size=rows, sampler=sampler))
    plain = torch.optim.SGD(theirs.parameters(), lr=1e-3, momentum=0.9)

    def step(model: Any, opt: Any) -> None:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if options.wait:
            time.sleep(options.wait)
        opt.zero_grad()
        loss.backward()
        opt.step()

    def edl_step() -> None:
        step(mine, optimizer)
        edl.notify_batch_end()
        next(batches)

    def their_step() -> None:
        step(other, plain)
        next(their_batches)

    def timed(once: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(options.steps):
            once()
        return time.perf_counter() - began

    for _ in range(3):
        edl_step()
        their_step()
    ratios, ours, rival = compare(options, lambda: timed(edl_step), lambda: timed(their_step))
    if edl.rank() == 0:
        tell(options, ratios, ours, rival)
    os._exit(0)


def compare(
    options: argparse.Namespace, mine: Callable[[], float], theirs: Callable[[], float]
) -> tuple[list[float], list[float], list[float]]:
    """Pairs of blocks, in an order that all workers share."""
    order = random.Random(1)
    ratios, ours, rival = [], [], []
    for _ in range(options.blocks):
        first = order.random() < 0.5
        a = mine() if first else 0.0
        b = theirs()
        a = a if first else mine()
        ratios.append(b / a)
        ours.append(a / options.steps)
        rival.append(b / options.steps)
    return ratios, ours, rival


def tell(
    options: argparse.Namespace,
    ratios: list[float],
    ours: list[float],
    theirs: list[float],
    *,
    rival: str = "",
) -> None:
    middle = statistics.median(ratios)
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    low, high = medians[50], medians[1949]
    name = rival or ("DDP" if options.workers > 1 else "plain loop")
    print(
        f"{options.model}, {options.workers} workers, wait {options.wait:g} s: EDL "
        f"{statistics.median(ours) * 1e3:.1f} ms, {name} {statistics.median(theirs) * 1e3:.1f} ms "
        f"a step; throughput ratio median {middle:.3f}, 95 % interval {low:.3f} to {high:.3f} "
        f"({len(ratios)} paired blocks)",
        flush=True,
    )


def main() -> int:
    options = parse()
    if options.inside:
        inside(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "edl.cli.main", "run", "-n", str(options.workers)),
            *(str(Path(__file__)), *sys.argv[1:], "--inside", f"{folder}/store"),
        ]
        environment = {**os.environ, "EDL_HOME": f"{folder}/home"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if "throughput ratio" in line]
        print("\n".join(lines) or done.stdout + done.stderr)
        return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main())
