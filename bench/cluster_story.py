"""What the paper shows of clusters: job sizes, load over time, idle GPUs, and its small workload.

    python bench/cluster_story.py sizes         percentiles of the trace's job sizes
    python bench/cluster_story.py load          GPUs asked for over time, against 2,304
    python bench/cluster_story.py idle          how long GPUs stay idle between two jobs
    python bench/cluster_story.py synthetic     16 jobs on 32 GPUs: static beside elastic
        [--data DIR] [--plot FILE.png] [--seed S]

The trace does not say which GPU a job had, nor when it started; for `idle` Tiresias schedules it,
and a job gets the GPUs that have been idle for the shortest time, or for the longest. The
small workload draws from the measured models at hand, not from the paper's nine.
"""

from __future__ import annotations

import argparse
import heapq
import os
import sys
from bisect import bisect_right
from collections import deque
from pathlib import Path

from edl.policy.base import Policy
from edl.policy.book import Book
from edl.policy.static import Static
from edl.policy.together import Together
from edl.policy.uniform import Uniform
from edl.simulator.engine import Arrival, Engine
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.outcome import Span
from edl.simulator.run import simulate
from edl.simulator.setting import MECHANISMS, Setting
from edl.simulator.speeds import Speeds
from edl.simulator.summary import percentile
from edl.simulator.timeline import Recorder
from edl.simulator.trace import read_trace

TRACE = "philly_all_recon.csv.gz"
NODES, EACH = 288, 8
SHORT_S = 240.0
Series = list[tuple[float, float, float]]  # time, cluster efficiency, mean GPU efficiency


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["sizes", "load", "idle", "synthetic"])
    here = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EDL_DATA", here)))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def whole_trace(options: argparse.Namespace) -> Trace:
    return read_trace(options.data / TRACE, capacity=NODES * EACH)


def sizes(options: argparse.Namespace) -> int:
    ordered = sorted(job.gpus * job.duration_s for job in whole_trace(options).jobs)
    for share in (0.1, 0.2, 0.5, 0.8, 0.9, 0.99):
        print(f"{share:.0%} of the jobs take at most {percentile(ordered, share):,.0f} GPU*s")
    print("the paper: 85 GPU*s at 20 %, 58,330 GPU*s at 90 %")
    return 0


