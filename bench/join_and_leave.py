"""How long does training stop when a worker joins, and when one leaves?

    python bench/join_and_leave.py [--rounds 5] [--joiners 1] [--optimizer sgd|adamw]

2 workers train a network of 25M parameters; compute is mostly a timed wait proportional to a
worker's rows (see _timed_mlp.py), steps take about a second. Each round joins and then removes
workers, every second time the leader. The stop is the longest gap between two steps on the old
workers within two steps of the change, less the larger of the median steps before and after.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edl.client import Job, run  # noqa: E402


def gaps(folder: Path, worker: str) -> dict[int, float]:
    """The time between two steps' ends on one worker, by the later step."""
    rows = [line.split() for line in (folder / f"{worker}.steps").read_text().splitlines()]
    ends = {int(row[0]): float(row[2]) for row in rows if len(row) == 3}
    return {step: end - ends[step - 1] for step, end in ends.items() if step - 1 in ends}


def stop_at(folder: Path, workers: list[str], step: int) -> tuple[float, float]:
    """Seconds beyond a usual step around `step`, and the usual step itself."""
    worst, usual = 0.0, 0.0
    for worker in workers:
        found = gaps(folder, worker)
        before = [found[s] for s in range(step - 4, step) if s in found]
        after = [found[s] for s in range(step + 3, step + 6) if s in found]
        near = [found[s] for s in range(step, step + 3) if s in found]
        if not before or not after or not near:
            continue
        larger = max(statistics.median(before), statistics.median(after))
        if max(near) - larger >= worst or not usual:
            worst, usual = max(near) - larger, larger
    return worst, usual


def steps_later(job: Job, count: int) -> None:
    """Until the job has gone on by so many steps."""
    target = job.status().step + count
    while job.status().step < target:
        threading.Event().wait(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--joiners", type=int, default=1)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["EDL_HOME"] = str(folder / "home")
        script = str(Path(__file__).with_name("_timed_mlp.py"))
        arguments = ("--log", str(folder), "--until", str(folder / "end"))
        job = run(script, *arguments, "--optimizer", options.optimizer, workers=2)
        joins, leaves = [], []
        steps_later(job, 6)
        for number in range(options.rounds):
            joins.append((job.scale_out(options.joiners), [w.id for w in job.status().workers]))
            steps_later(job, 7)
            workers = job.status().workers
            leader = [w.id for w in workers if w.leader]
            others = [w.id for w in workers if not w.leader]
            going = (
                (leader + others)[: options.joiners] if number % 2 else others[-options.joiners :]
            )
            leaves.append((job.scale_in(going), [w.id for w in job.status().workers]))
            steps_later(job, 7)
        (folder / "end").touch()
        job.wait(60)
        for name, records in (("join", joins), ("leave", leaves)):
            shares = []
            for record, workers in records:
                assert record is not None
                old = [w for w in workers if w not in record.joined and w not in record.left]
                stop, usual = stop_at(folder, old, record.step + 1)
                shares.append(max(0.0, stop) / usual)
                parts = record.parts
                print(
                    f"{name}: stop {stop * 1e3:6.0f} ms of a {usual:.2f} s step; start "
                    f"{parts.process_start_s:.1f}, context {parts.context_s:.1f}, topology "
                    f"{parts.topology_s:.3f}, wait {parts.switch_wait_s:.2f}, transfer "
                    f"{parts.transfer_s:.3f} s ({record.transfer_bytes / 1e6:.0f} MB)"
                )
            print(f"{name}: median stop {statistics.median(shares):.1%} of a step")
    return 0


if __name__ == "__main__":
    sys.exit(main())
