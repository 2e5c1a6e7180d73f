"""Numbers and times on the command line, and how it is told that a text is none."""

from __future__ import annotations

import argparse

__all__ = ["count", "duration", "positive", "seconds"]

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def duration(text: str) -> float:
    """Seconds, from 240, 240s, 4m, 1h, 1.5h or 7d."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        value = float(number) * UNITS[unit]
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0: 240s, 4m, 1h or 7d")
    return value