def load(options: argparse.Namespace) -> int:
    """As if every job had started when it was submitted."""
    changes: list[tuple[float, int]] = []
    for job in whole_trace(options).jobs:
        changes += [(job.submit_s, job.gpus), (job.submit_s + job.duration_s, -job.gpus)]
    changes.sort()
    days: dict[int, float] = {}
    asked, before = 0, 0.0
    for now, more in changes:
        while before < now:
            day = int(before // 86_400)
            until = min(now, (day + 1) * 86_400.0)
            days[day] = days.get(day, 0.0) + asked * (until - before)
            before = until
        asked += more
    shares = [days.get(day, 0.0) / 86_400 / (NODES * EACH) for day in range(max(days) + 1)]
    for day in range(0, len(shares), 7):
        week = shares[day : day + 7]
        print(
            f"week {day // 7 + 1}: mean load {sum(week) / len(week):.2f}, by day "
            + " ".join(f"{share:.2f}" for share in week)
        )
    print(f"days above 0.9: {sum(share > 0.9 for share in shares)} of {len(shares)}")
    return 0


def idle(options: argparse.Namespace) -> int:
    setting = Setting(
        nodes=NODES,
        gpus_per_node=EACH,
        mechanism="ideal",
        prices=MECHANISMS["ideal"],
        models=str(options.data / "speedup_model.csv"),
        seed=options.seed,
        window_s=(0.0, float("inf")),
    )
    outcome = simulate(whole_trace(options), "tiresias", setting)
    spans = sorted(outcome.spans, key=lambda span: span.begin_s)
    peak = Peak(spans, 0.9 * setting.capacity)
    for rule, last in (("the GPU that was idle last", True), ("the longest idle one", False)):
        gaps = idle_gaps(spans, last)
        short = [(begin, end) for begin, end in gaps if end - begin < SHORT_S]
        busy = sum(peak.within(begin, end) for begin, end in gaps)
        busy_short = sum(peak.within(begin, end) for begin, end in short)
        print(
            f"a job gets {rule}: {len(gaps):,} idle intervals, {len(short) / len(gaps):.1%} under "
            f"4 minutes; these are {busy_short / busy:.1%} of the GPU time that is idle while more "
            "than 90 % are held"
        )
    print("the paper: 39.62 % of the intervals, 41.5 % of the idle time in peak hours")
    return 0


class Peak:
    """How much of a time span lies where more than `most` GPUs are held."""

    def __init__(self, spans: list[Span], most: float) -> None:
        changes = [(span.begin_s, span.gpus) for span in spans]
        changes += [(span.end_s, -span.gpus) for span in spans]
        changes.sort()
        self.times, self.sums = [0.0], [0.0]
        held, before, total = 0, 0.0, 0.0
        for now, more in changes:
            if now > before:
                total += now - before if held > most else 0.0
                before = now
                self.times.append(now)
                self.sums.append(total)
            held += more

    def within(self, begin: float, end: float) -> float:
        return self._until(end) - self._until(begin)

    def _until(self, now: float) -> float:
        at = bisect_right(self.times, now) - 1
        if at + 1 == len(self.times) or self.sums[at] == self.sums[at + 1]:
            return self.sums[at]
        return self.sums[at] + now - self.times[at]


def idle_gaps(spans: list[Span], last: bool) -> list[tuple[float, float]]:
    """When every GPU was idle between two jobs. `last`: a job gets those idle for the shortest."""
    ends: list[tuple[float, int]] = []
    free: deque[float] = deque()  # since when, the latest last
    gaps = []
    for span in spans:
        while ends and ends[0][0] <= span.begin_s:
            end_s, gpus = heapq.heappop(ends)
            free.extend([end_s] * gpus)
        for _ in range(min(span.gpus, len(free))):
            since = free.pop() if last else free.popleft()
            if since < span.begin_s:
                gaps.append((since, span.begin_s))
        heapq.heappush(ends, (span.end_s, span.gpus))
    return gaps


# -- the small workload ------------------------------------------------------------------------


def synthetic(options: argparse.Namespace) -> int:
    static = follow(options, Together(Static()))
    elastic = follow(options, Uniform())
    print("time   cluster efficiency (of 32)   mean efficiency of GPUs in use")
    print("        static     elastic            static     elastic")
    for at in range(0, 601, 30):
        a, b = value_at(static, at), value_at(elastic, at)
        print(f"{at:4d} s  {a[0]:7.1f}     {b[0]:7.1f}           {a[1]:7.2f}     {b[1]:7.2f}")
    better = sum(a[1] <= b[1] + 1e-9 for a, b in zip(static, elastic, strict=True))
    share = better / len(static)
    print(f"elastic is at least as good as static in {share:.0%} of the first 10 minutes")
    if options.plot is not None:
        draw(options.plot, static, elastic)
    return 0


def follow(options: argparse.Namespace, policy: Policy) -> Series:
    """Nobody leaves: jobs are far longer than what is looked at."""
    speeds = Speeds(
        models=str(options.data / "speedup_model.csv"),
        seed=options.seed,
        gpus_per_node=8,
        capacity=32,
    )
    arrivals = []
    for number in range(16):
        job = TraceJob(id=f"job-{number}", submit_s=30.0 * number, gpus=4, duration_s=1e6)
        curve = speeds.curve(job)
        arrivals.append(
            Arrival(
                submit_s=job.submit_s, name=job.id, gpus=4, size_gpu_s=4e6, curve=curve,
                least=1, most=32, elastic=True,
            )
        )  # fmt: skip
    book = Book(nodes=4, gpus_per_node=8, together=True)
    recorder = Recorder(600.0, 100)
    engine = Engine(arrivals, policy, book, MECHANISMS["edl"], recorder)
    found: Series = []
    # As it was after the last event: until when each job stands still, GPUs and their worth.
    state: list[tuple[float, int, float]] = []
    while len(found) <= 600 and engine.step():
        while len(found) < engine.now:
            at = float(len(found))
            going = [(gpus, worth) for until, gpus, worth in state if until <= at]
            used, worth = sum(row[0] for row in going), sum(row[1] for row in going)
            found.append((at, worth, worth / used if used else 0.0))
        state = [
            (job.stalled_s, job.active, job.job.curve.worth[job.active])
            for job in engine.jobs.values()
        ]
    return found[:601]


def value_at(series: Series, at: float) -> tuple[float, float]:
    before = [row for row in series if row[0] <= at]
    return (before[-1][1], before[-1][2]) if before else (0.0, 0.0)


def draw(path: Path, static: Series, elastic: Series) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for column, name in ((1, "cluster efficiency (GPUs' worth, of 32)"), (2, "GPU efficiency")):
        axes = figure.add_subplot(1, 2, column)
        for series, label, style in ((static, "static", "--"), (elastic, "elastic", "-")):
            times = [row[0] for row in series]
            axes.step(times, [row[column] for row in series], style, where="post", label=label)
        axes.set_xlabel("seconds; a job every 30 s")
        axes.set_title(name)
        axes.set_xlim(0, 600)
        axes.set_ylim(bottom=0)
        axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    chosen = parse()
    sys.exit(globals()[chosen.what](chosen))
