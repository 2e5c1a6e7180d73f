"""A fault that lasts fills no disk with log lines."""

from __future__ import annotations

import errno
import logging
import os
import socket

import pytest

from edl.wire import lines
from edl.wire.door import Door
from edl.wire.lines import LINES, LINES_S, LimitedLines
from edl.wire.loop import Loop


class OutOfDescriptors(socket.socket):
    """A listener of a process that may open no more files."""

    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_after_the_limit_lines_are_counted_and_not_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(lines, "time", clock)
    limited = LimitedLines(logging.getLogger("edl.wire"), "wire.refused")
    for number in range(LINES + 5):
        limited.log(logging.WARNING, f"peer={number}")
    assert len(caplog.messages) == LINES
    clock.now += LINES_S
    limited.log(logging.WARNING, "peer=late")
    assert caplog.messages[LINES:] == ["wire.refused more=5, not listed", "wire.refused peer=late"]


def test_a_process_that_stays_out_of_descriptors_logs_a_few_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop(name="never started", on_error=None, on_tick=None, tick_s=1.0)
    pauses: list[float] = []
    loop.call_later = lambda delay_s, fn: pauses.append(delay_s)  # type: ignore[method-assign]
    door = Door(
        loop, lambda sock, name: sock.close(), is_full=lambda: False, make_room=lambda: None
    )
    with OutOfDescriptors() as listener:
        for _ in range(10 * LINES):
            door._on_knock(listener, 0)
    loop.dispose()
    assert len(pauses) == 10 * LINES
    assert len(caplog.messages) == LINES
    assert all("code=EMFILE" in message for message in caplog.messages)
