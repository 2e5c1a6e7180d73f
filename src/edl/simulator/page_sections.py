"""The charts of a report: which numbers of the outcomes each shows, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edl.simulator.chart_gantt import Window, gantt_chart, window_of
from edl.simulator.chart_palette import HELD, held_class
from edl.simulator.chart_scale import count_scale, log_time_scale, share_scale, time_scale
from edl.simulator.charts import Bars, Line, bar_chart, figure, line_chart
from edl.simulator.comparison import share_text, time_text
from edl.simulator.outcome import Outcome, Timeline
from edl.simulator.page import Row, held_legend, table
from edl.simulator.summary import by_size, cdf, jct_s, percentile

__all__ = ["cdf_section", "gantt_section", "size_section", "timeline_sections"]

BINS = 400  # of a curve over time; more of them lie closer than pixels
SLICES = 12  # of its table
WORTH = (
    "GPUs' worth of useful work, of all: an idle GPU is worth 0, one of a job at its most "
    "efficient size 1."
)
WAITING = "Jobs without GPUs, preempted ones included."
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)

Styles = Mapping[str, int]


def cdf_section(outcomes: Sequence[Outcome], styles: Styles) -> str:
    times = {each.policy: sorted(jct_s(job) for job in each.jobs) for each in outcomes}
    x = log_time_scale(
        min(each[0] for each in times.values()), max(each[-1] for each in times.values())
    )
    lines = [
        Line(policy, styles[policy], [(x.low, 0.0), *cdf(each)], each[-1])
        for policy, each in times.items()
    ]
    rows = [
        Row(policy, [time_text(percentile(each, share)) for share in SHARES])
        for policy, each in times.items()
    ]
    names = [f"{share:.0%}" for share in SHARES]
    return figure(
        "cdf",
        "How soon jobs complete",
        "Share of jobs whose JCT is no longer than that. Further left and higher is better.",
        line_chart(
            lines,
            label="Cumulative distribution of JCT by policy, logarithmic in time",
            x=x,
            y=share_scale(),
            x_title="JCT",
        ),
        table=table("JCT within which a share of jobs completes", "Policy", names, rows),
    )


def timeline_sections(outcomes: Sequence[Outcome], styles: Styles) -> str:
    end = max(outcome.makespan_s for outcome in outcomes)
    x = time_scale(0.0, end)
    most = max(max(outcome.timeline.waiting, default=0.0) for outcome in outcomes)
    kinds = [
        ("used", "Utilisation", "GPUs that jobs hold, of all.", share_scale(), share_text),
        ("worth", "Cluster efficiency", WORTH, share_scale(), share_text),
        ("waiting", "Waiting jobs", WAITING, count_scale(most), "{:,.1f}".format),
    ]
    charts = []
    for name, title, text, y, said in kinds:
        lines, rows = [], []
        for outcome in outcomes:
            curve = _curve(outcome, name)
            bin_s = _bin_s(outcome.timeline)
            points = [(place * bin_s, value) for place, value in enumerate(curve)]
            style = styles[outcome.policy]
            lines.append(Line(outcome.policy, style, points or [(0.0, 0.0)], outcome.makespan_s))
            rows.append(Row(outcome.policy, _slices(points, outcome.makespan_s, bin_s, end, said)))
        columns = [f"to {time_text(end * (part + 1) / SLICES)}" for part in range(SLICES)]
        drawn = line_chart(
            lines,
            label=f"{title} over time by policy",
            x=x,
            y=y,
            x_title="time since the first submission",
            sync="time",
        )
        means = table(f"{title}, means over a twelfth of the time", "Policy", columns, rows)
        charts.append(figure(name, title, text, drawn, table=means))
    return "\n".join(charts)


def size_section(outcomes: Sequence[Outcome], styles: Styles) -> str:
    classes = {outcome.policy: by_size(outcome) for outcome in outcomes}
    groups = [each.name for each in classes[outcomes[0].policy]]
    bars = [
        Bars(policy, styles[policy], [each.jct_mean_s for each in sizes])
        for policy, sizes in classes.items()
    ]
    heights = [value for each in bars for value in each.values if value is not None]
    # A bar of the lowest value is to be seen too.
    y = log_time_scale(min(heights) / 2, max(heights))
    rows = [
        Row(
            policy,
            ["-" if each.jct_mean_s is None else time_text(each.jct_mean_s) for each in sizes],
        )
        for policy, sizes in classes.items()
    ]
    counts = [f"{each.jobs:,}" for each in classes[outcomes[0].policy]]
    return figure(
        "sizes",
        "Mean JCT by size of job",
        "Who pays for a better mean. Lower is better; the scale is logarithmic.",
        bar_chart(groups, bars, label="Mean JCT by class of job size and policy", y=y),
        table=table("Mean JCT by size in GPU s", "Policy", groups, [*rows, Row("Jobs", counts)]),
    )


def gantt_section(outcomes: Sequence[Outcome], styles: Styles) -> str:
    window = window_of(outcomes)
    title = "Who holds the GPUs"
    if window is None:
        return figure("gantt", title, "No job held GPUs in the window.", "")
    text = (
        f"From {time_text(window.begin_s)} to {time_text(window.end_s)} after the first "
        "submission, where the axis says 0. A bar is a job, as high as the GPUs that it holds; "
        "what is empty is idle."
    )
    if not window.whole:
        text += (
            f" The window would go on until {time_text(window.asked_s[1])}; it is cut where "
            "more bars would be too many to tell apart."
        )
    groups = "".join(gantt_chart(each, window, styles[each.policy]) for each in outcomes)
    names = [*(held.label for held in HELD), "idle"]
    rows = [Row(outcome.policy, _held_shares(outcome, window)) for outcome in outcomes]
    return figure(
        "gantt",
        title,
        text,
        held_legend() + groups,
        table=table("Share of GPU time in the window", "Policy", names, rows),
    )


# -- numbers of the charts -------------------------------------------------------------------


def _curve(outcome: Outcome, name: str) -> list[float]:
    """Shares of the cluster, or jobs; where there are more bins than pixels, means of several."""
    values: tuple[float, ...] = getattr(outcome.timeline, name)
    whole = 1 if name == "waiting" else outcome.nodes * outcome.gpus_per_node
    every = _every(outcome.timeline)
    parts = [values[i : i + every] for i in range(0, len(values), every)]
    return [sum(part) / len(part) / whole for part in parts]


def _every(timeline: Timeline) -> int:
    return -(-len(timeline.used) // BINS) or 1


def _bin_s(timeline: Timeline) -> float:
    return timeline.bin_s * _every(timeline)


def _slices(
    points: Sequence[tuple[float, float]],
    makespan_s: float,
    bin_s: float,
    end_s: float,
    said: Callable[[float], str],
) -> list[str]:
    """Means over equal slices of the axis, by the bins whose middles lie in them."""
    sums: list[list[float]] = [[] for _ in range(SLICES)]
    for begin, value in points:
        middle = (begin + min(begin + bin_s, makespan_s)) / 2
        sums[min(int(SLICES * middle / end_s), SLICES - 1)].append(value)
    return [said(sum(each) / len(each)) if each else "-" for each in sums]


def _held_shares(outcome: Outcome, window: Window) -> list[str]:
    """Of the cluster's GPU time in the window: by what was asked for, and idle."""
    totals = dict.fromkeys((held.name for held in HELD), 0.0)
    for span in outcome.spans:
        begin, end = max(span.begin_s, window.begin_s), min(span.end_s, window.end_s)
        if end > begin:
            totals[held_class(span.gpus, span.asked).name] += (end - begin) * span.gpus
    whole = outcome.nodes * outcome.gpus_per_node * (window.end_s - window.begin_s)
    shares = [total / whole for total in totals.values()]
    return [share_text(share) for share in (*shares, max(1 - sum(shares), 0.0))]
