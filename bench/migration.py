"""How long does training stop when half of the workers move, beside a scale-out by as many?

    python bench/migration.py [--rounds 6] [--model mlp|resnet|tiny] [--wait 3.2] [--warm 2]

Four workers train. In every round two more join and leave again, two followers move to other
slots, and then the leader and one more move. A migration is one switch; the run fails if one was
told of more, or raised the generation by more than one. Compute is mostly a timed wait proportional
to a worker's rows (see _workload.py); the stop is measured on the workers that stay, see _stops.py.
Newcomers are forked off a warm pool: with `--warm 0` their imports, on two cores, slow the steps
just before the switch by more than the switch itself does. At the end each migration is judged
beside the scale-outs of the same run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from _stops import Stop, stop_at, wait_for_steps
from join_and_leave import KEEP_MEMORY

from edl.client import Job, run
from edl.protocol.messages import AdjustmentRecord

HERE = Path(__file__).resolve().parent
JOIN, MOVE, MOVE_LEADER = "scale-out by 2", "2 of 4 move", "2 of 4 move, the leader too"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--model", choices=["mlp", "resnet", "tiny"], default="mlp")
    parser.add_argument("--wait", type=float, default=3.2, help="seconds for the whole batch")
    parser.add_argument("--warm", type=int, default=2, help="how many newcomers are kept waiting")
    return parser.parse_args()


def workers_of(job: Job) -> list[str]:
    """The leader first."""
    workers = sorted(job.status().workers, key=lambda worker: not worker.leader)
    return [str(worker.id) for worker in workers]


def round_of(job: Job, folder: Path, results: dict[str, list[Stop]]) -> None:
    was = workers_of(job)
    joined = job.scale_out(2)
    assert joined is not None
    wait_for_steps(folder, was[0], 8)
    judge(job, folder, results, JOIN, joined, was)
    job.scale_in(list(joined.joined))
    wait_for_steps(folder, was[0], 8)
    for name in (MOVE, MOVE_LEADER):
        leader, *others = workers_of(job)
        going = [leader, others[0]] if name is MOVE_LEADER else others[:2]
        stays = [worker for worker in (leader, *others) if worker not in going]
        before = job.status().generation
        moved = job.migrate(going, 2)
        assert moved is not None
        if moved.generation != before + 1:
            raise SystemExit(f"{name} went from generation {before} to {moved.generation}")
        wait_for_steps(folder, stays[0], 8)
        judge(job, folder, results, name, moved, stays)


def judge(
    job: Job,
    folder: Path,
    results: dict[str, list[Stop]],
    name: str,
    record: AdjustmentRecord,
    workers: list[str],
) -> None:
    switches = [
        int(event.fields["at"])
        for event in job.events()
        if event.request_id == record.request_id and event.what == "adjust.switching"
    ]
    if len(switches) != 1:
        raise SystemExit(f"{name} took {len(switches)} switches, at steps {switches}; wanted: one")
    stop = stop_at(folder, workers, switches[0] + 1)
    results[name].append(stop)
    print(f"  {name}: {stop}; {record.transfer_bytes / 1e6:.0f} MB sent", flush=True)


def main() -> int:
    options = parse()
    os.environ.update(KEEP_MEMORY)
    results: dict[str, list[Stop]] = defaultdict(list)
    folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
    os.environ["EDL_HOME"] = str(folder / "home")
    job = run(
        str(HERE / "_edl_worker.py"),
        *("--log", str(folder), "--until", str(folder / "end"), "--model", options.model),
        *("--wait", str(options.wait)),
        workers=4,
        warm=options.warm,
    )
    try:
        wait_for_steps(folder, "w0", 9)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", flush=True)
            round_of(job, folder, results)
        (folder / "end").touch()
        job.wait(60)
    finally:
        if job.running():
            job.stop(force=True)
    shutil.rmtree(folder)
    print(f"{options.model}, wait {options.wait:g} s for the batch")
    for name, stops in results.items():
        shares = sorted(stop.share for stop in stops)
        print(
            f"{name}: median stop {statistics.median(s.seconds for s in stops) * 1e3:.0f} ms, "
            f"{statistics.median(shares):.1%} of a step ({shares[0]:.1%} to {shares[-1]:.1%}, "
            f"{len(shares)} times); beside the steps after alone "
            f"{statistics.median(stop.share_after for stop in stops):.1%}"
        )
    joins = statistics.median(stop.seconds for stop in results[JOIN])
    for name in (MOVE, MOVE_LEADER):
        more = statistics.median(stop.seconds for stop in results[name]) - joins
        print(f"{name}: {more * 1e3:+.0f} ms beside a {JOIN}, in one switch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
