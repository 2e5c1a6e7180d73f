"""Signals that ask a command to stop, heard as Ctrl-C is, so that it cleans up behind itself."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import NoReturn

__all__ = ["Interrupted", "interruptible", "later"]

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


@contextlib.contextmanager
def later() -> Iterator[None]:
    """What a signal would interrupt is done first; then the signal is heard as ever.

    A mask would not do: with several threads the system gives a signal to another one, and Python
    hears it on this one all the same.
    """
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPPING}
    ours = threading.current_thread() is threading.main_thread()
    heard = {number: handler for number, handler in before.items() if ours and callable(handler)}

    def note(number: int, frame: object) -> None:
        noted.append(number)

    for number in heard:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])
