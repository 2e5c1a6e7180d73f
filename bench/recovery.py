"""How long does training stop when a worker is killed, with EDL and with torchft?

    python bench/recovery.py [--rounds 10] [--wait 2.0] [--rivals torchft,torchft-default]
    python bench/recovery.py --frozen 3 --rounds 0

Four workers train; one gets SIGKILL at a random moment, first a follower, then (EDL) the leader of
those who are left. Compute is mostly a timed wait proportional to a worker's rows (see
_workload.py). Rounds of EDL and of torchft are interleaved; "torchft" has a tuned lighthouse and a
group timeout of 2 s, "torchft-default" has their own. The stop is the time between the ends of two
steps on a survivor, less a usual step before (the one that broke) and a usual step after (the one
that was done again); what is told is the longest of all survivors'. It may be below nothing, for a
broken step ends without a reduction and an update; a ratio takes it as 1 % of a step at least.

With --frozen, workers get SIGSTOP instead, followers and leaders by turns, and what is told is the
time until that is noticed, beside the silence that was set.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from _stops import ends, wait_for_steps

from edl.client import Job, run
from edl.config import Settings
from edl.errors import EdlError

HERE = Path(__file__).resolve().parent
WORKERS = 4
PORT = 29512
Results = dict[str, list[float]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--frozen", type=int, default=0, help="so many workers get SIGSTOP")
    parser.add_argument("--wait", type=float, default=2.0, help="seconds for the whole batch")
    parser.add_argument("--model", choices=["mlp", "resnet", "tiny"], default="mlp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rivals", default="torchft,torchft-default", help="'' for none")
    return parser.parse_args()


def arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    return [
        *("--log", str(folder), "--until", str(folder / "end"), "--model", options.model),
        *("--wait", str(options.wait), "--optimizer", "sgd"),
    ]


def stop_after(folder: Path, survivors: list[str], killed: float) -> float:
    """The longest stop that a survivor had from this moment on."""
    found = []
    for worker in survivors:
        times = sorted(end for _, end in ends(folder, worker).values())
        gaps = list(pairwise(times))
        before = [b - a for a, b in gaps if b <= killed][-5:]
        broken = next(b - a for a, b in gaps if a <= killed < b)
        after = [b - a for a, b in gaps if a > killed][:5]
        found.append(broken - statistics.median(before) - statistics.median(after))
    return max(found)


def strike(options: argparse.Namespace, pid: int, rng: random.Random) -> float:
    """At a random moment of a step."""
    time.sleep(rng.uniform(0.0, options.wait / WORKERS))
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return at


# -- EDL ---------------------------------------------------------------------------------------


def edl_round(options: argparse.Namespace, folder: Path, rng: random.Random) -> Results:
    os.environ["EDL_HOME"] = str(folder / "home")
    job = run(str(HERE / "_edl_worker.py"), *arguments(options, folder), workers=WORKERS)
    found: Results = {}
    await_training(job, folder)
    for name, leader in (("EDL, a follower", False), ("EDL, the leader", True)):
        workers = job.status().workers
        victim = next(w for w in workers if w.leader is leader)
        survivors = [str(w.id) for w in workers if w.id != victim.id]
        at = strike(options, victim.pid, rng)
        wait_for_steps(folder, survivors[0], 8)
        found[name] = [stop_after(folder, survivors, at)]
        print(f"  {name}: stop {found[name][0] * 1e3:.0f} ms", flush=True)
    (folder / "end").touch()
    job.wait(60)
    return found


def frozen_round(options: argparse.Namespace, folder: Path, *, leader: bool) -> float:
    """How long a worker had been asleep when it was noticed."""
    os.environ["EDL_HOME"] = str(folder / "home")
    job = run(str(HERE / "_edl_worker.py"), *arguments(options, folder), workers=WORKERS)
    await_training(job, folder)
    victim = next(w for w in job.status().workers if w.leader is leader)
    at = time.time()
    os.kill(victim.pid, signal.SIGSTOP)
    try:
        noticed = next(
            event.time
            for event in job.events(follow=True)
            if event.what == "worker.lost" and event.fields["worker"] == victim.id
        )
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    (folder / "end").touch()
    job.wait(60)
    return noticed - at


def frozen(options: argparse.Namespace) -> None:
    silence = Settings.from_environment(os.environ).silence_s
    found = []
    for number in range(options.frozen):
        folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
        leader = number % 2 == 1
        found.append(frozen_round(options, folder, leader=leader))
        who = "the leader" if leader else "a follower"
        print(f"  SIGSTOP of {who}: noticed after {found[-1]:.2f} s", flush=True)
        shutil.rmtree(folder)
    least, most = min(found) / silence, max(found) / silence
    print(f"noticed after {least:.2f} to {most:.2f} times the silence of {silence:g} s")


def await_training(job: Job, folder: Path) -> None:
    while True:
        with suppress(EdlError):
            if job.status().step > 0:
                break
        time.sleep(0.2)
    wait_for_steps(folder, "w0", 8)


# -- torchft -----------------------------------------------------------------------------------


def torchft_round(
    options: argparse.Namespace, folder: Path, rng: random.Random, *, tuned: bool
) -> Results:
    command = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1"]
    command += ["--bind", f"127.0.0.1:{PORT}", "--join_timeout_ms", "1000"]
    if tuned:
        command += ["--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "10"]
    quiet = subprocess.DEVNULL
    lighthouse = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{PORT}",
    }
    names = [f"r{index}" for index in range(WORKERS)]
    output = (folder / "rivals.log").open("ab")
    # torchft's own default for a group's timeout is 60 s; a lone death breaks sockets before it.
    timeout = "2" if tuned else "60"
    workers = {
        name: subprocess.Popen(
            [
                *(sys.executable, str(HERE / "_torchft_worker.py")),
                *(*arguments(options, folder), "--rest", name, timeout),
            ],
            stdout=output,
            stderr=output,
            env=environment,
        )
        for name in names
    }
    kind = "torchft" if tuned else "torchft-default"
    try:
        wait_for_steps(folder, "r0", 8, size=WORKERS)
        at = strike(options, workers["r3"].pid, rng)
        wait_for_steps(folder, "r0", 8)
        stop = stop_after(folder, names[:3], at)
        print(f"  {kind}: stop {stop * 1e3:.0f} ms", flush=True)
        return {kind: [stop]}
    finally:
        (folder / "end").touch()
        for worker in workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.wait(10)
            worker.kill()
            worker.wait()
        lighthouse.terminate()
        lighthouse.wait(10)


def rival_round(
    options: argparse.Namespace, folder: Path, rng: random.Random, kind: str
) -> Results:
    try:
        return torchft_round(options, folder, rng, tuned=kind == "torchft")
    except SystemExit as why:
        # Now and then its four workers do not find together.
        print(f"  {kind}: {why}; left out of this round", flush=True)
        return {}


def main() -> int:
    options = parse()
    rng = random.Random(options.seed)
    rivals = [name for name in options.rivals.split(",") if name]
    if unknown := set(rivals) - {"torchft", "torchft-default"}:
        raise SystemExit(f"--rivals knows torchft and torchft-default, not {', '.join(unknown)}")
    if rivals and importlib.util.find_spec("torchft") is None:
        print("torchft is not installed here (pip install torchft-nightly): left out")
        rivals = []
    results: Results = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for kind in ("EDL", *rivals):
            folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
            if kind == "EDL":
                found = edl_round(options, folder, rng)
            else:
                found = rival_round(options, folder, rng, kind)
            for name, stops in found.items():
                results[name] += stops
            shutil.rmtree(folder)
    for name, stops in results.items():
        print(
            f"{name}: median stop {statistics.median(stops) * 1e3:.0f} ms "
            f"({min(stops) * 1e3:.0f} to {max(stops) * 1e3:.0f}, {len(stops)} times)"
        )
    for rival in results.keys() & rivals:
        ours = max(statistics.median(results["EDL, a follower"]), options.wait / WORKERS / 100)
        print(f"{rival} stops {statistics.median(results[rival]) / ours:.1f} times as long")
    if options.frozen:
        frozen(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
