"""`make demo`: a real model is scaled out to 4 workers and in to 3 while it trains.

The leader is the one that leaves. Then the same model is trained without any scaling, and the two
are compared. Everything is judged from what the training script itself wrote down: which samples
each worker used in which step. Writes demo-out/timeline.png.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from exactly_once import Line, judge, read
from rich.console import Console
from rich.table import Table
from timeline import draw, marks_of, steps_of

from edl.client import Job, run
from edl.errors import EdlError
from edl.protocol.tale import AdjustmentRecord

SCRIPT = str(Path(__file__).with_name("digits.py"))
SAMPLES, BATCH, PACE_S = 1437, 96, 0.002
Logs = dict[str, list[Line]]
console = Console(highlight=False)
began = time.monotonic()


def say(text: str) -> None:
    console.print(f"[dim]{time.monotonic() - began:6.1f} s[/]  {text}")


@contextmanager
def training(name: str, out: Path, *args: str) -> Iterator[Job]:
    """A job of 2 workers that is gone when this is over, whatever happened."""
    job = run(SCRIPT, *args, "--log", str(out / name), workers=2, name=name)
    over = threading.Event()
    watcher = threading.Thread(target=watch, args=(job, over), daemon=True)
    watcher.start()
    try:
        yield job
    finally:
        over.set()
        watcher.join()
        if job.running():
            say(f"ending job {name}")
            job.stop(force=True)


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


def show(records: tuple[AdjustmentRecord, ...]) -> None:
    heads = ("process start", "context", "topology", "wait for switch", "state transfer", "stop")
    table = Table("milliseconds", *heads, "in all")
    for column in table.columns[1:]:
        column.justify = "right"
    for record in records:
        parts = record.parts
        before = (parts.process_start_s, parts.context_s, parts.topology_s, parts.switch_wait_s)
        times = (*before, parts.transfer_s, parts.stop_s, record.total_s)
        name = f"{record.kind.replace('_', ' ')} to {record.size}"
        table.add_row(name, *(f"{1000 * seconds:,.0f}" for seconds in times))
    console.print(table)
    console.print("[dim]stop: how much longer the first step took than steps did before; with")
    console.print("[dim]fewer workers each has more to do. All else went on beside training.\n")


def checked(elastic: Logs, static: Logs) -> bool:
    """Print what must hold, and whether it does."""
    epochs = judge(elastic.values(), samples=SAMPLES)
    never, once, more = (sum(getattr(e, n) for e in epochs) for n in ("never", "once", "more"))
    ends = [log[-1] for log in elastic.values() if log[-1]["what"] == "finished"]
    alone = [log[-1] for log in static.values() if log[-1]["what"] == "finished"]
    score, other = ends[0]["accuracy"], alone[0]["accuracy"]
    used = f"in {len(epochs)} epochs: never {never}, once {once:,}, more than once {more}"
    claims = (
        (f"each sample exactly once an epoch ({used})", never == more == 0),
        (f"{BATCH} samples in each step, with 2, 4 and 3 workers", all(e.holds(BATCH) for e in epochs)),
        (f"the {len(ends)} models at the end are equal, bit for bit",
         len(ends) == 3 and len({line["fingerprint"] for line in ends}) == 1),
        (f"test accuracy {score:.1%}, without scaling {other:.1%}", abs(score - other) <= 0.01),
    )  # fmt: skip
    for text, holds in claims:
        console.print(f"[{'green]yes' if holds else 'bold red]NO '}[/]  {text}")
    return all(holds for _, holds in claims)


def main() -> int:
    parser = argparse.ArgumentParser(description="EDL's demo.")
    parser.add_argument("--quick", action="store_true", help="fewer epochs")
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    args = parser.parse_args()
    epochs, first = (14, 1) if args.quick else (40, 5)
    rmtree(args.out, ignore_errors=True)
    os.environ.setdefault("EDL_HOME", str(args.out.resolve() / "edl"))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    say(f"training a network on {SAMPLES} handwritten digits with 2 workers, {epochs} epochs")
    length = ("--epochs", str(epochs))
    with training("elastic", args.out, *length, "--pace", str(PACE_S)) as job:
        scale(job, epochs=epochs, first=first)
        result = job.wait()
    say("the same once more, 2 workers from beginning to end and at full speed")
    with training("static", args.out, *length) as other:
        other.wait()
    elastic, static = read(args.out / "elastic"), read(args.out / "static")
    picture = args.out / "timeline.png"
    marks = marks_of(job.events(), result.adjustments)
    draw(picture, steps_of(elastic.values()), steps_of(static.values()), marks)
    console.print()
    show(result.adjustments)
    good = checked(elastic, static) and len(result.adjustments) == 2
    console.print(f"\nPicture: [bold]{picture}[/]")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdlError as error:
        sys.exit(f"demo: {error}")
