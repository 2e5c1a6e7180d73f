"""How far from the best possible is a policy, and what could any other one reach at all?

    python bench/lower_bound.py [--seeds 1000] [--loads 0.5,0.9,1.1,1.5] [--only KIND]
        [--jobs N] [--buckets 1600] [--rounds 60] [--mechanisms ideal,edl] [--processes N]
        [--data DIR] [--out FILE.jsonl]

On the kinds of traces of bench/unseen_traces.py (at most --jobs of each), and where there is a
folder of data ($EDL_DATA or --data) on the Pollux workloads and the generated trace of
bench/scheduling.py. For each, the means under Elastic-Tiresias and water filling, and a bound: no
schedule has a lower mean, not one that knows every arrival beforehand, resizes for nothing, divides
GPUs and has no machines (bench/_bound.py says how, and why it is one). With the prices of `edl` a
job's first step comes 20 s after its submission at the earliest; no other price is counted. So
where the bound is less than 10 % below Elastic-Tiresias, nobody can be 10 % below; where it is
more, that says nothing about whether anybody can.

The bound is raised from what the prices are guessed to be from a run of water filling, by --rounds
of price adjustments in buckets of time. More of them make it higher, never wrong. A bound above
any policy's mean would be a bug, and is status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from _bound import Request, gather, guessed, raise_prices, under
from unseen_traces import KINDS, trace_of

from edl.policy.view import Job
from edl.simulator.engine import Arrival
from edl.simulator.generate import generate
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.run import arrivals_of, simulate
from edl.simulator.setting import MECHANISMS, Setting
from edl.simulator.summary import jct_s
from edl.simulator.trace import read_trace

POLICIES = ("elastic-tiresias", "wf-srpt")
POLLUX = "pollux"
GENERATED = "generate:20000, 512 GPUs"
SPEEDS = "speedup_model.csv"
WANTED = -0.10
Row = dict[str, Any]
Hull = tuple[tuple[float, float], ...]


# -- one trace ---------------------------------------------------------------------------------


def requests_of(trace: Trace, setting: Setting) -> list[Request]:
    """What the simulator would be asked to run. Its own limits are kept: fewest and most GPUs."""
    hulls: dict[tuple[int, int, int, int], Hull] = {}
    found = []
    arrivals, _, _ = arrivals_of(trace, setting)
    for arrival in arrivals:
        job = job_of(arrival)
        key = (id(job.curve), job.gpus, job.least, job.most)
        if key not in hulls:
            each = job.gpus / job.curve.rate[job.gpus]
            ends = [piece.end for piece in job.curve.hull(0, job.least, job.most)]
            hulls[key] = ((0.0, 0.0), *((float(p), job.curve.rate[p] * each) for p in ends))
        begin_s = arrival.submit_s + setting.prices.start_s
        found.append(Request(arrival.submit_s, begin_s, arrival.size_gpu_s, hulls[key]))
    return found


def job_of(arrival: Arrival) -> Job:
    return Job(
        0,
        arrival.name,
        gpus=arrival.gpus,
        curve=arrival.curve,
        submitted_s=arrival.submit_s,
        least=arrival.least,
        most=arrival.most,
        elastic=arrival.elastic,
    )


def setting_of(ask: Row) -> Setting:
    kind, data = ask["kind"], Path(ask["data"])
    nodes, each, seed, models = 64, 8, ask["seed"], None
    if kind.startswith(POLLUX):
        nodes, each, seed, models = 16, 4, 0, data / POLLUX / "standalone.csv"
    elif kind == GENERATED:
        models = data / SPEEDS
    else:
        nodes = KINDS[kind][1]
    return Setting(
        nodes=nodes,
        gpus_per_node=each,
        mechanism=ask["mechanism"],
        prices=MECHANISMS[ask["mechanism"]],
        models=None if models is None else str(models),
        seed=seed,
    )


def trace_for(ask: Row, capacity: int) -> Trace:
    if ask["kind"].startswith(POLLUX):
        path = Path(ask["data"]) / POLLUX / f"workload-{ask['seed']}.csv"
        return read_trace(path, capacity=capacity)
    if ask["kind"] == GENERATED:
        jobs = min(20_000, ask["jobs"] or 20_000)
        return generate(jobs, capacity=capacity, load=ask["load"], seed=ask["seed"])
    return trace_of(ask["kind"], ask["load"], ask["seed"], ask["jobs"])


def one(ask: Row) -> Row:
    setting = setting_of(ask)
    trace = trace_for(ask, setting.capacity)
    runs = {name: simulate(trace, name, setting) for name in POLICIES}
    means = {name: fmean(map(jct_s, run.jobs)) for name, run in runs.items()}
    began = time.perf_counter()
    bound = bound_of(trace, setting, runs[POLICIES[-1]], ask["buckets"], ask["rounds"])
    took_s = time.perf_counter() - began
    return ask | {"means": means, "bound": bound, "took_s": took_s, "count": len(trace.jobs)}


def bound_of(trace: Trace, setting: Setting, run: Outcome, buckets: int, rounds: int) -> float:
    """On the mean completion time."""
    requests = requests_of(trace, setting)
    kinds = gather(requests)
    begin = guessed(requests, [job.end_s for job in run.jobs], setting.capacity, buckets)
    prices = raise_prices(begin, kinds, rounds=rounds)
    return under(prices, kinds, fine=True).bound / len(requests)


# -- all of them -------------------------------------------------------------------------------


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="1000", help="of made-up traces")
    parser.add_argument("--loads", default="0.5,0.9,1.1,1.5", help="of made-up traces")
    parser.add_argument("--only", default="", help="kinds whose name has this in it")
    parser.add_argument("--mechanisms", default="ideal,edl")
    parser.add_argument("--jobs", type=int, default=None, help="of each trace at the most")
    parser.add_argument("--buckets", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=1)
    here = Path(__file__).resolve().parent.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("EDL_DATA", here)))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def asks_of(options: argparse.Namespace) -> list[Row]:
    common = {name: getattr(options, name) for name in ("jobs", "buckets", "rounds")}
    common["data"] = str(options.data)
    loads, seeds = options.loads.split(","), options.seeds.split(",")
    asks: list[Row] = [
        {"kind": kind, "load": float(load), "seed": int(seed)}
        for kind in KINDS
        if options.only in kind
        for load in loads
        for seed in seeds
    ]
    if options.only in GENERATED and (options.data / SPEEDS).is_file():
        asks += [{"kind": GENERATED, "load": float(load), "seed": 0} for load in loads]
    if options.only in POLLUX and (options.data / POLLUX).is_dir():
        asks += [{"kind": f"{POLLUX} {n}", "load": None, "seed": n} for n in range(1, 9)]
    if not asks:
        sys.exit(f"there is no trace {options.only!r}; {options.data} may lack it (--data)")
    mechanisms = options.mechanisms.split(",")
    return [ask | common | {"mechanism": name} for ask in asks for name in mechanisms]


def wrong(row: Row) -> bool:
    return bool(row["bound"] > min(row["means"].values()))


def relative(row: Row) -> tuple[float, float]:
    """Water filling and the bound, against Elastic-Tiresias."""
    base, ours = (row["means"][name] for name in POLICIES)
    return ours / base - 1, row["bound"] / base - 1


def name_of(row: Row) -> str:
    return row["kind"] if row["load"] is None else f"{row['kind']} at {row['load']}"


def tell(row: Row) -> None:
    ours, bound = relative(row)
    print(
        f"{name_of(row)}, seed {row['seed']}, {row['mechanism']}, {row['count']:,} jobs: "
        f"elastic-tiresias {row['means'][POLICIES[0]]:,.0f} s, wf-srpt {ours:+.1%}, no schedule "
        f"below {bound:+.1%} ({row['took_s']:.0f} s){'   WRONG' if wrong(row) else ''}",
        flush=True,
    )


def table(rows: list[Row]) -> None:
    """One line for a kind and load, means over seeds; ready for a page."""
    mechanisms = list(dict.fromkeys(row["mechanism"] for row in rows))
    heads = [f"{name}: wf-srpt | bound" for name in mechanisms]
    print(f"\n| Trace, load | {' | '.join(heads)} | 10 % lower |")
    print("|" + "---|" * (2 + 2 * len(mechanisms)))
    for name in dict.fromkeys(map(name_of, rows)):
        cells, here = [], [row for row in rows if name_of(row) == name]
        for mechanism in mechanisms:
            pairs = [relative(row) for row in here if row["mechanism"] == mechanism]
            cells += [f"{fmean(each) * 100:+.1f} %" for each in zip(*pairs, strict=True)]
        # What the last of the mechanisms allows.
        priced = [row for row in here if row["mechanism"] == mechanisms[-1]]
        below = [relative(row) for row in priced]
        out = sum(bound > WANTED for _, bound in below)
        reached = sum(ours <= WANTED for ours, _ in below)
        verdict = f"impossible in {out}, reached in {reached} of {len(below)}"
        print(f"| {name} | {' | '.join(cells)} | {verdict} |")


def main() -> int:
    options = parse()
    asks = asks_of(options)
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, ask) for ask in asks]):
            row = future.result()
            rows.append(row)
            tell(row)
            if options.out is not None:
                with options.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    order = {json.dumps(ask): number for number, ask in enumerate(asks)}
    rows.sort(key=lambda row: order[json.dumps({name: row[name] for name in asks[0]})])
    table(rows)
    broken = [row for row in rows if wrong(row)]
    if broken:
        print(f"{len(broken)} bounds are above a policy's mean, so they are none")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
