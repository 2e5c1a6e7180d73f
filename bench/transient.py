"""What are idle GPUs worth that are there for a short time only?

    python bench/transient.py [--rounds 1] [--idle 1,2,4] [--period 0] [--wait 2.0] [--no-search]
    python bench/transient.py --search

Four workers train for good, and 1, 2 or 4 more slots are idle for a period. Four ways to use them:
  no-use       nobody does
  stop-resume  everybody is stopped, saved and started again with more, and once more with four
               (DistributedDataParallel), in time to train with four when the period is over
  EDL          `edl scale-out --add N --for PERIOD`, workers started from nothing
  EDL warm     the same in a job with `--warm N`
and ideal: more workers for the whole period, by the static throughputs of 4 and of 4 + N workers,
which are measured in the same job. Told is the share of ideal in samples done in the period; where
stop-resume is late to return, until it has, ideal going on with four.

The period. The paper's slots are idle for 4 minutes, and its workers take 21 s to join (ResNet50,
4 -> 5 GPUs, end to end): 8.75 % of the period. A worker here has no GPU to open and little to load,
so it is faster; the period is what keeps the proportion: the time of one cold join, measured first,
divided by 0.0875. --period sets it instead. What does not shrink with it weighs five times as much:
a step of half a second with four workers, of which a join takes three or four, and the second that
leaving processes are given. `--wait 1.0` halves the steps, `--period 240` is the paper's own.

The search finds the shortest period at which each scheme does more samples than no-use with one
idle slot: halving between one that is too short and one that is long enough, in real runs, down to
a fifth; a gain below 1 % counts as none. EDL's periods are so short that a step more or less
decides, so each is the median of five.

Compute is a timed wait proportional to a worker's rows, beside a real step of a small model (see
_workload.py): on two cores eight busy workers would measure each other. The bar: EDL warm reaches
97 % of ideal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Self

import join_and_leave as rivals
from _stops import ends, wait_for_steps
from warm_start import join

from edl.client import Job, run
from edl.errors import Refused

HERE = Path(__file__).resolve().parent
PERSISTENT = 4
BATCH = 120  # the same share for everybody, with 4, 5, 6 and 8 of them
PAPER = 21.0 / 240.0
BAR = 0.97
FINE = 1.2
BEATS = 1.01  # a hundredth may be chance
LONGEST_S = 600.0
REPEATS = 5


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--idle", default="1,2,4", help="how many slots, each in turn")
    parser.add_argument("--period", type=float, default=0.0, help="seconds; 0: as the paper's")
    parser.add_argument("--wait", type=float, default=2.0, help="seconds for the whole batch")
    parser.add_argument("--steady", type=float, default=12.0, help="seconds for each static rate")
    parser.add_argument("--model", choices=["tiny", "mlp", "resnet"], default="tiny")
    parser.add_argument("--no-search", dest="search", action="store_false")
    parser.add_argument("--search", dest="only", action="store_true", help="nothing but the search")
    options = parser.parse_args()
    options.optimizer = "sgd"
    return options


# -- counting ----------------------------------------------------------------------------------


def done(times: list[float], at: float) -> float:
    """Steps that have ended by then, and the part of the one under way."""
    before = [end for end in times if end <= at]
    after = [end for end in times if end > at]
    if not before:
        return 0.0
    under_way = (at - before[-1]) / (after[0] - before[-1]) if after else 0.0
    return len(before) + under_way


def steps(folder: Path, worker: str) -> list[float]:
    return [row[1] for row in ends(folder, worker).values()]


def rate(folder: Path, worker: str, seconds: float) -> float:
    """Steps a second from now on."""
    began = time.time()
    time.sleep(seconds)
    until = time.time()
    wait_for_steps(folder, worker, 1)
    times = steps(folder, worker)
    return (done(times, until) - done(times, began)) / (until - began)


# -- EDL ---------------------------------------------------------------------------------------


class Elastic:
    """One job of four workers, of which w0 stays to the end; `with` it, none is left behind."""

    def __init__(self, options: argparse.Namespace, warm: int) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
        os.environ["EDL_HOME"] = str(self.folder / "home")
        script = str(HERE / "_edl_worker.py")
        arguments = [*rivals.arguments(options, self.folder), "--batch", str(BATCH)]
        self.job: Job = run(script, *arguments, workers=PERSISTENT, warm=warm, timeout_s=180.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *why: object) -> None:
        (self.folder / "end").touch()
        try:
            if why[0] is None:
                self.job.wait(90)
        finally:
            if self.job.running():
                self.job.stop(force=True)
            shutil.rmtree(self.folder)

    def settle(self) -> None:
        wait_for_steps(self.folder, "w0", 6, size=PERSISTENT)

    def static(self, more: int) -> float:
        """Steps a second with so many more workers."""
        if more:
            self.job.scale_out(more)
            wait_for_steps(self.folder, "w0", 4, size=PERSISTENT + more)
        found = rate(self.folder, "w0", self.options.steady)
        if more:
            self.job.scale_in(more)
            self.settle()
        return found

    def period(self, more: int, seconds: float) -> float:
        """Steps in a period with so many workers lent. Says so if they were not back in time."""
        seen = sum(1 for _ in self.job.events())
        began = time.time()
        # A period that is too short for anybody to be of use is refused: four do it alone.
        with contextlib.suppress(Refused):
            self.job.scale_out(more, for_s=seconds, wait=False)
        time.sleep(max(0.0, began + seconds - time.time()))
        wait_for_steps(self.folder, "w0", 1)
        times = steps(self.folder, "w0")
        found = done(times, began + seconds) - done(times, began)
        deadline = time.monotonic() + 30
        while self.job.transients() and time.monotonic() < deadline:
            time.sleep(0.05)
        told = [event for event in self.job.events(since=seen) if event.what == "transient.over"]
        spare = min((float(str(event.fields["spare_s"])) for event in told), default=0.0)
        if spare < 0:
            print(f"  back {-spare:.1f} s after the end of the period", flush=True)
        self.settle()
        return found


def start_up(options: argparse.Namespace) -> float:
    """Of one worker that is started from nothing, from the request to its first counted step."""
    found = []
    with Elastic(options, warm=0) as job:
        job.settle()
        for number in range(2):
            worker = f"w{PERSISTENT + number}"
            found.append(join(job.job, job.folder, worker).seconds)
            job.job.scale_in([worker])
            job.settle()
    return statistics.median(found)


# -- stop-resume -------------------------------------------------------------------------------


class Stopped:
    """DistributedDataParallel in phases, each of other processes with a folder of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
        self.phases: list[tuple[Path, int]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        self.resume_s = 0.0

    def __enter__(self) -> Self:
        self.begin(PERSISTENT)
        return self

    def __exit__(self, *why: object) -> None:
        if why[0] is not None:
            for worker in self.workers:
                worker.kill()
        rivals.finish(self.phases[-1][0], self.workers)
        shutil.rmtree(self.folder)

    def settle(self) -> None:
        wait_for_steps(self.phases[-1][0], f"{PERSISTENT}-0", 4)

    def begin(self, size: int) -> None:
        folder = self.folder / str(len(self.phases))
        folder.mkdir()
        self.phases.append((folder, size))
        rest = [str(size), str(folder / "meet"), str(self.folder / "checkpoint.pt")]
        extra = ["--batch", str(BATCH)]
        self.workers = [
            rivals.start("_ddp_worker.py", self.options, folder, str(rank), *rest, *extra)
            for rank in range(size)
        ]

    def resume(self, size: int) -> None:
        """Everybody stops, and so many begin where they were."""
        began = time.monotonic()
        rivals.finish(self.phases[-1][0], self.workers)
        self.begin(size)
        wait_for_steps(self.phases[-1][0], f"{size}-0", 1)
        self.resume_s = time.monotonic() - began
        print(f"  stop-resume: {size} train again after {self.resume_s:.1f} s", flush=True)

    def times(self, which: int) -> list[float]:
        folder, size = self.phases[which]
        return steps(folder, f"{size}-0")

    def period(self, more: int, seconds: float) -> tuple[float, float]:
        """Steps since it began, and how long it took to train with four again."""
        first, began = len(self.phases) - 1, time.time()
        self.resume(PERSISTENT + more)
        time.sleep(max(0.0, began + seconds - self.resume_s - time.time()))
        self.resume(PERSISTENT)
        until = max(began + seconds, self.times(-1)[0])
        if time.time() < until:
            time.sleep(until - time.time())
        wait_for_steps(self.phases[-1][0], f"{PERSISTENT}-0", 1)
        found = done(self.times(first), time.time()) - done(self.times(first), began)
        found += len(self.times(first + 1))
        return found + done(self.times(-1), until), until - began


# -- all of it ---------------------------------------------------------------------------------

Shares = dict[tuple[int, str], list[float]]


def one_round(options: argparse.Namespace, idle: int, period_s: float, shares: Shares) -> None:
    with Elastic(options, warm=idle) as job:
        job.settle()
        few, many = job.static(0), job.static(idle)
        ideal = many * period_s
        found = {"no-use": few / many, "EDL warm": job.period(idle, period_s) / ideal}
    with Elastic(options, warm=0) as job:
        job.settle()
        found["EDL"] = job.period(idle, period_s) / ideal
    with Stopped(options) as stopped:
        stopped.settle()
        done_steps, took_s = stopped.period(idle, period_s)
    found["stop-resume"] = done_steps / (ideal + (took_s - period_s) * few)
    for scheme, share in found.items():
        shares[idle, scheme].append(share)
    told = ", ".join(f"{scheme} {share:.1%}" for scheme, share in found.items())
    print(
        f"  {idle} idle: {few * BATCH:.0f} samples/s with four, {many * BATCH:.0f} with "
        f"{PERSISTENT + idle}; of ideal: {told}",
        flush=True,
    )


def shortest(gain: Callable[[float], float], low: float) -> float:
    """The shortest period that beats no-use, to a fifth; `gain`: samples over those of no-use."""

    def beats(seconds: float) -> bool:
        found = gain(seconds)
        print(f"    in {seconds:.1f} s {found:.1%} of no-use", flush=True)
        return found > BEATS

    high = low
    while not beats(high):
        low, high = high, high * 2
        if high > LONGEST_S:
            return float("inf")
    while high / low > FINE:
        middle = (low * high) ** 0.5
        if beats(middle):
            high = middle
        else:
            low = middle
    return high


def search(options: argparse.Namespace) -> None:
    print("the shortest period that beats no-use, one idle slot", flush=True)
    for scheme, warm in (("EDL warm", 1), ("EDL", 0)):
        with Elastic(options, warm=warm) as job:
            job.settle()
            few = job.static(0)

            def gain(seconds: float, job: Elastic = job, few: float = few) -> float:
                found = [job.period(1, seconds) for _ in range(REPEATS)]
                return statistics.median(found) / (few * seconds)

            # In less than this nobody could do a step: leaving alone takes as long.
            print(f"  {scheme}: {shortest(gain, 1.5):.1f} s", flush=True)
    with Stopped(options) as stopped:
        stopped.settle()
        few = rate(stopped.phases[0][0], f"{PERSISTENT}-0", options.steady)

        def gain_of_stopping(seconds: float) -> float:
            steps_done, took_s = stopped.period(1, seconds)
            return steps_done / (few * took_s)

        print(f"  stop-resume: {shortest(gain_of_stopping, 20.0):.1f} s", flush=True)


def main() -> int:
    options = parse()
    os.environ.update(rivals.KEEP_MEMORY)
    rivals.RIVAL_ENVIRONMENT.update(rivals.KEEP_MEMORY)
    rivals.RIVAL_ENVIRONMENT["OMP_NUM_THREADS"] = "1"
    if options.only:
        search(options)
        return 0
    period_s = options.period
    if not period_s:
        joined_s = start_up(options)
        period_s = joined_s / PAPER
        print(f"a cold join takes {joined_s:.1f} s, so the period is {period_s:.0f} s", flush=True)
    shares: Shares = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for idle in map(int, options.idle.split(",")):
            one_round(options, idle, period_s, shares)
    for (idle, scheme), found in shares.items():
        print(f"{idle} idle, {scheme}: {statistics.median(found):.1%} of ideal ({len(found)})")
    if options.search:
        search(options)
    reached = [
        statistics.median(found) for (_, scheme), found in shares.items() if scheme == "EDL warm"
    ]
    print(f"EDL warm reaches at least {min(reached):.1%} of ideal (bar: {BAR:.0%})")
    return 0 if min(reached) >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
