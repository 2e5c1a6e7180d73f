"""How simulations are told: the table for the eye, JSON and CSV for programs (docs/simulate.md)."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from edl.errors import UsageError
from edl.simulator.comparison import (
    COLUMNS,
    change,
    change_text,
    load_text,
    seconds_text,
    time_text,
)
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.setting import Setting
from edl.simulator.summary import Summary, by_size, jct_s, summarise

__all__ = [
    "JOB_FIELDS",
    "as_fields",
    "check_jobs",
    "print_comparison",
    "short_time",
    "trace_notes",
    "write_jobs",
]

JOB_FIELDS = (
    *("policy", "id", "model", "gpus", "elastic", "size_gpu_s", "submit_s", "start_s", "end_s"),
    *("jct_s", "wait_s", "held_gpu_s", "adjustments", "preemptions", "stopped_s"),
)
TITLES = {
    "Mean JCT": "mean\nJCT",
    "Median JCT": "median\nJCT",
    "95th JCT": "95th\nJCT",
    "99th JCT": "99th\nJCT",
    "Mean waiting": "mean\nwait",
    "Makespan": "make-\nspan",
    "Utilisation": "util.",
    "Cluster efficiency": "clust.\neff.",
    "GPU efficiency": "GPU\neff.",
    "Adjustments": "adjust-\nments",
    "Preemptions": "preemp-\ntions",
}
# Where it is not a terminal that says how wide it is.
WIDTH = 120


def print_comparison(trace: Trace, outcomes: Sequence[Outcome], notes: Sequence[str]) -> None:
    """A row per policy, or a column where the terminal is too narrow for that."""
    console = Console(highlight=False)
    width = console.width if console.is_terminal else WIDTH
    summaries = [summarise(outcome) for outcome in outcomes]
    first = outcomes[0]
    print(
        f"{trace.name}: {summaries[0].jobs:,} jobs on {first.nodes:,} x {first.gpus_per_node} "
        f"GPUs, {load_text(first.load)}, {first.mechanism} adjustments"
    )
    print()
    shapes = (_rows(summaries, apart=1), _rows(summaries, apart=0), _columns(summaries))
    table = next((shape for shape in shapes if _width_of(shape) <= width), shapes[-1])
    # Not to standard output itself: a console ends in its own way where nobody reads.
    drawn = io.StringIO()
    # A table that is too wide all the same is better wrapped by the terminal than cut.
    wide = max(width, _width_of(table))
    Console(file=drawn, highlight=False, width=wide, force_terminal=console.is_terminal).print(
        table
    )
    print(drawn.getvalue(), end="")
    told = "JCT: job completion time, from submission to completion"
    print(f"{told}; change: of the mean, from {first.policy}" if len(outcomes) > 1 else told)
    for note in notes:
        print(f"note: {note}")


def _rows(summaries: Sequence[Summary], *, apart: int) -> Table:
    several = len(summaries) > 1
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, padding=(0, apart, 0, 0))
    table.add_column("policy", no_wrap=True, vertical="bottom")
    for column in COLUMNS:
        table.add_column(TITLES[column.name], justify="right", no_wrap=True)
        if column is COLUMNS[0] and several:
            table.add_column("change", justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(summary.policy, *_cells(summary, summaries[0], several=several))
    return table


def _columns(summaries: Sequence[Summary]) -> Table:
    several = len(summaries) > 1
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for summary in summaries:
        table.add_column(summary.policy, justify="right", no_wrap=True)
    names = [column.name[0].lower() + column.name[1:] for column in COLUMNS]
    names = [name if name != "gPU efficiency" else "GPU efficiency" for name in names]
    if several:
        names.insert(1, "change")
    cells = [_cells(summary, summaries[0], several=several) for summary in summaries]
    for name, *values in zip(names, *cells, strict=True):
        table.add_row(name, *values)
    return table


def _cells(summary: Summary, baseline: Summary, *, several: bool) -> list[str]:
    cells = [
        # In seconds, times of days would be numbers that nobody can imagine; --json has them.
        (short_time if column.text in (seconds_text, time_text) else column.text)(
            column.value(summary)
        )
        for column in COLUMNS
    ]
    if several:
        cells.insert(1, change_text(change(summary, baseline)))
    return cells


def short_time(seconds: float) -> str:
    """A time in its two largest units and few characters: 2h 11m, 6d 16h, 42.5s."""
    return re.sub(r"(?<=\d) ([dhms])[a-z]*", r"\1", time_text(seconds))


def _width_of(table: Table) -> int:
    return Console(width=10_000).measure(table).maximum


def trace_notes(trace: Trace, outcomes: Sequence[Outcome]) -> list[str]:
    """What a reader must know of jobs that are not in the figures, and of how they were read."""
    notes = []
    if trace.skipped:
        why = "; ".join(f"{count:,} {reason}" for reason, count in trace.skipped.items())
        count = sum(trace.skipped.values())
        were = "job of the trace was" if count == 1 else "jobs of the trace were"
        notes.append(f"{count:,} {were} left out: {why}")
    rejected = max(outcome.rejected for outcome in outcomes)
    if rejected:
        notes.append(f"{rejected:,} jobs ask for more GPUs than there are, and were left out")
    return [*notes, *_equal_notes(outcomes), *trace.notes, *outcomes[0].notes]


def _equal_notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Equal rows look like a mistake unless somebody says that they are none."""
    alike: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for outcome in outcomes:
        times = tuple((job.start_s, job.end_s) for job in outcome.jobs)
        alike.setdefault(times, []).append(outcome.policy)
    for policies in alike.values():
        if len(policies) < 2:
            continue
        why = ""
        if set(policies) == {"fifo", "static"}:
            why = ": they differ in placement only"
        yield f"{', '.join(policies[:-1])} and {policies[-1]} gave every job the same times{why}"


