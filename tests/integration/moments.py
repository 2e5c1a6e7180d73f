"""Moments of a test: the one in which many are killed, and those in which the machine stood still.

Between any two lines of a test a busy machine may let seconds pass.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

__all__ = ["kill_together", "running_clock"]

NAP_S = 0.01
# Whoever is waited for is held up as this process is, and may be so at several points in turn.
HELD_UP = 3.0


def kill_together(pids: Iterable[int]) -> None:
    """Nobody can go on without the others: the last ones are frozen when the first one dies."""
    doomed = list(pids)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in doomed:
            os.kill(pid, number)


@contextmanager
def running_clock() -> Iterator[Callable[[], float]]:
    """Tells the seconds since now, less those in which this machine kept its processes waiting."""
    began = time.monotonic()
    over = threading.Event()
    lost_s = 0.0

    def watch() -> None:
        nonlocal lost_s
        while not over.is_set():
            asleep = time.monotonic()
            over.wait(NAP_S)
            lost_s += max(0.0, time.monotonic() - asleep - 2 * NAP_S)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: time.monotonic() - began - HELD_UP * lost_s
    finally:
        over.set()
        watcher.join()
