"""`make demo`: a real model is scaled out to 4 workers and in to 3 while it trains.

The leader is the one that leaves. Then the same model is trained without any scaling, and the two
are compared. Everything is judged from what the training script itself wrote down: which samples
each worker used in which step. Writes demo-out/timeline.png.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from exactly_once import read
from report import checked, show
from rich.console import Console
from timeline import draw, marks_of, steps_of

from edl.client import Job, run
from edl.errors import EdlError, JobFinished, UnknownJob

SCRIPT = str(Path(__file__).with_name("digits.py"))
PACE_S = 0.002
console = Console(highlight=False)
began = time.monotonic()


def say(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {text}")


@contextlib.contextmanager
def training(name: str, out: Path, *args: str) -> Iterator[Job]:
    """A job of 2 workers that is gone when this is over, whatever happened."""
    over = threading.Event()
    try:
        job = run(SCRIPT, *args, "--log", str(out / name), workers=2, name=name)
        threading.Thread(target=watch, args=(job, over), daemon=True).start()
        yield job
    finally:
        over.set()
        # By its name: an interrupt may have come before `run` returned.
        with contextlib.suppress(UnknownJob, JobFinished):
            Job(name).stop(force=True)
            say(f"job {name} was ended")


def watch(job: Job, over: threading.Event) -> None:
    """A line now and then, also while an adjustment is under way."""
    while not over.wait(3.0) and job.running():
        now = job.status()
        if now.state == "training":
            members = sum(worker.rank >= 0 for worker in now.workers)
            speed = f"{now.throughput:5.0f} samples/s, loss {now.report.get('loss', 0.0):.3f}"
            say(f"epoch {now.epoch:2}, step {now.step:3}, {members} workers, {speed}")


def wait_epoch(job: Job, epoch: int) -> None:
    while job.running() and job.status().epoch < epoch:
        time.sleep(0.1)


def leader_of(job: Job) -> str:
    return next(worker.id for worker in job.status().workers if worker.leader)


def scale(job: Job, *, epochs: int, first: int) -> None:
    """Out to 4, then in to 3, without the leader."""
    wait_epoch(job, first)
    say("[bold]scale out[/]: 2 more workers are started; training goes on")
    job.scale_out(2)
    say("[bold]4 workers[/] share the batch now")
    here = job.status().epoch
    wait_epoch(job, here + (epochs - here) // 2)
    leader = leader_of(job)
    say(f"[bold]scale in[/]: {leader} is to leave, and it is the leader")
    job.scale_in([leader])
    say(f"[bold]3 workers[/] go on, led by {leader_of(job)}")


def main() -> int:
    parser = argparse.ArgumentParser(description="A job is scaled out and in while it trains.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    args = parser.parse_args()
    epochs, first = (14, 1) if args.quick else (32, 4)
    shutil.rmtree(args.out, ignore_errors=True)
    os.environ.setdefault("EDL_HOME", str(args.out.resolve() / "edl"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    say(f"2 workers start, to train a network on handwritten digits for {epochs} epochs")
    length = ("--epochs", str(epochs))
    with training("elastic", args.out, *length, "--pace", str(PACE_S)) as job:
        scale(job, epochs=epochs, first=first)
        result = job.wait()
    say("the same once more: 2 workers all the time, at full speed")
    with training("static", args.out, *length) as other:
        other.wait()
    elastic, static = read(args.out / "elastic"), read(args.out / "static")
    picture = args.out / "timeline.png"
    marks = marks_of(job.events(), result.adjustments)
    draw(picture, steps_of(elastic.values()), steps_of(static.values()), marks)
    console.print()
    show(console, result.adjustments)
    good = checked(console, elastic, static) and len(result.adjustments) == 2
    console.print(f"\nPicture: [bold]{picture}[/]")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdlError as error:
        sys.exit(f"demo: {error}")
