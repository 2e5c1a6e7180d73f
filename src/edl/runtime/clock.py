"""The only reader of time in a worker. Everything else gets it as an argument."""

from __future__ import annotations

import time

__all__ = ["now", "wall"]


def now() -> float:
    """Seconds on a clock that never jumps; its zero means nothing."""
    return time.monotonic()


def wall() -> float:
    """Seconds since 1970, for comparing with another process of this machine."""
    return time.time()
