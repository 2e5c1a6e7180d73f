"""Curves and bars as HTML: an SVG that stretches with the page, and names of ticks beside it.

Text is HTML and not SVG, so it has the same size on a telephone as on a desk. Every name is
escaped here, whoever chose it. What a pointer reads out is found in the drawing itself by the
page's script; nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from edl.simulator.chart_scale import Scale

__all__ = ["SIDE", "Bars", "Line", "bar_chart", "figure", "frame", "line_chart", "number"]

SIDE = 1000  # of the square that every plot is drawn in


@dataclass(frozen=True, slots=True)
class Line:
    """A staircase: `points` rise in x, and each y holds until the next x, the last to `end`."""

    policy: str
    style: int
    points: Sequence[tuple[float, float]]
    end: float


@dataclass(frozen=True, slots=True)
class Bars:
    """One policy's heights, a value per group; None is no bar."""

    policy: str
    style: int
    values: Sequence[float | None]


def number(value: float) -> str:
    """As few characters as a place in the square needs."""
    return f"{value:.1f}".removesuffix(".0")


def figure(name: str, title: str, text: str, inner: str, *, table: str = "") -> str:
    """A chart with what it shows above, and its numbers as a table beneath."""
    details = f"<details><summary>As a table</summary>{table}</details>" if table else ""
    return (
        f'<figure class="chart" id="{name}"><figcaption><h2>{escape(title)}</h2>'
        f"<p>{escape(text)}</p></figcaption>{inner}{details}</figure>"
    )


def frame(
    *,
    kind: str,
    label: str,
    x: Scale,
    y: Scale,
    inner: str,
    height_px: int,
    sync: str = "",
    box: str = f"0 0 {SIDE} {SIDE}",
    over: str = "",
    x_title: str = "",
) -> str:
    """Axes around a drawing. `sync`: plots with the same word show one pointer's place."""
    lines = "".join(
        f'<i class="gx" style="left:{100 * tick.at:.2f}%"></i>' for tick in x.ticks
    ) + "".join(f'<i class="gy" style="bottom:{100 * tick.at:.2f}%"></i>' for tick in y.ticks)
    names = "".join(
        f'<span class="tx{"" if tick.main else " thin"}" style="left:{100 * tick.at:.2f}%">'
        f"{escape(tick.label)}</span>"
        for tick in x.ticks
    ) + "".join(
        f'<span class="ty" style="bottom:{100 * tick.at:.2f}%">{escape(tick.label)}</span>'
        for tick in y.ticks
    )
    title = f'<span class="xtitle">{escape(x_title)}</span>' if x_title else ""
    return (
        f'<div class="plot{" titled" if x_title else ""}" data-kind="{kind}" data-sync="{sync}" '
        f'data-x="{_axis(x)}" data-y="{_axis(y)}" style="height:{height_px}px">{lines}'
        f'<svg viewBox="{box}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}">{inner}</svg>{over}<i class="cursor" hidden></i>'
        f'<div aria-hidden="true">{names}</div>{title}</div>'
    )


def line_chart(
    lines: Sequence[Line], *, label: str, x: Scale, y: Scale, x_title: str, sync: str = ""
) -> str:
    inner = "".join(
        f'<polyline class="series s{line.style}" data-policy="{escape(line.policy)}" '
        f'points="{_stairs(line, x, y)}"><title>{escape(line.policy)}</title></polyline>'
        for line in lines
    )
    return frame(
        kind="lines",
        label=label,
        x=x,
        y=y,
        inner=inner,
        height_px=280,
        sync=sync,
        x_title=x_title,
    )


def bar_chart(groups: Sequence[str], bars: Sequence[Bars], *, label: str, y: Scale) -> str:
    """A group of bars per name, in the policies' order."""
    room = SIDE / len(groups)
    width = 0.8 * room / max(len(bars), 1)
    inner = []
    for place, group in enumerate(groups):
        inner.append(f'<g data-group="{escape(group)}">')
        for slot, each in enumerate(bars):
            value = each.values[place]
            if value is None:
                continue
            height = max(SIDE * y.at(value), 2.0)
            left = place * room + 0.1 * room + slot * width
            inner.append(
                f'<rect class="series f{each.style}" data-policy="{escape(each.policy)}" '
                f'data-v="{value:.6g}" x="{number(left)}" y="{number(SIDE - height)}" '
                f'width="{number(0.9 * width)}" height="{number(height)}"/>'
            )
        inner.append("</g>")
    names = "".join(
        f'<span class="tx group" style="left:{100 * (i + 0.5) / len(groups):.2f}%;'
        f'width:{100 / len(groups):.2f}%">{escape(group)}</span>'
        for i, group in enumerate(groups)
    )
    none = Scale(0.0, 1.0, "group", False, ())
    return frame(
        kind="bars",
        label=label,
        x=none,
        y=y,
        inner="".join(inner),
        height_px=280,
        over=f'<div aria-hidden="true">{names}</div>',
        x_title="job size in GPU s: GPUs asked for x time alone",
    )


def _stairs(line: Line, x: Scale, y: Scale) -> str:
    places: list[str] = []
    before = ""
    for value, height in line.points:
        at, level = number(SIDE * x.at(value)), number(SIDE * (1 - y.at(height)))
        if before and before != level:
            places.append(f"{at},{before}")
        if before != level:
            places.append(f"{at},{level}")
        before = level
    places.append(f"{number(SIDE * x.at(line.end))},{before}")
    return " ".join(places)


def _axis(scale: Scale) -> str:
    return f"{scale.low:.10g},{scale.high:.10g},{int(scale.log)},{scale.kind}"