def as_fields(trace: Trace, setting: Setting, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """`edl simulate --json`."""
    summaries = [summarise(outcome) for outcome in outcomes]
    return {
        "trace": {
            "name": trace.name,
            "jobs": len(trace.jobs),
            # One moment of submission has no load, and infinity is no JSON.
            "load": outcomes[0].load if isfinite(outcomes[0].load) else None,
            "skipped": dict(trace.skipped),
            "notes": [*trace.notes, *outcomes[0].notes],
        },
        "cluster": {
            "nodes": setting.nodes,
            "gpus_per_node": setting.gpus_per_node,
            "gpus": setting.capacity,
            "placement": setting.placement,
        },
        "mechanism": setting.mechanism,
        "prices": asdict(setting.prices),
        "models": setting.models,
        "models_source": setting.models_source,
        "models_gpu": setting.models_gpu,
        "round_s": setting.round_s,
        "knob": setting.knob,
        "seed": setting.seed,
        "baseline": summaries[0].policy,
        "policies": [
            {
                **asdict(summary),
                "change": change(summary, summaries[0]),
                "by_size": [asdict(each) for each in by_size(outcome)],
            }
            for summary, outcome in zip(summaries, outcomes, strict=True)
        ],
    }


def check_jobs(path: Path) -> None:
    """UsageError if a file could not be written there; nothing is left of the attempt."""
    partial = _beside(path)
    if partial is None:
        return
    try:
        partial.touch()
        partial.unlink()
    except OSError as error:
        raise UsageError(f"--jobs-csv {path} cannot be written: {error.strerror}") from error


def _beside(path: Path) -> Path | None:
    """Where a file is written that then takes the place of `path`, or of what it is a link to;
    None: that is a pipe or a device, and is written to itself."""
    # Asked of the path itself: what a shell gives as /dev/fd/63 leads to no path at all.
    if path.exists() and not path.is_file() and not path.is_dir():
        return None
    target = path.resolve()
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def write_jobs(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Whole or not at all: written beside it, and then put in its place."""
    partial = _beside(path)
    try:
        try:
            with open(partial or path, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(JOB_FIELDS)
                writer.writerows(_job_rows(outcomes))
            if partial is not None:
                os.replace(partial, path.resolve())
        finally:
            if partial is not None:
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--jobs-csv {path} cannot be written: {error.strerror}") from error


def _job_rows(outcomes: Sequence[Outcome]) -> Iterator[tuple[object, ...]]:
    """Times to the millisecond: the digits behind it are the machine's and not the model's."""
    for outcome in outcomes:
        for job in outcome.jobs:
            yield (
                *(outcome.policy, job.id, job.model, job.gpus, "true" if job.elastic else "false"),
                *(round(job.size_gpu_s, 3), round(job.submit_s, 3), round(job.start_s, 3)),
                *(round(job.end_s, 3), round(jct_s(job), 3), round(job.wait_s, 3)),
                *(round(job.held_gpu_s, 3), job.adjustments, job.preemptions),
                round(job.stopped_s, 3),
            )
