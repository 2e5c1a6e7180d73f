"""Outcomes of several policies on one trace, as one web page that needs nothing beside itself.

Holds: a folder that has been written holds a whole page, this one or the one before; the first
policy is what the others are compared with; a policy has one colour throughout.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EISDIR
from html import escape
from math import isfinite
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.chart_palette import styles_of
from edl.simulator.comparison import (
    COLUMNS,
    best_of,
    change,
    change_text,
    load_text,
    share_text,
    time_text,
)
from edl.simulator.outcome import Outcome
from edl.simulator.page import Row, chips, facts, notes, shell, table
from edl.simulator.page_sections import (
    cdf_section,
    gantt_section,
    size_section,
    timeline_sections,
)
from edl.simulator.summary import Summary, summarise

__all__ = ["PAGE", "check_report", "render", "write_report"]

PAGE = "index.html"
MEANING = (
    "Times in seconds, but for the makespan. JCT: from submission to completion; waiting: time "
    "without GPUs. Utilisation and cluster efficiency are of all GPUs over the makespan."
)

Pairs = Sequence[tuple[str, str]]


def write_report(
    folder: str | os.PathLike[str],
    outcomes: Sequence[Outcome],
    *,
    trace_notes: Sequence[str] = (),
    how: Pairs = (),
) -> Path:
    """Write `folder`/index.html and return its path. `how`: what else to tell of how it was run.

    A folder that exists keeps what else it holds. UsageError where it cannot be written.
    """
    goal = Path(folder)
    text = render(outcomes, trace_notes=trace_notes, how=how)
    try:
        with _beside(goal) as partial:
            (partial / PAGE).write_text(text, encoding="utf-8")
            if goal.is_dir():
                os.replace(partial / PAGE, goal / PAGE)
            else:
                os.rename(partial, goal)
    except OSError as error:
        raise _unwritable(goal, error) from error
    return goal / PAGE


def check_report(folder: str | os.PathLike[str]) -> None:
    """UsageError if a report could not be written there; nothing is left of the attempt."""
    goal = Path(folder)
    try:
        with _beside(goal) as partial:
            (partial / PAGE).touch()
        if (goal / PAGE).is_dir():
            raise IsADirectoryError(EISDIR, f"{PAGE} in it is a folder")
    except OSError as error:
        raise _unwritable(goal, error) from error


@contextmanager
def _beside(goal: Path) -> Iterator[Path]:
    """A folder for what is not complete: in the goal if it is there, for what lies around that may
    be others', else in its place under another name. It does not stay."""
    name = f".{goal.absolute().name}.{os.getpid()}.partial"
    partial = goal / name if goal.is_dir() else goal.absolute().with_name(name)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _unwritable(goal: Path, error: OSError) -> UsageError:
    return UsageError(f"the report {goal} cannot be written: {error.strerror}")


def render(outcomes: Sequence[Outcome], *, trace_notes: Sequence[str] = (), how: Pairs = ()) -> str:
    """The page as text."""
    if not outcomes:
        raise UsageError("a report needs the outcome of one policy at least")
    summaries = [summarise(outcome) for outcome in outcomes]
    styles = styles_of(outcome.policy for outcome in outcomes)
    first = outcomes[0]
    title = f"Simulation of {first.trace}"
    body = [
        _header(title, first, summaries[0]),
        "<main>",
        _lead(summaries),
        _summary_table(summaries),
        f"<p>{MEANING}</p>",
        chips(styles),
        cdf_section(outcomes, styles),
        timeline_sections(outcomes, styles),
        size_section(outcomes, styles),
        gantt_section(outcomes, styles),
        "<section><h2>How it was run</h2>",
        facts([*_facts(first, summaries), *how]),
        notes(trace_notes),
        "</section></main>",
    ]
    return shell(title=title, body="\n".join(body))


def _header(title: str, outcome: Outcome, summary: Summary) -> str:
    text = (
        f"{summary.jobs:,} jobs on {outcome.nodes:,} x {outcome.gpus_per_node} GPUs, "
        f"{load_text(outcome.load)}, {outcome.mechanism} adjustments"
    )
    return (
        f"<header><div><h1>{escape(title)}</h1><p>{escape(text)}</p></div>"
        '<button type="button" id="theme" hidden>Dark</button></header>'
    )


def _lead(summaries: Sequence[Summary]) -> str:
    """What a reader in a hurry takes along."""
    baseline, *others = summaries
    if not others:
        return ""
    best = min(others, key=lambda summary: summary.jct_mean_s)
    by = change(best, baseline) or 0.0
    how = f"{share_text(abs(by))} {'less' if by < 0 else 'more'} than {baseline.policy}"
    return (
        f'<p class="lead">Mean JCT: {escape(best.policy)} {time_text(best.jct_mean_s)}, '
        f"{escape(how)} ({time_text(baseline.jct_mean_s)}).</p>"
    )


def _summary_table(summaries: Sequence[Summary]) -> str:
    bests = [best_of(column, summaries) for column in COLUMNS]
    rows = []
    for summary in summaries:
        cells = [column.text(column.value(summary)) for column in COLUMNS]
        best = {place for place, cell in enumerate(cells) if cell == bests[place]}
        # The change stands beside the mean, and moves what follows by one.
        cells.insert(1, change_text(change(summary, summaries[0])))
        moved = frozenset(place + 1 if place else 0 for place in best)
        baseline = summary is summaries[0] and len(summaries) > 1
        rows.append(Row(summary.policy, cells, moved, baseline))
    names = [column.name for column in COLUMNS]
    columns = [names[0], "Change", *names[1:]]
    return table("Summary of all policies", "Policy", columns, rows, wide=True)


def _facts(outcome: Outcome, summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    gpus = outcome.nodes * outcome.gpus_per_node
    took = ", ".join(f"{each.policy} {time_text(each.wall_s)}" for each in summaries)
    known = [
        ("Trace", f"{outcome.trace}: {summaries[0].jobs:,} jobs"),
        ("Cluster", f"{outcome.nodes:,} machines x {outcome.gpus_per_node} = {gpus:,} GPUs"),
        ("Offered load", f"{outcome.load:.3f}" if isfinite(outcome.load) else "all at once"),
        ("Mechanism", outcome.mechanism),
        ("Seed", str(outcome.seed)),
        ("Simulated in", took),
    ]
    if outcome.rejected:
        known.insert(1, ("Left out", f"{outcome.rejected:,} jobs larger than the cluster"))
    return known
