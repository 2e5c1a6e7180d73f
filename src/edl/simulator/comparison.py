"""Policies side by side: which numbers are compared, and how a person reads each of them.

The terminal's table and the page's have the same columns, from here. The first policy is the
baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

from edl.simulator.summary import Summary

__all__ = [
    "COLUMNS",
    "Column",
    "best_of",
    "change",
    "change_text",
    "load_text",
    "seconds_text",
    "share_text",
    "time_text",
]


def change(summary: Summary, baseline: Summary) -> float | None:
    """Of the mean JCT: -0.4 is 40 % less than the baseline's. None of the baseline itself."""
    if summary.policy == baseline.policy or not baseline.jct_mean_s:
        return None
    return summary.jct_mean_s / baseline.jct_mean_s - 1


def seconds_text(value: float) -> str:
    """A number of seconds to compare with others: 1,312 or 42.5."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def time_text(value: float) -> str:
    """A time to imagine: its two largest units, as 75 d 3 h or 2 h 11 min."""
    whole = round(value)
    if whole < 60:
        return f"{seconds_text(value)} s"
    for unit, name, part, part_name in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit:,} {name}" + (f" {rest} {part_name}" if rest else "")
    raise AssertionError("a minute or more has a unit")


def share_text(value: float) -> str:
    return f"{100 * value:.1f} %"


def change_text(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def count_text(value: float) -> str:
    return f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class Column:
    """`better`: -1 if less is, 1 if more is, 0 where neither is a merit of its own."""

    name: str
    value: Callable[[Summary], float]
    text: Callable[[float], str]
    better: int


COLUMNS = (
    Column("Mean JCT", lambda each: each.jct_mean_s, seconds_text, -1),
    Column("Median JCT", lambda each: each.jct_median_s, seconds_text, -1),
    Column("95th JCT", lambda each: each.jct_p95_s, seconds_text, -1),
    Column("99th JCT", lambda each: each.jct_p99_s, seconds_text, -1),
    Column("Mean waiting", lambda each: each.wait_mean_s, seconds_text, -1),
    Column("Makespan", lambda each: each.makespan_s, time_text, -1),
    Column("Utilisation", lambda each: each.utilisation, share_text, 0),
    Column("Cluster efficiency", lambda each: each.cluster_efficiency, share_text, 1),
    Column("GPU efficiency", lambda each: each.gpu_efficiency, share_text, 1),
    Column("Adjustments", lambda each: each.adjustments, count_text, 0),
    Column("Preemptions", lambda each: each.preemptions, count_text, 0),
)


def best_of(column: Column, summaries: Sequence[Summary]) -> str | None:
    """As it is written, so that what looks the same is equally good. None: nobody is best."""
    if not column.better or len(summaries) < 2:
        return None
    values = [column.value(each) for each in summaries]
    texts = {column.text(value) for value in values}
    best = max(values) if column.better > 0 else min(values)
    return column.text(best) if len(texts) > 1 else None


def load_text(load: float) -> str:
    """Jobs that all come at one moment offer no load that could be told as a number."""
    return f"offered load {load:.2f}" if isfinite(load) else "all submitted at once"
