"""Which colour a policy has: the same one in every chart and in every report.

Hues follow Okabe and Ito's, which people with any kind of colour vision tell apart, darkened where
they would vanish on white. Ten of them are too many for hue alone, so half are dashed as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["HELD", "STYLES", "Held", "Style", "held_class", "styles_of"]


@dataclass(frozen=True, slots=True)
class Style:
    """`dash` as SVG writes it; empty is a whole line."""

    light: str
    dark: str
    dash: str


STYLES = (
    Style("#0072b2", "#4aa8e8", ""),
    Style("#d55e00", "#ff8a3d", ""),
    Style("#008a64", "#22c493", ""),
    Style("#a8437f", "#e58bc0", ""),
    Style("#a87900", "#f0c04a", ""),
    Style("#5f6368", "#b4b9c0", "7 4"),
    Style("#2f93c8", "#8fd0f5", "7 4"),
    Style("#3b2f8f", "#a99bff", "2 3"),
    Style("#8a5a2b", "#d9a87a", "9 3 2 3"),
    Style("#b0254f", "#ff7f9d", "2 3"),
)
OWN = {
    "tiresias": 0,
    "elastic-tiresias": 1,
    "wf-las": 2,
    "wf-srpt": 3,
    "optimus": 4,
    "fifo": 5,
    "srtf": 6,
    "tiresias-gittins": 7,
    "static": 8,
    "uniform": 9,
}


@dataclass(frozen=True, slots=True)
class Held:
    """How a job's GPUs compare with what its user asked for."""

    name: str
    label: str
    light: str
    dark: str


# Orange below and blue above, grey between: a scale that no colour vision turns around.
HELD = (
    Held("h0", "half of what was asked, or less", "#b35806", "#e08214"),
    Held("h1", "less than asked", "#f1a340", "#9c5a12"),
    Held("h2", "as asked", "#c9ccd1", "#5a606a"),
    Held("h3", "more than asked", "#7fb3dd", "#2b5f94"),
    Held("h4", "twice what was asked, or more", "#1f5fa0", "#6db1f0"),
)


def styles_of(policies: Iterable[str]) -> dict[str, int]:
    """An index into STYLES for each; one that is not known here gets what nobody has."""
    names = list(dict.fromkeys(policies))
    taken = {OWN[name] for name in names if name in OWN}
    free = [style for style in range(len(STYLES)) if style not in taken]
    strangers = [name for name in names if name not in OWN]
    given = {name: (free or [0])[i % len(free or [0])] for i, name in enumerate(strangers)}
    return {name: OWN.get(name, given.get(name, 0)) for name in names}


def held_class(held: int, asked: int) -> Held:
    if 2 * held <= asked:
        return HELD[0]
    if held < asked:
        return HELD[1]
    if held == asked:
        return HELD[2]
    return HELD[4] if held >= 2 * asked else HELD[3]
