"""Is every sample used exactly once through hundreds of adjustments of a real job?

    python bench/exactly_once.py [--adjustments 200] [--seed 0]

Runs the journal script of the integration tests with BatchNorm and AdamW on 2 to 4 workers,
scales it out and in at random (the leader included) and judges the script's own log: used 0, 1,
2 or more times, aggregate batch, replicas bit-equal after every step, buffers after every switch.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from edl.client import Job, run  # noqa: E402
from tests.integration.judge import read_journal  # noqa: E402

SAMPLES, BATCH = 1003, 50


def adjust(job: Job, rng: random.Random) -> str:
    """One random scale-out or scale-in."""
    workers = [worker.id for worker in job.status().workers]
    if len(workers) <= 2 or (len(workers) < 4 and rng.random() < 0.5):
        job.scale_out(1)
        return "out"
    job.scale_in([rng.choice(workers)])
    return "in"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--adjustments", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        os.environ["EDL_HOME"] = str(folder / "home")
        log, end = folder / "log", folder / "end"
        log.mkdir()
        script = ROOT / "tests" / "integration" / "scripts" / "journal.py"
        began = time.monotonic()
        job = run(
            str(script),
            *("--log", str(log), "--epochs", "1000000", "--model", "batchnorm"),
            *("--optimizer", "adam", "--pause", "0.1", "--until", str(end)),
            workers=2,
        )
        kinds: Counter[str] = Counter()
        for number in range(1, options.adjustments + 1):
            kinds[adjust(job, rng)] += 1
            if number % 10 == 0:
                print(f"{number} adjustments in {time.monotonic() - began:.0f} s", flush=True)
        end.touch()
        result = job.wait(120)
        journal = read_journal(log)
        used = journal.used()
        times = Counter(counts[sample] for counts in used.values() for sample in range(SAMPLES))
        print(f"machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
        print(f"seed {options.seed}: {kinds['out']} scale-outs, {kinds['in']} scale-ins")
        print(f"{result.state}: {result.steps} steps, {len(used)} epochs of {SAMPLES} samples")
        print(f"samples used once: {times[1]}, otherwise: {sum(times.values()) - times[1]}")
        journal.check_exactly_once(samples=SAMPLES, epochs=set(range(len(used))))
        journal.check_batches(batch=BATCH, samples=SAMPLES)
        journal.check_replicas()
        switches = journal.check_buffers_after_switches()
        print(f"replicas bit-equal after every step, buffers after all {switches} switches")
        return 0 if result.state == "finished" and switches == options.adjustments else 1


if __name__ == "__main__":
    sys.exit(main())
