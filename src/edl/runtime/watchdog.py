"""A process beside each worker that sends heartbeats while the worker's agent cannot.

The agent's threads need the GIL. While a script holds it for long (one C call that parses many
gigabytes, say), the agent answers no pings, though the worker is well. The watchdog is a process of
its own. The agent sends it a sign of life every moment; when these stop, the watchdog looks at the
worker's process. As long as that exists and is not stopped (SIGSTOP, a debugger), the watchdog
sends heartbeats in its place, and renews the lease of a worker that leads (`heartbeats.py`). After
`unresponsive_s` it stops doing so, for the script may be deadlocked.

Owns: the pipe between both. Holds: a worker whose agent runs is never spoken for; the watchdog ends
with its worker; a worker whose watchdog cannot be started, or has died, trains on without it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from edl.config import Settings
from edl.runtime.heartbeats import Charge, Heartbeats
from edl.runtime.lifeline import die_with_parent
from edl.types import Address
from edl.wire.tls import Tls

__all__ = ["MISSED_BEATS", "Charge", "Watchdog", "is_running"]

_log = logging.getLogger("edl.watchdog")

# How many signs of life must be missing before the watchdog looks at the process.
MISSED_BEATS = 2.5
_END_S = 1.0
# A line in the log is worth it after this share of the silence: imports hold the GIL for a second.
_NOTICE_SHARE = 0.4
# What /proc says of a process that does not run: stopped, traced, dead.
_NOT_RUNNING = "TtZXx"


def is_running(pid: int) -> bool:
    """Whether that process is there and neither stopped nor traced."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The name in parentheses may hold anything.
    return text.rpartition(")")[2].split()[0] not in _NOT_RUNNING


class Watchdog:
    """The worker's end. Called from the agent's thread, but for `stop`."""

    def __init__(self, charge: Charge) -> None:
        self._charge = charge
        self._process: subprocess.Popen[bytes] | None = None
        self._next = 0.0
        self._told: tuple[tuple[Address, ...], bool] | None = None
        self._unsent = b""  # a pipe may take a part of a line
        # `stop` comes from another thread: nothing may be written to a descriptor that it closes.
        self._writing = threading.Lock()

    @staticmethod
    def wanted(settings: Settings) -> bool:
        """Whether there can and shall be one. Without /proc nothing can be told about a process."""
        return settings.unresponsive_s > 0 and Path("/proc/self/stat").exists()

    def start(self) -> None:
        """From the thread that lives longest: the kernel ends the watchdog with it."""
        package = str(Path(__file__).parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edl.runtime.watchdog"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        except OSError as error:
            _log.warning("watchdog.absent why=%r", str(error))
            return
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        self._write(json.dumps(asdict(self._charge)))

    def beat(self, now: float, watchers: Callable[[], tuple[Address, ...]], *, leads: bool) -> None:
        """The agent runs; and this is where its heartbeats are awaited."""
        if self._process is None or now < self._next:
            return
        self._next = now + self._charge.beat_s
        news = (watchers(), leads)
        if news == self._told:
            self._write("{}")
            return
        # A line that has to wait for the rest of another one is sent next time.
        self._told = None if self._unsent else news
        self._write(json.dumps({"to": [str(each) for each in news[0]], "leads": leads}))

    def stop(self) -> None:
        with self._writing:
            process, self._process = self._process, None
            if process is None or process.stdin is None:
                return
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _write(self, line: str) -> None:
        with self._writing:
            process = self._process
            if process is None or process.stdin is None:
                return
            self._unsent = self._unsent or f"{line}\n".encode()
            try:
                self._unsent = self._unsent[os.write(process.stdin.fileno(), self._unsent) :]
            except BlockingIOError:
                # The watchdog is stopped, or slow: send everything that it must know again.
                self._told = None
            except OSError as error:
                _log.warning("watchdog.gone why=%r", str(error))
                self._process = None


class _Guard:
    """The watchdog's own side: one thread, which waits for the pipe and looks now and then."""

    def __init__(self, charge: Charge, environment: Mapping[str, str]) -> None:
        self._charge = charge
        self._tls = Tls.from_environment(environment)
        self._heard_at = time.monotonic()
        self._to: tuple[Address, ...] = ()
        self._leads = False
        self._heartbeats: Heartbeats | None = None
        self._reported = False

    def run(self, pipe: TextIO) -> None:
        """Until the worker closes the pipe."""
        rest = ""
        patience_s = MISSED_BEATS * self._charge.beat_s
        while True:
            left_s = self._heard_at + patience_s - time.monotonic()
            wait_s = left_s if left_s > 0 else self._charge.beat_s
            ready, _, _ = select.select([pipe], [], [], wait_s)
            if ready:
                text = os.read(pipe.fileno(), 65536).decode()
                if not text:
                    return
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    self._on_beat(json.loads(line))
            elif time.monotonic() - self._heard_at >= patience_s:
                self._on_quiet(time.monotonic() - self._heard_at)

    def _on_beat(self, news: dict[str, object]) -> None:
        self._heard_at = time.monotonic()
        if "to" in news:
            addresses = news["to"]
            assert isinstance(addresses, list)
            self._to = tuple(Address.parse(str(each)) for each in addresses)
            self._leads = bool(news["leads"])
        self._fall_silent()
        self._reported = False

    def _on_quiet(self, quiet_s: float) -> None:
        if quiet_s > self._charge.unresponsive_s or not is_running(self._charge.pid):
            self._fall_silent()
            return
        if not self._reported and quiet_s > self._charge.silence_s * _NOTICE_SHARE:
            self._reported = True
            _log.warning(
                "the agent of %s has not run for %.1f s; the process is running, so the script may "
                "hold the GIL: sending heartbeats for it",
                self._charge.worker,
                quiet_s,
            )
        if self._heartbeats is not None:
            return
        self._heartbeats = Heartbeats(self._charge, to=self._to, leads=self._leads, tls=self._tls)
        self._heartbeats.begin()

    def _fall_silent(self) -> None:
        heartbeats, self._heartbeats = self._heartbeats, None
        if heartbeats is not None:
            heartbeats.end()


def main() -> None:
    """Reads its charge from standard input, then listens there."""
    die_with_parent(os.getppid())
    # Ctrl-C at a terminal is for the worker; the end of the pipe is what ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(format="edl watchdog: %(message)s", level=logging.WARNING)
    first = b""
    while not first.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return
        first += byte
    _Guard(Charge(**json.loads(first)), os.environ).run(sys.stdin)


if __name__ == "__main__":
    main()
