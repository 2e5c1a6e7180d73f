"""How long until a new worker counts: started from nothing, or forked off a warm template?

    python bench/warm_start.py [--rounds 3] [--times 2] [--models tiny,mlp,resnet] [--wait 0.05]

Two workers train, and one joins: from the request to the end of the newcomer's first step with
samples of its own. Once in a job whose workers are started from nothing, once in one with
`--warm 1`, in turns, `--times` joins in each. Both kinds of joins also take four steps of the job
(the one under way, the one that announces, the newcomer's first without samples, and the first
that counts), so long steps bring them closer to each other; how long they are is told. With `tiny`
a step is mostly the timed wait (see _workload.py); with the others it is mostly arithmetic that
workers share two cores for, which a GPU does elsewhere. The bar: warm takes at most 30 % of cold.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from _stops import ends, wait_for_steps

from edl.client import Job, run

HERE = Path(__file__).resolve().parent
BAR = 0.30


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=2, help="joins in each job")
    parser.add_argument("--models", default="tiny,mlp,resnet")
    parser.add_argument("--wait", type=float, default=0.05, help="seconds for the whole batch")
    return parser.parse_args()


def joins(options: argparse.Namespace, model: str, warm: int) -> tuple[list[float], float]:
    """How long each of a job's joins took, and a usual step of it."""
    folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
    os.environ["EDL_HOME"] = str(folder / "home")
    arguments = ["--log", str(folder), "--until", str(folder / "end"), "--model", model]
    arguments += ["--wait", str(options.wait)]
    script = str(HERE / "_edl_worker.py")
    job = run(script, *arguments, workers=2, warm=warm, timeout_s=120.0)
    found = []
    try:
        wait_for_steps(folder, "w0", 6)
        for number in range(options.times):
            found.append(join(job, folder, f"w{2 + number}"))
            job.scale_in([f"w{2 + number}"])
            wait_for_steps(folder, "w0", 4)
        (folder / "end").touch()
        job.wait(60)
    finally:
        if job.running():
            job.stop(force=True)
    times = [end for _, end in ends(folder, "w0").values()]
    shutil.rmtree(folder)
    return found, statistics.median(b - a for a, b in pairwise(times))


def join(job: Job, folder: Path, worker: str) -> float:
    asked = time.time()
    job.scale_out(1)
    counted = folder / f"{worker}.steps.counted"
    deadline = time.monotonic() + 60
    while not counted.exists() or not counted.read_text().endswith("\n"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{worker} did no step with samples of its own in 60 s")
        time.sleep(0.02)
    return float(counted.read_text()) - asked


def main() -> int:
    options = parse()
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for model in options.models.split(","):
            for kind, warm in (("cold", 0), ("warm", 1)):
                seconds, step_s = joins(options, model, warm)
                taken[model, kind] += seconds
                told = ", ".join(f"{each:.2f}" for each in seconds)
                print(f"  {model} {kind}: {told} s; steps of {step_s:.2f} s", flush=True)
    held = True
    for model in options.models.split(","):
        cold, warm_s = taken[model, "cold"], taken[model, "warm"]
        ratio = statistics.median(warm_s) / statistics.median(cold)
        held = held and ratio <= BAR
        print(
            f"{model}: cold {statistics.median(cold):.2f} s ({min(cold):.2f} to {max(cold):.2f}), "
            f"warm {statistics.median(warm_s):.2f} s ({min(warm_s):.2f} to {max(warm_s):.2f}), "
            f"{len(cold)} times each: {ratio:.0%} (bar: {BAR:.0%})"
        )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
