"""What a command tells while it works, beside what a program may read from standard output."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["say"]


def say(line: str) -> None:
    # Whoever does not listen any more, as a closed terminal, keeps nothing from being done.
    with contextlib.suppress(OSError):
        print(f"edl: {line}", file=sys.stderr, flush=True)
