"""How long does it take to measure a job with 4, 3, 2 and 1 workers, and are the figures right?

    python bench/profiling.py [--rounds 3] [--most 4] [--steps 20] [--warm-up 5] [--wait 0.05]
        [--model tiny|mlp|resnet]

Each round has three parts, one after the other. EDL profiles a running job of 4 workers. Without
elasticity each number is a start of its own (stop-resume, plain DDP): start from the checkpoint,
the same warm-up and steps, checkpoint, stop. And one job is started for each number and left
alone: its own log of when steps ended says the throughput that the profile should have found.
Compute is mostly a timed wait proportional to a worker's rows (see _workload.py), and everybody's
real part of it is on one thread, for a worker that is started alone would have two. With 0.05 s for
the whole batch a step takes 13 to 50 ms and what EDL adds, so that a start takes about five times
as long as the 25 steps that follow it; in the paper it is more than ten times (44 s for ResNet50,
and 10 mini-batches). With longer steps the share rises: what EDL saves are the starts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from _stops import ends, wait_for_steps
from _workload import BATCH, MODELS

from edl.client import Job, run

HERE = Path(__file__).resolve().parent
Process = subprocess.Popen[bytes]
Results = dict[str, list[float]]
# As many threads as EDL gives each of its workers where there are more of them than cores.
RIVAL_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=int, default=4, help="workers to begin with")
    parser.add_argument("--steps", type=int, default=20, help="measured at each number")
    parser.add_argument("--warm-up", type=int, default=5, help="before them, not counted")
    parser.add_argument("--static-steps", type=int, default=60, help="of a job left alone")
    parser.add_argument("--model", choices=[*MODELS], default="tiny")
    parser.add_argument("--wait", type=float, default=0.05, help="seconds for the whole batch")
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    return parser.parse_args()


def arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    """What every kind of worker is told."""
    return [
        *("--log", str(folder), "--until", str(folder / "end"), "--model", options.model),
        *("--wait", str(options.wait), "--optimizer", options.optimizer),
    ]


# -- EDL ---------------------------------------------------------------------------------------


def edl_round(options: argparse.Namespace, folder: Path, results: Results) -> dict[int, float]:
    """Throughput by number of workers, as the profile has it."""
    began = time.monotonic()
    job = edl_job(options, folder, options.most)
    start_s = time.monotonic() - began
    told: list[tuple[float, str]] = []
    began = time.monotonic()
    found = job.profile(
        1,
        options.most,
        steps=options.steps,
        warm_up=options.warm_up,
        progress=lambda line: told.append((time.monotonic(), line)),
    )
    whole_s = time.monotonic() - began
    measured_s = next(at for at, line in told if line.startswith("back to")) - began
    finish_job(job, folder)
    results["EDL"].append(measured_s)
    results["EDL, put back"].append(whole_s)
    results["EDL, its one start too"].append(start_s + measured_s)
    print(f"  EDL: {measured_s:.1f} s, put back after {whole_s:.1f} s; {start_s:.1f} s to start")
    if len(found.rows) != options.most or not found.restored:
        raise SystemExit(f"the profile is not complete: {found}")
    return {row.workers: row.throughput for row in found.rows}


def edl_job(options: argparse.Namespace, folder: Path, workers: int) -> Job:
    """Once it trains."""
    os.environ["EDL_HOME"] = str(folder / "home")
    os.environ["OMP_NUM_THREADS"] = "1"
    script = str(HERE / "_edl_worker.py")
    job = run(script, *arguments(options, folder), workers=workers, timeout_s=120.0)
    wait_for_steps(folder, "w0", 1)
    return job


def finish_job(job: Job, folder: Path) -> None:
    (folder / "end").touch()
    job.wait(60)


def static_round(options: argparse.Namespace, folder: Path, workers: int) -> float:
    """The throughput of a job that nobody disturbs, from a worker's own log."""
    job = edl_job(options, folder, workers)
    wait_for_steps(folder, "w0", options.warm_up + options.static_steps)
    finish_job(job, folder)
    times = [end for _, end in ends(folder, "w0").values()][options.warm_up :]
    return BATCH * (len(times) - 1) / (times[-1] - times[0])


