"""How long until a new worker counts: started from nothing, or forked off a warm template?

    python bench/warm_start.py [--rounds 3] [--times 2] [--models tiny,mlp,resnet] [--wait 0.05,0.2]

Two workers train, and one joins: from the request to the end of the newcomer's first step with
samples of its own. Once in a job whose workers are started from nothing, once in one with
`--warm 1`, in turns, `--times` joins in each. The bar: warm takes at most 30 % of cold.

Both kinds of joins also take the job's own steps: the rest of the one under way when the newcomer
is ready, the one that announces, the newcomer's first without samples, and the first that counts.
No start-up is fast enough to save these, so how much of each kind they are is told: it is the time
from the announcement (the event adjust.announced) to the end.

What is judged, by the exit status: models whose step is mostly the timed wait (see _workload.py),
which stands for an accelerator; whether it is, is measured. Where a step is mostly arithmetic, the
newcomer and the old workers share a machine's few cores, so that each slows the others and their
steps are most of a warm join; a GPU does that elsewhere. Those are told beside it, not judged.
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
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from _stops import ends, wait_for_steps

from edl.client import Job, run

HERE = Path(__file__).resolve().parent
BAR = 0.30
WORKERS = 2
# A step of which the wait is a larger part than this is mostly the wait.
MOSTLY = 0.5


@dataclass(frozen=True, slots=True)
class Join:
    """From the request to the end of the first step that counts."""

    seconds: float
    steps_s: float  # of these, the job's own steps

    @property
    def start_s(self) -> float:
        """What a faster start could save."""
        return self.seconds - self.steps_s


@dataclass(slots=True)
class Kind:
    """All joins of one kind, and the usual step of each job."""

    joins: list[Join] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def median(self, part: str = "seconds") -> float:
        return statistics.median(getattr(join, part) for join in self.joins)

    def __str__(self) -> str:
        taken = [join.seconds for join in self.joins]
        step_s = statistics.median(self.step_s)
        return (
            f"{self.median():.2f} s ({min(taken):.2f} to {max(taken):.2f}), of it "
            f"{self.median('steps_s'):.2f} s the job's steps of {step_s:.2f} s"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=int, default=2, help="joins in each job")
    parser.add_argument("--models", default="tiny,mlp,resnet")
    parser.add_argument("--wait", default="0.05", help="seconds for the whole batch, one or more")
    return parser.parse_args()


def joins(options: argparse.Namespace, model: str, wait_s: float, warm: int, found: Kind) -> None:
    """One job, its joins one after another."""
    folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
    os.environ["EDL_HOME"] = str(folder / "home")
    arguments = ["--log", str(folder), "--until", str(folder / "end"), "--model", model]
    arguments += ["--wait", str(wait_s)]
    script = str(HERE / "_edl_worker.py")
    job = run(script, *arguments, workers=WORKERS, warm=warm, timeout_s=120.0)
    try:
        wait_for_steps(folder, "w0", 6)
        for number in range(options.times):
            worker = f"w{WORKERS + number}"
            found.joins.append(join(job, folder, worker))
            job.scale_in([worker])
            wait_for_steps(folder, "w0", 4)
        (folder / "end").touch()
        job.wait(60)
    finally:
        if job.running():
            job.stop(force=True)
    times = [end for _, end in ends(folder, "w0").values()]
    shutil.rmtree(folder)
    found.step_s.append(statistics.median(b - a for a, b in pairwise(times)))


def join(job: Job, folder: Path, worker: str) -> Join:
    asked = time.time()
    record = job.scale_out(1)
    assert record is not None
    counted = folder / f"{worker}.steps.counted"
    deadline = time.monotonic() + 60
    while not counted.exists() or not counted.read_text().endswith("\n"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{worker} did no step with samples of its own in 60 s")
        time.sleep(0.02)
    end = float(counted.read_text())
    (announced,) = (
        event.time
        for event in job.events()
        if event.what == "adjust.announced" and event.request_id == record.request_id
    )
    return Join(end - asked, end - announced)


def judge(model: str, wait_s: float, cold: Kind, warm: Kind) -> bool | None:
    """Whether the bar is held; None: this one is not judged."""
    ratio = warm.median() / cold.median()
    starts = warm.median("start_s") / cold.median("start_s")
    waited = wait_s / WORKERS / statistics.median(warm.step_s + cold.step_s)
    judged = waited > MOSTLY
    print(
        f"{model}, wait {wait_s:g} s ({min(waited, 1.0):.0%} of a step), {len(cold.joins)} times:"
    )
    print(f"  cold {cold}")
    print(f"  warm {warm}")
    bar = f"bar: {BAR:.0%}" if judged else "not judged: its step is mostly arithmetic"
    print(f"  warm of cold: {ratio:.0%} ({bar}); without the job's steps {starts:.0%}", flush=True)
    return ratio <= BAR if judged else None


def main() -> int:
    options = parse()
    cases = [
        (model, float(wait))
        for wait in options.wait.split(",")
        for model in options.models.split(",")
    ]
    taken: dict[tuple[str, float, str], Kind] = defaultdict(Kind)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for model, wait_s in cases:
            for kind, warm in (("cold", 0), ("warm", 1)):
                found = taken[model, wait_s, kind]
                joins(options, model, wait_s, warm, found)
                told = ", ".join(f"{each.seconds:.2f}" for each in found.joins[-options.times :])
                print(f"  {model} {wait_s:g} {kind}: {told} s", flush=True)
    verdicts = [
        judge(model, wait_s, taken[model, wait_s, "cold"], taken[model, wait_s, "warm"])
        for model, wait_s in cases
    ]
    if all(verdict is None for verdict in verdicts):
        print("nothing was judged: no model's step is mostly the wait; give tiny, or a longer wait")
        return 2
    return 1 if False in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
