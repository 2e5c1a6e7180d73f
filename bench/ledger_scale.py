"""What does an epoch of 100 million samples cost: the ledger's memory and time, and its audit?

    python bench/ledger_scale.py [--samples 100000000] [--batch 256] [--workers 4] [--kind map]

Commits every step of an epoch as the workers of a job do, in one process: the ledger as one worker
holds it, and its log as one worker writes it. Then `edl audit` judges the logs of all workers, one
of which was killed halfway. Memory is what the process grew by.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from edl.protocol.drawing import DrawnLedger
from edl.protocol.ledger import MapLedger
from edl.protocol.progress import Ledger, Progress, Round
from edl.protocol.shards import ShardLedger
from edl.protocol.topology import draw_first, split
from edl.runtime.audit import AUDIT, AuditLog
from edl.runtime.auditing import audit_folder
from edl.types import Address, Gpu, Member, WorkerId


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def opened(options: argparse.Namespace) -> Ledger:
    if options.kind == "map":
        return MapLedger(
            samples=options.samples,
            batch=options.batch,
            seed=0,
            shuffle=True,
            drop_last=False,
            epochs=1,
        )
    size = -(-options.samples // options.partitions)
    lengths = [min(size, options.samples - start) for start in range(0, options.samples, size)]
    if options.kind == "drawn":
        return DrawnLedger.prepared(
            lengths, batch=options.batch, seed=0, epochs=1, shuffle=True, ahead=0
        )
    return ShardLedger.opened(lengths, batch=options.batch, seed=0, epochs=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kind", choices=["map", "shards", "drawn"], default="map")
    parser.add_argument("--partitions", type=int, default=100_000)
    options = parser.parse_args()
    names = [WorkerId(f"w{number}") for number in range(options.workers)]
    members = [
        Member(worker=n, address=Address("", 0), host="", slot=Gpu("", 0), pid=0) for n in names
    ]
    before = resident_mb()
    generation = draw_first(members, number=1, leader=names[0], token=1)
    progress = Progress(me=names[0], generation=generation, ledger=opened(options))
    with tempfile.TemporaryDirectory() as scratch:
        log = AuditLog(Path(scratch), names[0], run=0)
        began, used_s = time.perf_counter(), time.process_time()
        while not progress.ledger.epoch_over():
            plan = progress.plan()
            shares = dict(zip(names, split(plan.total, len(names)), strict=True))
            wanted = {}
            if isinstance(progress.ledger, DrawnLedger):
                shares = progress.ledger.shares(names)
                wanted = {n: 2 - len(progress.ledger.queue_of(n)) for n in names}
            decided = Round(
                go=True,
                closed=False,
                ended=False,
                samples=shares,
                wanted={name: want for name, want in wanted.items() if want > 0},
            )
            ledger = progress.ledger
            progress.commit(decided)
            log.committed(ledger, progress, decided)
        log.epoch_over(progress.ledger)
        used_s = time.process_time() - used_s
        steps = progress.step
        grown = resident_mb() - before
        size = sum(path.stat().st_size for path in Path(scratch, AUDIT).iterdir()) / 1e6
        print(
            f"{options.kind}: {options.samples:,} samples, {steps:,} steps in "
            f"{time.perf_counter() - began:.0f} s; ledger and log {grown:.1f} MB of memory, "
            f"{used_s / steps * 1e6:.0f} us of CPU a step, {size:.1f} MB of log"
        )
        mine = Path(scratch, AUDIT, f"{names[0]}.log").read_bytes()
        for number, name in enumerate(names[1:]):
            kept = mine if number else mine[: len(mine) // 2]
            Path(scratch, AUDIT, f"{name}.log").write_bytes(kept)
        began = time.perf_counter()
        found = audit_folder(Path(scratch))
        print(
            f"audit of {len(found.logs)} logs: {time.perf_counter() - began:.1f} s, "
            f"{'exactly once' if found.exact else found.fault}, {found.steps:,} steps"
        )


if __name__ == "__main__":
    main()