# -- by stop and resume ------------------------------------------------------------------------


def stop_resume_round(options: argparse.Namespace, folder: Path, results: Results) -> None:
    began = time.monotonic()
    for workers in range(options.most, 0, -1):
        once(options, folder, workers, f"meet{workers}", options.warm_up + options.steps)
    measured_s = time.monotonic() - began
    # The job was running with so many before: it goes on when it does its next step.
    began = time.monotonic()
    back_s = once(options, folder, options.most, "back", 1) - began
    results["stop-resume"].append(measured_s)
    results["stop-resume, put back"].append(measured_s + back_s)
    print(f"  stop-resume: {measured_s:.1f} s, put back after {measured_s + back_s:.1f} s")


def once(options: argparse.Namespace, folder: Path, size: int, meeting: str, steps: int) -> float:
    """Start from the checkpoint, train, save and stop; returns when the last step was done."""
    output = (folder / "rivals.log").open("ab")
    log = folder / meeting
    log.mkdir()
    workers: list[Process] = [
        subprocess.Popen(
            [
                *(sys.executable, str(HERE / "_ddp_worker.py"), *arguments(options, log)),
                *("--rest", str(rank), str(size), str(log / "rendezvous")),
                str(folder / "checkpoint.pt"),
            ],
            stdout=output,
            stderr=output,
            env=RIVAL_ENVIRONMENT,
        )
        for rank in range(size)
    ]
    try:
        wait_for_steps(log, f"{size}-0", steps)
        done = time.monotonic()
        (log / "end").touch()
        for worker in workers:
            worker.wait(60)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        output.close()
    return done


# -- all of it ---------------------------------------------------------------------------------


def tell(results: Results, options: argparse.Namespace) -> bool:
    """Whether both bars held, by the medians."""
    held = True
    for name, times in results.items():
        if not name[0].isdigit():
            print(
                f"{name}: {statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f})"
            )
    for mine, other, wanted in (
        ("EDL", "stop-resume", "; wanted: at most 25 %"),
        ("EDL, its one start too", "stop-resume", ""),
        ("EDL, put back", "stop-resume, put back", ""),
    ):
        shares = [a / b for a, b in zip(results[mine], results[other], strict=True)]
        print(
            f"{mine} takes {statistics.median(shares):.1%} of the time of {other} "
            f"({min(shares):.1%} to {max(shares):.1%}){wanted}"
        )
        held = held and not (wanted and statistics.median(shares) > 0.25)
    for workers in range(options.most, 0, -1):
        profiled, static = results[f"{workers} profiled"], results[f"{workers} static"]
        ratios = [a / b for a, b in zip(profiled, static, strict=True)]
        print(
            f"{workers} workers: profiled {statistics.median(profiled):.1f} samples/s, left alone "
            f"{statistics.median(static):.1f}: {statistics.median(ratios):.3f} times "
            f"({min(ratios):.3f} to {max(ratios):.3f}); wanted: 0.95 to 1.05"
        )
        held = held and 0.95 <= statistics.median(ratios) <= 1.05
    return held


def main() -> int:
    options = parse()
    results: Results = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        root = Path(tempfile.mkdtemp(prefix="edl-bench-"))
        folders = [root / name for name in ("edl", "rival")]
        folders += [root / f"static{workers}" for workers in range(options.most, 0, -1)]
        for folder in folders:
            folder.mkdir()
        for workers, throughput in edl_round(options, folders[0], results).items():
            results[f"{workers} profiled"].append(throughput)
        stop_resume_round(options, folders[1], results)
        for workers, folder in zip(range(options.most, 0, -1), folders[2:], strict=True):
            results[f"{workers} static"].append(static_round(options, folder, workers))
        shutil.rmtree(root)
    print(
        f"{options.model}, wait {options.wait:g} s for the whole batch, {options.steps} steps "
        f"after {options.warm_up} at {options.most} to 1 workers, {options.rounds} rounds"
    )
    return 0 if tell(results, options) else 1


if __name__ == "__main__":
    sys.exit(main())
