"""How long does training stop when workers join or leave, with EDL and with others?

    python bench/join_and_leave.py [--rounds 5] [--joiners 1] [--optimizer sgd|adamw]
        [--model mlp|resnet] [--wait 1.6] [--rivals torchft,stop-resume]
        [--framework torch|tensorflow]

Two workers train; others join and leave again, first a follower, then the leader. With --wait,
compute is mostly a timed wait proportional to a worker's rows (see _workload.py) and a step takes
about a second; --wait 0 is real compute. Rounds of EDL and of each rival are interleaved. torchft
(pip install torchft-nightly) runs with a tuned lighthouse; stop-resume saves, ends everybody and
starts again with one more. The stop is measured alike for all, see _stops.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from _stops import Stop, ends, stop_at, wait_for_steps

from edl.client import Job, run
from edl.protocol.messages import AdjustmentRecord

HERE = Path(__file__).resolve().parent
Results = dict[str, list[Stop]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--joiners", type=int, default=1)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--model", choices=["mlp", "resnet"], default="mlp")
    parser.add_argument("--wait", type=float, default=1.6, help="seconds for the whole batch")
    parser.add_argument(
        "--malloc", choices=["keep", "default"], default="keep", help="see KEEP_MEMORY"
    )
    parser.add_argument(
        "--framework", choices=["torch", "tensorflow"], default="torch", help="EDL's plug-in"
    )
    parser.add_argument("--rivals", default="torchft,stop-resume", help="'' for none")
    return parser.parse_args()


def arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    """What every kind of worker is told."""
    return [
        *("--log", str(folder), "--until", str(folder / "end"), "--model", options.model),
        *("--wait", str(options.wait), "--optimizer", options.optimizer),
    ]


# -- EDL ---------------------------------------------------------------------------------------


def edl_round(options: argparse.Namespace, folder: Path, results: Results) -> None:
    os.environ["EDL_HOME"] = str(folder / "home")
    script = {"torch": "_edl_worker.py", "tensorflow": "_tensorflow_worker.py"}[options.framework]
    job = run(str(HERE / script), *arguments(options, folder), workers=2)
    stays = "w0"
    wait_for_steps(folder, stays, 9)
    for leader_leaves in (False, True):
        was = workers_of(job)
        joined = job.scale_out(options.joiners)
        wait_for_steps(folder, stays, 8)
        judge(folder, results, "EDL join", joined, was)
        leader = next(w.id for w in job.status().workers if w.leader)
        others = [w for w in workers_of(job) if w != leader]
        going = (
            [leader, *others][: options.joiners] if leader_leaves else others[-options.joiners :]
        )
        staying = [w for w in workers_of(job) if w not in going]
        stays = staying[0]
        left = job.scale_in(going)
        wait_for_steps(folder, stays, 8)
        name = "EDL leave, leader too" if leader_leaves else "EDL leave"
        judge(folder, results, name, left, staying)
    (folder / "end").touch()
    job.wait(60)


def workers_of(job: Job) -> list[str]:
    return [str(worker.id) for worker in job.status().workers]


def judge(
    folder: Path, results: Results, name: str, record: AdjustmentRecord | None, workers: list[str]
) -> None:
    assert record is not None
    stop = stop_at(folder, workers, record.step + 1)
    results[name].append(stop)
    parts = record.parts
    print(
        f"  {name}: {stop}; start {parts.process_start_s:.1f}, context {parts.context_s:.1f}, "
        f"topology {parts.topology_s:.3f}, wait {parts.switch_wait_s:.2f}, transfer "
        f"{parts.transfer_s:.3f} s ({record.transfer_bytes / 1e6:.0f} MB)",
        flush=True,
    )


# -- others ------------------------------------------------------------------------------------


def start(script: str, options: argparse.Namespace, folder: Path, *rest: str) -> Process:
    command = [sys.executable, str(HERE / script), *arguments(options, folder), "--rest", *rest]
    output = (folder / "rivals.log").open("ab")
    return subprocess.Popen(command, stdout=output, stderr=output, env=RIVAL_ENVIRONMENT)


Process = subprocess.Popen[bytes]
# As many threads as EDL gives each of two workers.
RIVAL_ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 2) // 2))}
PORT = 29511
# For EDL and the others alike: freed memory stays with its process. Otherwise every step of every
# worker touches fresh pages for its gradients, which a virtual machine's host may have to find
# first; with several workers starting at once that costs more than all else.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


def torchft_round(options: argparse.Namespace, folder: Path, results: Results) -> None:
    lighthouse = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1"),
            *("--bind", f"127.0.0.1:{PORT}", "--join_timeout_ms", "1000"),
            *("--heartbeat_timeout_ms", "1000", "--quorum_tick_ms", "10"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    RIVAL_ENVIRONMENT["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{PORT}"
    workers: list[Process] = []
    try:
        workers += [start("_torchft_worker.py", options, folder, f"r{i}", "2") for i in (0, 1)]
        wait_for_steps(folder, "r0", 9, size=2)
        leave = str(folder / "leave")
        for i in range(options.joiners):
            workers.append(start("_torchft_worker.py", options, folder, f"j{i}", "2", leave))
        size = 2 + options.joiners
        wait_for_steps(folder, "r0", 8, size=size)
        step = next(s for s, row in ends(folder, "r0").items() if row[0] == size)
        results["torchft join"].append(stop_at(folder, ["r0", "r1"], step))
        print(f"  torchft join: {results['torchft join'][-1]}", flush=True)
        Path(leave).touch()
        wait_for_steps(folder, "r0", 8, size=2)
        step = max(s for s, row in ends(folder, "r0").items() if row[0] == size) + 1
        results["torchft leave"].append(stop_at(folder, ["r0", "r1"], step))
        print(f"  torchft leave: {results['torchft leave'][-1]}", flush=True)
    finally:
        finish(folder, workers)
        lighthouse.terminate()
        lighthouse.wait(10)


def stop_resume_round(options: argparse.Namespace, folder: Path, results: Results) -> None:
    checkpoint, size = str(folder / "checkpoint.pt"), 2 + options.joiners
    workers = [
        start("_ddp_worker.py", options, folder, str(i), "2", str(folder / "meet2"), checkpoint)
        for i in (0, 1)
    ]
    try:
        wait_for_steps(folder, "2-0", 8)
        finish(folder, workers)
        (folder / "end").unlink()
        workers = [
            start("_ddp_worker.py", options, folder, str(i), str(size), str(folder / "meet3"),
                  checkpoint)
            for i in range(size)
        ]  # fmt: skip
        wait_for_steps(folder, f"{size}-0", 6)
    finally:
        finish(folder, workers)
    before, after = ends(folder, "2-0"), ends(folder, f"{size}-0")
    usual = []
    for seen in (before, after):
        times = [row[1] for row in seen.values()]
        usual.append(statistics.median(b - a for a, b in pairwise(times[1:])))
    gap = after[min(after)][1] - before[max(before)][1]
    results["stop-resume"].append(Stop(gap - max(usual), max(usual), usual[1]))
    print(f"  stop-resume: {results['stop-resume'][-1]}", flush=True)


def finish(folder: Path, workers: list[Process]) -> None:
    """Let them end by themselves, and make sure."""
    (folder / "end").touch()
    for worker in workers:
        try:
            worker.wait(60)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


# -- all of it ---------------------------------------------------------------------------------


def tell(results: Results) -> None:
    middle = {name: statistics.median(s.seconds for s in stops) for name, stops in results.items()}
    for name, stops in results.items():
        shares = sorted(stop.share for stop in stops)
        print(
            f"{name}: median stop {middle[name] * 1e3:.0f} ms, "
            f"{statistics.median(shares):.1%} of a step ({shares[0]:.1%} to {shares[-1]:.1%}, "
            f"{len(shares)} times); beside the steps after alone "
            f"{statistics.median(stop.share_after for stop in stops):.1%}"
        )
    step_s = statistics.median(stop.step_s for stop in results["EDL join"])
    mine = max(middle["EDL join"], 0.01 * step_s)
    for name in ("torchft join", "stop-resume"):
        if name in middle:
            print(f"EDL's join is {middle[name] / mine:.0f} times shorter than {name}")


def main() -> int:
    options = parse()
    if options.malloc == "keep":
        os.environ.update(KEEP_MEMORY)
        RIVAL_ENVIRONMENT.update(KEEP_MEMORY)
    rounds: list[Callable[[argparse.Namespace, Path, Results], None]] = [edl_round]
    rivals = [name for name in options.rivals.split(",") if name]
    if unknown := set(rivals) - {"torchft", "stop-resume"}:
        raise SystemExit(f"--rivals knows torchft and stop-resume, not {', '.join(unknown)}")
    if "torchft" in rivals and importlib.util.find_spec("torchft") is None:
        print("torchft is not installed here (pip install torchft-nightly): left out")
    elif "torchft" in rivals:
        rounds.append(torchft_round)
    if "stop-resume" in rivals:
        rounds.append(stop_resume_round)
    results: Results = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for once in rounds:
            folder = Path(tempfile.mkdtemp(prefix="edl-bench-"))
            try:
                once(options, folder, results)
            except SystemExit as why:
                if once is edl_round:
                    raise
                # A rival that lost steps or did not start costs its round alone.
                print(f"  left out: {why}", flush=True)
            shutil.rmtree(folder)
    print(
        f"{options.model}, {options.optimizer}, wait {options.wait:g} s, malloc {options.malloc}, "
        f"{options.joiners} joining"
    )
    tell(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
