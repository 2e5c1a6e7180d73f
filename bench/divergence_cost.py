"""How much longer is a step when replicas are compared (`--digest-steps 200`) than when not?

One job runs blocks of steps with the check and without it, in pairs of random order that all
workers share; the ratio of the step times of a pair is one sample. So a load of the machine that
lasts longer than a pair slows both sides alike. A third side, again without the check, shows the
noise: the ratio of two blocks without it.

The result, with the date, the cores, the commit, the command and the load average, is written to
bench/results/divergence_cost.json.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

EXAMPLES = """examples:
  python bench/divergence_cost.py
  python bench/divergence_cost.py --models mlp --optimizer adam --blocks 60
  python bench/divergence_cost.py --digest-steps 20 --out /tmp/often.json
"""
ROWS = {"mlp": 64, "tiny": 16}  # of one worker
BLOCK_STEPS = {"mlp": 4, "tiny": 100}
SIDES = ("checked", "unchecked", "unchecked again")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="default 2")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=[*ROWS],
        default=[*ROWS],
        help="mlp: 24.9M parameters; tiny: 197k parameters and short steps (default both)",
    )
    parser.add_argument(
        "--optimizer",
        choices=["sgd", "adam"],
        default="sgd",
        help="with momentum, or Adam, whose state is twice as large (default sgd)",
    )
    parser.add_argument(
        "--digest-steps",
        type=int,
        default=200,
        metavar="N",
        help="all parameters are compared within N steps (default 200)",
    )
    parser.add_argument(
        "--blocks", type=int, default=60, metavar="N", help="blocks of each side (default 60)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).parent / "results" / "divergence_cost.json",
        metavar="FILE",
        help="where the result goes (default bench/results/divergence_cost.json)",
    )
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--model", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def inside(options: argparse.Namespace) -> None:
    """One worker. Rank 0 writes the seconds a step of each block, by side."""
    import torch
    from _workload import MODELS

    import edl.torch as edl

    edl.init()
    torch.manual_seed(0)
    rows, steps = ROWS[options.model], BLOCK_STEPS[options.model]
    x, y = torch.randn(rows, 3, 32, 32), torch.randint(0, 10, (rows,))
    model = MODELS[options.model]()
    plain: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    if options.optimizer == "adam":
        plain = torch.optim.Adam(model.parameters(), lr=1e-4)
    optimizer = edl.Optimizer(plain, model=model)
    blocks = 1 + options.blocks * len(SIDES)  # the first one warms up
    batch = rows * options.workers
    data = torch.utils.data.TensorDataset(torch.arange(batch * (blocks * steps + 1)))
    batches = iter(edl.DataLoader(data, batch_size=batch, shuffle=False))
    next(batches)
    check = edl._here().session.check
    draws = random.Random(1)
    order = [SIDES[0]]
    for _ in range(options.blocks):
        order += draws.sample(SIDES, len(SIDES))
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for number, side in enumerate(order):
        # Every worker changes it at the same step, as --digest-steps would from the start.
        check.steps = options.digest_steps if side == "checked" else 0
        began = time.perf_counter()
        for _ in range(steps):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            edl.notify_batch_end()
            next(batches)
        if number:
            found[side].append((time.perf_counter() - began) / steps)
    if edl.rank() == 0:
        Path(options.inside).write_text(json.dumps(found))
    os._exit(0)


def measured(options: argparse.Namespace, model: str) -> dict[str, Any]:
    """A job of its own for each model."""
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        command = [
            *(sys.executable, "-m", "edl.cli.main", "run", "-n", str(options.workers)),
            *(str(Path(__file__)), *sys.argv[1:], "--inside", str(rows), "--model", model),
        ]
        environment = {**os.environ, "EDL_HOME": f"{folder}/home"}
        load_before = os.getloadavg()[0]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not rows.exists():
            sys.exit(done.stdout + done.stderr)
        found = json.loads(rows.read_text())
    checked, unchecked, again = (found[side] for side in SIDES)
    return {
        "model": model,
        "block_steps": BLOCK_STEPS[model],
        "blocks": len(checked),
        "step_ms": {side: round(statistics.median(found[side]) * 1e3, 4) for side in SIDES},
        "ratio": spread([a / b for a, b in zip(checked, unchecked, strict=True)]),
        "noise_ratio": spread([a / b for a, b in zip(again, unchecked, strict=True)]),
        "load_average_before": round(load_before, 2),
        "load_average_after": round(os.getloadavg()[0], 2),
    }


def spread(ratios: list[float]) -> dict[str, float]:
    """The median, its 95 % interval by the bootstrap, and the quartiles of the ratios."""
    draws = random.Random(0)
    medians = sorted(statistics.median(draws.choices(ratios, k=len(ratios))) for _ in range(2000))
    quartiles = statistics.quantiles(ratios, n=4)
    values = {
        "median": statistics.median(ratios),
        "low": medians[50],
        "high": medians[1949],
        "first_quartile": quartiles[0],
        "third_quartile": quartiles[2],
    }
    return {name: round(value, 4) for name, value in values.items()}


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    options = parse()
    if options.inside:
        inside(options)
        return 0
    results = []
    for model in options.models:
        found = measured(options, model)
        results.append(found)
        ratio, noise, step_ms = found["ratio"], found["noise_ratio"], found["step_ms"]
        print(
            f"{model}, {options.workers} workers: {step_ms['checked']:.2f} ms a step with the "
            f"check, {step_ms['unchecked']:.2f} ms without: ratio {ratio['median']:.3f} (95 % "
            f"interval {ratio['low']:.3f} to {ratio['high']:.3f}); noise {noise['median']:.3f} "
            f"({noise['low']:.3f} to {noise['high']:.3f})",
            flush=True,
        )
    result = {
        "command": " ".join(["python", "bench/divergence_cost.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "cores": os.cpu_count(),
        "workers": options.workers,
        "optimizer": options.optimizer,
        "digest_steps": options.digest_steps,
        "models": results,
    }
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
