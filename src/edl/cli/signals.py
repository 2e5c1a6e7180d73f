"""Signals that ask a command to stop, heard as Ctrl-C is, so that it cleans up behind itself."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["Interrupted", "interruptible"]


class Interrupted(KeyboardInterrupt):
    """A signal that asks to stop as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextlib.contextmanager
def interruptible() -> Iterator[list[int]]:
    """SIGTERM, and a terminal that is closed, raise Interrupted meanwhile.

    Whoever was interrupted may have made a plain KeyboardInterrupt of it, with a message: what is
    yielded keeps the signals' numbers.
    """
    heard: list[int] = []

    def interrupt(number: int, frame: object) -> NoReturn:
        heard.append(number)
        raise Interrupted(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        # Under nohup it is not to hear of its terminal's end.
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
