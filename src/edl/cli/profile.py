"""`edl profile`: how fast a job goes with p workers, as a table, a file or a picture."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from edl.cli.picture import check_kind, draw
from edl.cli.say import say
from edl.cli.signals import interruptible
from edl.cli.table import told_failures
from edl.client import Job, Profile, run
from edl.errors import AdjustmentFailed, JobFailed, UsageError
from edl.protocol.profiling import KNEE_EFFICIENCY
from edl.types import workers_said

__all__ = ["profile"]

FIELDS = ("workers", "throughput", "per_worker", "efficiency", "step_s", "steps")


def profile(options: argparse.Namespace) -> int:
    if bool(options.job) == bool(options.script):
        raise UsageError(
            "give either the name of a job that runs, or --script SCRIPT to start one for this"
        )
    # Told before minutes of measuring, not after them.
    if options.plot is not None:
        check_kind(Path(options.plot))
        # As it would be named in the end.
        options.plot = options.plot if Path(options.plot).suffix else f"{options.plot}.png"
    for path in (options.csv, options.plot):
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no such folder")
        if path is not None and Path(path).is_dir():
            raise UsageError(f"{path} cannot be written: it is a folder")
    heard: list[int] = []
    try:
        with interruptible() as heard:
            found = _profile_script(options) if options.script else _profile_job(options)
    except KeyboardInterrupt:
        if heard:
            return 128 + heard[0]
        raise
    # First, for what was measured is not to be lost with a file that cannot be written.
    if options.json:
        print(json.dumps(asdict(found), indent=2))
    else:
        _print(found)
        if options.min_p is None and options.max_p is None and not options.script:
            _print_present(found)
        else:
            _print_best(found)
        for note in found.notes:
            print(f"note: {note}")
    if options.csv is not None:
        _write_csv(Path(options.csv), found)
    if options.plot is not None:
        draw(Path(options.plot), found)
    written = [str(path) for path in (options.csv, options.plot) if path is not None]
    if written:
        say(f"written: {', '.join(written)}")
    return 0 if found.restored else 1


def _profile_job(options: argparse.Namespace) -> Profile:
    return Job(options.job, timeout_s=options.timeout).profile(
        options.min_p,
        options.max_p,
        steps=options.steps,
        warm_up=options.warm_up,
        progress=say,
    )


def _profile_script(options: argparse.Namespace) -> Profile:
    """A job of its own, which ends with this."""
    script, *args = options.script
    say(f"starting a job of {script} for this, to be killed afterwards")
    # Without a number: one worker per GPU, or two.
    workers = options.max_p or 0
    job = run(script, *args, workers=workers, audit=False, timeout_s=options.timeout)
    try:
        say(f"it is job {job.name}")
        return job.profile(
            options.min_p or 1,
            options.max_p,
            steps=options.steps,
            warm_up=options.warm_up,
            restore=False,
            progress=say,
        )
    except AdjustmentFailed as error:
        failed = job.result()
        if failed is None or failed.state != "failed":
            raise
        told = [
            f"worker {each.worker}, {each.reason} (log: {each.log})\n{each.traceback}"
            for each in told_failures(failed)
        ]
        raise JobFailed("\n".join([str(error), *told])) from error
    finally:
        if job.running():
            job.stop(force=True)


def _print(found: Profile) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for name in ("workers", "samples/s", "a worker", "efficiency", "ms/step", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in found.rows:
        table.add_row(
            f"{row.workers} *" if row.workers == found.best else f"{row.workers}  ",
            f"{row.throughput:,.1f}",
            f"{row.per_worker:,.1f}",
            "-" if row.efficiency is None else f"{row.efficiency:.2f}",
            f"{row.step_s * 1000:.1f}",
            str(row.steps),
        )
    Console(highlight=False).print(table)


def _print_best(found: Profile) -> None:
    if found.best is not None:
        print(f"best use of each worker: with {found.best} (*)")
        print(f"most workers at {KNEE_EFFICIENCY * 100:.0f} % efficiency or more: {found.knee}")
        most = max(found.rows, key=lambda row: (row.throughput, -row.workers))
        print(f"most samples a second: with {most.workers}")


def _print_present(found: Profile) -> None:
    """One number of workers is measured now; the others, if any, were some time before."""
    (row,) = found.rows
    print(
        f"now: the job as it is, with {workers_said(row.workers)}, over its last {row.steps} steps"
    )
    if not found.earlier:
        print(
            "efficiency: unknown, for no other number of workers was measured in this job; "
            f"`edl profile {found.job} --min-p P` does, from as many as now down to P"
        )
        return
    seen = ", ".join(f"{speed:,.1f} with {p}" for p, speed in found.earlier.items())
    print(f"seen before, by a profile with a range (samples/s a worker): {seen}")
    if found.best == row.workers:
        print(f"best use of each worker: now, with {found.best} (*)")
    else:
        print(f"best use of each worker: seen before with {found.best}; efficiency is beside that")


def _write_csv(path: Path, found: Profile) -> None:
    try:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(FIELDS)
            for row in found.rows:
                # Nothing to compare with is an empty cell.
                writer.writerow([getattr(row, name) for name in FIELDS])
    except OSError as error:
        raise UsageError(f"--csv {path} cannot be written: {error.strerror}") from error
