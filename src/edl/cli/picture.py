"""The picture of a profile: throughput beside the ideal, and GPU efficiency beneath."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from edl.client import Profile
from edl.errors import UsageError

__all__ = ["check_kind", "draw"]

MEASURED, USED, IDEAL = "#1f6fb4", "#d9741a", "#8a8a8a"


def check_kind(path: Path) -> None:
    """UsageError where there is no way to draw such a file."""
    kinds = _figure_class()().canvas.get_supported_filetypes()
    kind = path.suffix.removeprefix(".").lower()
    # matplotlib takes a name without an ending for png.
    if kind and kind not in kinds:
        raise UsageError(
            f"--plot {path} is of no kind that can be drawn; known: {', '.join(sorted(kinds))}"
        )


def _figure_class() -> Any:
    """UsageError where matplotlib is missing."""
    try:
        return importlib.import_module("matplotlib.figure").Figure
    except ImportError as error:
        raise UsageError(
            f"--plot needs matplotlib ({error}); install it with "
            "`pip install 'edl-elastic[plot]'`, or write --csv FILE"
        ) from error


def draw(path: Path, found: Profile) -> None:
    """The ideal is p workers that are each as fast as one of the best p; efficiency is the share
    of it that is reached."""
    figure = _figure_class()(figsize=(6.4, 5.6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _throughput(above, found)
    _efficiency(below, found)
    above.set_title(f"{found.job}: {_what(found)}")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    workers = [row.workers for row in found.rows]
    # One tick for each number, or for some of many; a lone one in the middle.
    every = -(-(max(workers) - min(workers) + 1) // 16)
    below.set_xticks(range(min(workers), max(workers) + 1, every))
    below.set_xlim(min(workers) - 0.4, max(workers) + 0.4)
    below.set_xlabel("workers (p)")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"--plot {path} cannot be written: {error}") from error


def _what(found: Profile) -> str:
    steps = min(row.steps for row in found.rows)
    return f"measured over {steps} steps at each number of workers"


def _throughput(axes: Any, found: Profile) -> None:
    rows = found.rows[::-1]
    workers = [row.workers for row in rows]
    best = next((row for row in rows if row.workers == found.best), None)
    if best is not None:
        axes.plot(
            workers,
            [p * best.per_worker for p in workers],
            "--",
            color=IDEAL,
            label=f"ideal: each as fast as with {best.workers}",
        )
    axes.plot(
        workers, [row.throughput for row in rows], "o-", color=MEASURED, label="measured", lw=2
    )
    # Beneath, for the ideal is above.
    values = [(row.workers, row.throughput, _figure(row.throughput)) for row in rows]
    _write_values(axes, values, above=-14)
    axes.set_ylabel("throughput (samples/s)")
    axes.yaxis.set_major_formatter(lambda value, _: _figure(value))
    axes.set_ylim(bottom=0)
    axes.margins(y=0.15)
    axes.legend(loc="upper left", frameon=False)


def _efficiency(axes: Any, found: Profile) -> None:
    shares = [
        (row.workers, row.efficiency) for row in found.rows[::-1] if row.efficiency is not None
    ]
    axes.set_ylabel("GPU efficiency t(p)/t(p*)")
    axes.set_ylim(0, 1.25)
    if not shares:
        axes.text(0.5, 0.5, "nothing to compare with", ha="center", transform=axes.transAxes)
        return
    axes.axhline(1.0, linestyle="--", color=IDEAL)
    axes.plot(*zip(*shares, strict=True), "s-", color=USED, lw=2)
    _write_values(axes, [(p, share, f"{share:.2f}") for p, share in shares], above=7)


def _write_values(axes: Any, values: list[tuple[int, float, str]], *, above: int) -> None:
    if len(values) > 16:
        return  # they would cover each other
    for p, value, text in values:
        axes.annotate(
            text, (p, value), xytext=(0, above), textcoords="offset points", ha="center", size=9
        )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
