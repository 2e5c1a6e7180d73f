"""How do the policies compare on real traces: by cluster size, by load, by the price of a resize?

    python bench/scheduling.py table            the paper's table: philly_all_recon on 288 x 8 GPUs
    python bench/scheduling.py loads            gain against offered load, several traces
    python bench/scheduling.py prices           gain against what an adjustment costs
    python bench/scheduling.py scale            time of a simulation against the number of jobs
    python bench/scheduling.py pollux           the Pollux workloads beside what was published
        [--policies P,...] [--loads L,...] [--only TRACE] [--jobs N] [--processes N]
        [--data DIR] [--out FILE.jsonl]

Traces and measured speeds are read from ../shared/data beside the checkout, $EDL_DATA or --data.
Each run is a process of its own and tells its time and its largest memory. With --out every row is
kept as a line of JSON, and what is there already is not run again.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import resource
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from edl.simulator.generate import generate, with_load
from edl.simulator.run import simulate
from edl.simulator.setting import MECHANISMS, Prices, Setting
from edl.simulator.summary import summarise
from edl.simulator.trace import read_trace

MAIN = ("tiresias", "elastic-tiresias", "wf-las", "wf-srpt")
OURS = "wf-srpt"
# Trace, machines: a cluster on which the trace as it is has a load near 1, but for the first.
CLUSTERS = (
    ("philly_all_recon.csv.gz", 160),
    ("philly_4vc_all.csv.gz", 48),
    ("philly.csv.gz", 48),
    ("generate:20000", 64),
)
STOPS = (0.0, 1.0, 5.0, 20.0, 40.0, 80.0)
Row = dict[str, Any]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["table", "loads", "prices", "scale", "pollux"])
    parser.add_argument("--policies", default=",".join(MAIN))
    here = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EDL_DATA", here)))
    parser.add_argument("--loads", default="0.5,0.7,0.9,1.1,1.3,1.5")
    parser.add_argument("--only", default="", help="of the traces, for `loads`")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=0, help="only so many of each trace")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data} is no folder; give the traces' with --data or EDL_DATA")
    return options


# -- one simulation ----------------------------------------------------------------------------


def one(ask: Row) -> Row:
    """In a process of its own: what is asked, and what came of it."""
    data = Path(ask["data"])
    trace_name: str = ask["trace"]
    setting = Setting(
        nodes=ask["nodes"],
        gpus_per_node=ask["gpus_per_node"],
        mechanism=ask["mechanism"],
        prices=Prices(**ask["prices"]) if "prices" in ask else MECHANISMS[ask["mechanism"]],
        models=str(data / ask.get("models", "speedup_model.csv")),
        seed=ask["seed"],
        round_s=ask.get("round_s", 0.0),
    )
    if trace_name.startswith("generate:"):
        trace = generate(
            int(trace_name.partition(":")[2]),
            capacity=setting.capacity,
            load=ask.get("load") or 0.9,
            seed=ask["seed"],
        )
    else:
        trace = read_trace(data / trace_name, capacity=setting.capacity)
    if ask.get("jobs"):
        trace = replace(trace, jobs=trace.jobs[: ask["jobs"]])
    if ask.get("load"):
        trace = with_load(trace, setting.capacity, ask["load"])
    outcome = simulate(trace, ask["policy"], setting)
    found = summarise(outcome)
    return {
        **ask,
        "offered": outcome.load,
        "jobs_done": found.jobs,
        "mean": found.jct_mean_s,
        "median": found.jct_median_s,
        "p95": found.jct_p95_s,
        "p99": found.jct_p99_s,
        "max": found.jct_max_s,
        "utilisation": found.utilisation,
        "efficiency": found.cluster_efficiency,
        "adjustments": found.adjustments,
        "preemptions": found.preemptions,
        "events": outcome.events,
        "seconds": outcome.wall_s,
        "cpu_s": resource.getrusage(resource.RUSAGE_SELF).ru_utime,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_all(asks: list[Row], options: argparse.Namespace) -> list[Row]:
    known: dict[str, Row] = {}
    if options.out is not None and options.out.exists():
        for line in options.out.read_text().splitlines():
            row = json.loads(line)
            known[row["key"]] = row
    for ask in asks:
        ask["key"] = json.dumps({k: v for k, v in ask.items() if k != "data"}, sort_keys=True)
    todo = [ask for ask in asks if ask["key"] not in known]
    # A fresh process for each, so that its memory is its own.
    pool = ProcessPoolExecutor(
        options.processes, mp_context=get_context("spawn"), max_tasks_per_child=1
    )
    with pool:
        for future in as_completed([pool.submit(one, ask) for ask in todo]):
            row = future.result()
            known[row["key"]] = row
            print("  " + told(row), flush=True)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    return [known[ask["key"]] for ask in asks]


def told(row: Row) -> str:
    return (
        f"{row['trace']} on {row['nodes']} x {row['gpus_per_node']}, load {row['offered']:.2f}, "
        f"{row['mechanism']}, {row['policy']}: "
        f"mean {row['mean']:,.0f}, median {row['median']:,.0f}, "
        f"95th {row['p95']:,.0f}, 99th {row['p99']:,.0f}, max {row['max']:,.0f}; "
        f"{row['adjustments']:,} adjustments, {row['preemptions']:,} preemptions; "
        f"{row['cpu_s']:.0f} s of CPU, {row['peak_mb']:.0f} MB"
    )


def base(options: argparse.Namespace, **more: Any) -> Row:
    found: Row = {
        "data": str(options.data),
        "trace": "philly_all_recon.csv.gz",
        "nodes": 288,
        "gpus_per_node": 8,
        "mechanism": "edl",
        "seed": options.seed,
    }
    if options.jobs:
        found["jobs"] = options.jobs
    return found | more


# -- questions ---------------------------------------------------------------------------------


def table(options: argparse.Namespace) -> int:
    policies = options.policies.split(",")
    asks = [
        base(options, policy=policy, nodes=nodes, mechanism=mechanism)
        for nodes in (288, 160)
        for mechanism in ("ideal", "edl", "stop-resume")
        for policy in policies
        if nodes == 288 or mechanism == "edl"
        if mechanism == "edl" or policy != "wf-las"
    ]
    run_all(asks, options)
    return 0


def loads(options: argparse.Namespace) -> int:
    policies = [p for p in options.policies.split(",") if p != "wf-las"]
    wanted = [float(load) for load in options.loads.split(",")]
    asks = [
        base(options, policy=policy, trace=trace, nodes=nodes, load=load)
        for trace, nodes in CLUSTERS
        for load in wanted
        for policy in policies
        if options.only in trace
    ]
    rows = {(r["trace"], r["load"], r["policy"]): r for r in run_all(asks, options)}
    judged = [judge(trace, load, rows) for trace, _ in CLUSTERS for load in wanted]
    return 0 if all(judged) else 1


def judge(trace: str, load: float, rows: dict[tuple[str, float, str], Row]) -> bool:
    if any((trace, load, name) not in rows for name in ("tiresias", "elastic-tiresias", OURS)):
        return True
    plain, elastic, ours = (
        rows[trace, load, name] for name in ("tiresias", "elastic-tiresias", OURS)
    )
    change = {name: ours[name] / elastic[name] - 1 for name in ("mean", "median", "p95")}
    worst = ours["max"] / plain["max"]
    held = change["mean"] <= (0.01 if load < 0.9 else -0.10)
    held = held and change["median"] <= 0.05 and change["p95"] <= 0.01 and worst <= 1.5
    print(
        f"{trace} at {load}: elastic-tiresias {elastic['mean'] / plain['mean'] - 1:+.1%} of "
        f"Tiresias' mean; {OURS} against elastic-tiresias: mean {change['mean']:+.1%}, median "
        f"{change['median']:+.1%}, 95th {change['p95']:+.1%}; longest {worst:.2f} of Tiresias'"
        f"{'' if held else '   MISSED'}"
    )
    return held


def prices(options: argparse.Namespace) -> int:
    """Everybody of the job stands still for so long at each resize."""
    asks = []
    for stop in STOPS:
        price = {"stop_s": stop, "shrink_s": stop, "prepare_s": 0.0, "start_s": 20.0}
        price["preempt_s"] = 0.0
        asks += [
            base(options, policy=policy, mechanism="custom", prices=price, nodes=160)
            for policy in ("tiresias", "elastic-tiresias", OURS)
        ]
    rows = run_all(asks, options)
    for stop, plain, elastic, ours in zip(STOPS, rows[::3], rows[1::3], rows[2::3], strict=True):
        print(
            f"a resize stops a job for {stop:g} s: elastic-tiresias "
            f"{elastic['mean'] / plain['mean'] - 1:+.1%} of Tiresias' mean, {OURS} "
            f"{ours['mean'] / plain['mean'] - 1:+.1%}"
        )
    return 0


def scale(options: argparse.Namespace) -> int:
    """At constant load and capacity: more of the same kind, for longer."""
    asks = [
        base(options, policy=policy, trace=f"generate:{jobs}", nodes=128, load=0.9)
        for jobs in (10_000, 30_000, 100_000)
        for policy in options.policies.split(",")
    ]
    rows = run_all(asks, options)
    for policy in options.policies.split(","):
        mine = [row for row in rows if row["policy"] == policy]
        each = [f"{row['cpu_s'] / row['jobs_done'] * 1e6:.0f}" for row in mine]
        print(f"{policy}: {', '.join(each)} us of CPU a job with 10,000, 30,000 and 100,000 jobs")
    return 0


def pollux(options: argparse.Namespace) -> int:
    """With that artifact's rounds of 60 s and restarts of 30 s, and then as EDL would do it."""
    published: dict[tuple[str, int], list[float]] = {}
    with gzip.open(options.data / "pollux" / "published_jcts.csv.gz", "rt") as file:
        for row in csv.DictReader(file):
            if float(row["load"]) == 1.0:
                key = (row["policy"], int(row["workload"]))
                published.setdefault(key, []).append(float(row["jct"]))
    restart = {"stop_s": 30.0, "shrink_s": 30.0, "prepare_s": 0.0, "start_s": 30.0}
    restart["preempt_s"] = 0.0
    asks = []
    for number in range(1, 9):
        where = {
            "trace": f"pollux/workload-{number}.csv",
            "nodes": 16,
            "gpus_per_node": 4,
            "models": "pollux/standalone.csv",
        }
        like = {"mechanism": "custom", "prices": restart, "round_s": 60.0}
        asks.append(base(options, policy="tiresias", **where, **like))
        asks += [base(options, policy=policy, **where) for policy in MAIN]
    rows = run_all(asks, options)
    means: dict[str, list[float]] = {}
    for number in range(8):
        part = rows[number * 5 : number * 5 + 5]
        names = ["tiresias, 60 s rounds", *MAIN]
        for name, row in zip(names, part, strict=True):
            means.setdefault(name, []).append(row["mean"])
        for policy in ("tiresias", "optimus", "pollux"):
            jcts = published[policy, number + 1]
            means.setdefault(f"published {policy}", []).append(statistics.mean(jcts))
    for name, values in means.items():
        print(f"{name}: mean JCT {statistics.mean(values):,.0f} s over 8 workloads")
    ratio = statistics.mean(means["tiresias, 60 s rounds"]) / statistics.mean(
        means["published tiresias"]
    )
    print(f"Tiresias with that artifact's rounds and restarts: {ratio:.3f} of what was published")
    return 0 if abs(ratio - 1) <= 0.15 else 1


if __name__ == "__main__":
    chosen = parse()
    sys.exit(globals()[chosen.what](chosen))
