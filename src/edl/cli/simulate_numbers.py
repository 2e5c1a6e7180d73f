"""Numbers on the command line of `edl simulate`: what is none is told with what was expected."""

from __future__ import annotations

import argparse
from math import isfinite

__all__ = ["factor", "load", "price", "round_length", "window"]

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def price(text: str) -> float:
    value = number_or_none(text)
    if value is None or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 0 or more")
    return value


def round_length(text: str) -> float:
    value = number_or_none(text)
    if value is None or not (value == 0 or value >= 1):
        # In shorter ones the cluster's months would be billions of rounds.
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds, 1 or more, nor 0")
    return value


def factor(text: str) -> float:
    value = number_or_none(text)
    if value is None or value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or more")
    return value


def load(text: str) -> float:
    value = number_or_none(text)
    if value is None or value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, as 0.9")
    return value


def window(text: str) -> tuple[float, float]:
    moments = [moment(part.strip()) for part in text.split(",")]
    if len(moments) != 2 or None in moments:
        raise argparse.ArgumentTypeError(f"{text!r} is not FROM,TO, as 600,1200 or 10h,12h")
    begin, end = (each or 0.0 for each in moments)
    if not 0 <= begin < end:
        raise argparse.ArgumentTypeError(f"{text!r} does not end after it begins")
    return begin, end


def moment(text: str) -> float | None:
    """Seconds, from 600, 600s, 10m, 1.5h or 2d."""
    unit = UNITS.get(text[-1:])
    value = number_or_none(text[:-1] if unit else text)
    return None if value is None else value * (unit or 1.0)


def number_or_none(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None
