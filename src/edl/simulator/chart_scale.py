"""Where a value lies on an axis, and which values the axis names.

Plots are stretched to the width of the page, so a place is a share of the axis and not a pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

__all__ = [
    "Scale",
    "Tick",
    "count_scale",
    "gpu_scale",
    "log_time_scale",
    "share_scale",
    "time_scale",
]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
UNITS = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (1.0, "s"))
STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(MINUTE * step for step in (1, 2, 5, 10, 15, 30)),
    *(HOUR * step for step in (1, 2, 3, 6, 12)),
    *(DAY * step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)
# Named on a logarithmic axis: units that people know, about a decade apart; and finer ones.
COARSE_S = (
    *(0.01, 0.1, 1, 10),
    *(MINUTE, 10 * MINUTE, HOUR),
    *(DAY, 10 * DAY, 100 * DAY, 1000 * DAY),
)
FINE_S = tuple(
    sorted(
        {step * part for step in (0.01, 0.1, 1) for part in (1, 2, 5)}
        | {10.0, 20.0, 30.0}
        | {MINUTE * step for step in (1, 2, 5, 10, 20, 30)}
        | {HOUR * step for step in (1, 2, 5, 10)}
        | {DAY * step * part for step in (1, 10, 100, 1000) for part in (1, 2, 5)}
    )
)
FEW = 3


@dataclass(frozen=True, slots=True)
class Tick:
    """`at` is a share of the axis. `main` ones are named also where there is little room."""

    at: float
    label: str
    main: bool


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`. `kind` tells the page's script how to say a value."""

    low: float
    high: float
    kind: str  # time, share or count
    log: bool
    ticks: tuple[Tick, ...]

    def at(self, value: float) -> float:
        """The share of the axis, from 0 to 1; what lies outside is put on its end."""
        if self.log:
            value = max(value, self.low)
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)


def share_scale() -> Scale:
    ticks = tuple(Tick(part / 4, f"{25 * part} %", part % 2 == 0) for part in range(5))
    return Scale(0.0, 1.0, "share", False, ticks)


def count_scale(high: float) -> Scale:
    """From 0, in whole steps, for numbers of things."""
    step = _round_step(max(high, 1.0) / 4)
    top = step * max(ceil(max(high, 1.0) / step - 1e-9), 1)
    ticks = [step * part for part in range(round(top / step) + 1)]
    return _linear(0.0, top, "count", [(value, f"{value:,.0f}") for value in ticks])


def gpu_scale(gpus: int) -> Scale:
    """From 0 to exactly so many, which is seldom a round number."""
    parts = next(parts for parts in (4, 2, 1) if gpus % parts == 0)
    named = [(gpus * part / parts, f"{gpus * part // parts:,}") for part in range(parts + 1)]
    return _linear(0.0, float(gpus), "count", named)


def time_scale(low: float, high: float, *, since: float = 0.0) -> Scale:
    """Named as times since `since`, of which a round number lie apart."""
    high = max(high, low + 1e-3)
    wide = STEPS_S[-1] * ceil((high - low) / STEPS_S[-1] / 8)
    step = next((step for step in STEPS_S if (high - low) / step <= 8), wide)
    first, last = ceil((low - since) / step - 1e-9), floor((high - since) / step + 1e-9)
    unit, name = next((unit, name) for unit, name in UNITS if step >= unit)
    named = [
        (since + step * part, "0" if not part else f"{step * part / unit:,g} {name}")
        for part in range(first, last + 1)
    ]
    return _linear(low, high, "time", named)


def log_time_scale(low: float, high: float) -> Scale:
    """From the named value below `low` to the one above `high`, and at least a little wide."""
    low = max(low, COARSE_S[0])
    high = max(high, low)
    begin = max((value for value in FINE_S if value <= low), default=COARSE_S[0])
    end = min((value for value in FINE_S if value >= high), default=high)
    if end <= begin:
        end = 2 * begin
    inside = [value for value in COARSE_S if begin <= value <= end]
    if len(inside) < FEW:
        inside = [value for value in FINE_S if begin <= value <= end]
    scale = Scale(begin, end, "time", True, ())
    ticks = tuple(
        Tick(scale.at(value), _unit_text(value), (len(inside) - place) % 2 == 1)
        for place, value in enumerate(inside)
    )
    return Scale(begin, end, "time", True, ticks)


def _linear(low: float, high: float, kind: str, named: list[tuple[float, str]]) -> Scale:
    scale = Scale(low, high, kind, False, ())
    ticks = tuple(
        Tick(scale.at(value), label, place % 2 == 0) for place, (value, label) in enumerate(named)
    )
    return Scale(low, high, kind, False, ticks)


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is no smaller."""
    power = 10.0 ** floor(log10(max(least, 1.0)))
    return next(part * power for part in (1, 2, 5, 10) if part * power >= least - 1e-9)


def _unit_text(value: float) -> str:
    unit, name = next(((unit, name) for unit, name in UNITS if value >= unit), (1.0, "s"))
    return f"{value / unit:g} {name}"
