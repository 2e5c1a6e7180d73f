"""The Gantt chart: GPUs upwards, time to the right, a job's GPUs in the colour of held / asked.

The engine counts GPUs and does not say which ones, so they are numbered here for the eye: a job
keeps its numbers while it may, new ones lie together where there is room, the lowest first. Holds:
at no time have two jobs one number; the area of a colour is GPU time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from edl.simulator.chart_palette import held_class
from edl.simulator.chart_scale import gpu_scale, time_scale
from edl.simulator.charts import SIDE, frame, number
from edl.simulator.comparison import time_text
from edl.simulator.outcome import Outcome, Span

__all__ = ["MOST_BARS", "Bar", "Window", "gantt_chart", "stacked", "window_of"]

# That begin within the window, of one policy: more are neither told apart nor drawn quickly. Those
# that were there at its beginning come on top, at most as many as there are GPUs.
MOST_BARS = 1500
LABELS = 40

Runs = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Bar:
    """Neighbouring GPUs [low, high) of one span."""

    span: Span
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Window:
    """What is drawn of what there was."""

    begin_s: float
    end_s: float
    asked_s: tuple[float, float]

    @property
    def whole(self) -> bool:
        return (self.begin_s, self.end_s) == self.asked_s


class _Floor:
    """Free numbers, as runs [low, high) that never touch each other. There is no highest number."""

    def __init__(self) -> None:
        self.free: Runs = [(0, 1 << 60)]

    def give_back(self, runs: Runs) -> None:
        merged: Runs = []
        for low, high in sorted([*self.free, *runs]):
            if merged and merged[-1][1] >= low:
                merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
            else:
                merged.append((low, high))
        self.free = merged

    def take(self, count: int, beside: Runs, below: int) -> Runs:
        """`count` numbers: beside what the job has, else in the tightest run, else in the largest
        pieces. Below `below` as long as there are so many."""
        taken: Runs = []
        begins, ends = {low for low, _ in beside}, {high for _, high in beside}
        while count:
            bounded = [(low, min(high, below)) for low, high in self.free if low < below]
            runs = bounded or self.free
            above = [run for run in runs if run[0] in ends]
            under = [run for run in runs if run[1] in begins]
            fitting = [run for run in runs if _length(run) >= count]
            if above or not (under or fitting):
                low, high = above[0] if above else max(runs, key=_length)
                high = min(high, low + count)
            elif under:
                low, high = under[0]
                low = max(low, high - count)
            else:
                low, _ = min(fitting, key=_length)
                high = low + count
            taken.append((low, high))
            self._remove(low, high)
            count -= high - low
        return taken

    def _remove(self, low: int, high: int) -> None:
        kept: Runs = []
        for a, b in self.free:
            kept += [(x, y) for x, y in ((a, min(b, low)), (max(a, high), b)) if x < y]
        self.free = kept


def stacked(spans: Sequence[Span], begin_s: float, end_s: float, capacity: int) -> list[Bar]:
    """Numbers for the GPUs of every span in the window."""
    inside = [
        span
        for span in spans
        if span.gpus > 0 and span.begin_s < end_s and span.end_s > begin_s
        if span.end_s > span.begin_s
    ]
    begins: defaultdict[float, list[Span]] = defaultdict(list)
    ends: defaultdict[float, list[Span]] = defaultdict(list)
    for span in inside:
        begins[span.begin_s].append(span)
        ends[span.end_s].append(span)
    floor = _Floor()
    held: dict[str, Runs] = {}
    bars: list[Bar] = []
    for now in sorted(begins.keys() | ends.keys()):
        starting = sorted(begins[now], key=lambda span: (span.job not in held, -span.gpus))
        follows = {span.job: span.gpus for span in starting}
        for span in ends[now]:
            kept, left = _cut(held.pop(span.job, []), follows.get(span.job, 0))
            floor.give_back(left)
            if kept:
                held[span.job] = kept
        for span in starting:
            runs = held.get(span.job, [])
            more = span.gpus - sum(map(_length, runs))
            if more > 0:
                runs = _joined([*runs, *floor.take(more, runs, capacity)])
            held[span.job] = runs
            bars += [Bar(span, low, high) for low, high in runs]
    return bars


def window_of(outcomes: Sequence[Outcome]) -> Window | None:
    """The longest window from the common beginning on in which no policy has too many bars; None
    where there is nothing to draw."""
    begin = max(outcome.window_s[0] for outcome in outcomes)
    asked = (begin, min(outcome.window_s[1] for outcome in outcomes))
    ends = [asked[1]]
    for outcome in outcomes:
        # First by spans, which is quick, then by their bars, of which a span may have several.
        end = _enough([span.begin_s for span in outcome.spans], begin, ends[-1])
        bars = stacked(outcome.spans, begin, end, outcome.nodes * outcome.gpus_per_node)
        ends.append(_enough([bar.span.begin_s for bar in bars], begin, end))
    if not any(begin < span.end_s for outcome in outcomes for span in outcome.spans):
        return None
    return Window(begin, ends[-1], asked) if ends[-1] > begin else None


def _enough(begins: list[float], begin: float, end: float) -> float:
    """Until when no more than MOST_BARS begin."""
    begins = sorted(at for at in begins if begin < at < end)
    return begins[MOST_BARS] if len(begins) > MOST_BARS else end


def gantt_chart(outcome: Outcome, window: Window, style: int) -> str:
    capacity = outcome.nodes * outcome.gpus_per_node
    bars = stacked(outcome.spans, window.begin_s, window.end_s, capacity)
    x = time_scale(window.begin_s, window.end_s, since=window.begin_s)
    y_high = max([capacity, *(bar.high for bar in bars)])
    height_px = min(max(4 * capacity, 120), 300)
    scaled = [(bar, x.at(bar.span.begin_s), x.at(bar.span.end_s)) for bar in bars]
    inner = "".join(
        f'<rect class="{held_class(bar.span.gpus, bar.span.asked).name}" '
        f'x="{number(SIDE * left)}" y="{y_high - bar.high}" '
        f'width="{number(SIDE * (right - left))}" height="{bar.high - bar.low}" '
        f'data-j="{escape(bar.span.job)}" data-g="{bar.span.gpus}/{bar.span.asked}"/>'
        for bar, left, right in scaled
        if right > left
    )
    policy = escape(outcome.policy)
    drawn = frame(
        kind="gantt",
        label=f"GPUs over time under {outcome.policy}, {time_text(window.end_s - window.begin_s)}",
        x=x,
        y=gpu_scale(y_high),
        inner=f'<g class="bars{_edge(height_px / y_high)}">{inner}</g>',
        height_px=height_px,
        sync="gantt",
        box=f"0 0 {SIDE} {y_high}",
        over=_labels(scaled, y_high, height_px),
    )
    return (
        f'<div class="series group" data-policy="{policy}"><h3>'
        f'<b class="dot f{style}"></b>{policy}</h3>{drawn}</div>'
    )


def _edge(gpu_px: float) -> str:
    """A line between jobs, where it leaves something of a bar of one GPU. Bars thinner than a pixel
    are drawn without smoothing, or all of them together would let the ground shine through."""
    return " edged" if gpu_px >= 4 else " fine" if gpu_px >= 1 else " thin"


def _labels(scaled: Sequence[tuple[Bar, float, float]], y_high: int, height_px: int) -> str:
    """Names inside the largest bars that have room for one."""
    roomy = [
        (bar, left, right)
        for bar, left, right in scaled
        if right - left > 0.05 and (bar.high - bar.low) * height_px / y_high >= 14
    ]
    roomy.sort(key=lambda each: (each[1] - each[2]) * (each[0].high - each[0].low))
    names = "".join(
        f'<span class="t{held_class(bar.span.gpus, bar.span.asked).name}" '
        f'style="left:{100 * left:.2f}%;width:{100 * (right - left):.2f}%;'
        f"bottom:{100 * bar.low / y_high:.2f}%;"
        f'height:{100 * (bar.high - bar.low) / y_high:.2f}%">{escape(bar.span.job)}</span>'
        for bar, left, right in roomy[:LABELS]
    )
    return f'<div class="names" aria-hidden="true">{names}</div>'


def _cut(runs: Runs, keep: int) -> tuple[Runs, Runs]:
    """The `keep` numbers that lie together best, and the others."""
    kept, left = [], []
    for low, high in sorted(runs, key=lambda run: (-_length(run), run)):
        middle = min(high, low + keep)
        if middle > low:
            kept.append((low, middle))
        if high > middle:
            left.append((middle, high))
        keep -= middle - low
    return kept, left


def _joined(runs: Runs) -> Runs:
    joined: Runs = []
    for low, high in sorted(runs):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def _length(run: tuple[int, int]) -> int:
    return run[1] - run[0]
