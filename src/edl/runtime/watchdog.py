"""A process beside each worker that sends heartbeats while the worker's agent cannot.

The agent's threads need the GIL. While a script holds it for long (one C call that parses many
gigabytes, say), the agent answers no pings, though the worker is well. The watchdog is a process of
its own. The agent sends it a sign of life every moment; when these stop, the watchdog looks at the
worker's process. As long as that exists and is not stopped (SIGSTOP, a debugger), the watchdog
sends heartbeats in its place, and renews the lease of a worker that leads. After `unresponsive_s`
it stops doing so, for the script may be deadlocked.

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
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from edl.config import Settings
from edl.errors import EdlError
from edl.protocol.messages import MESSAGES, Alive
from edl.runtime.lifeline import die_with_parent
from edl.store.base import Store, open_store
from edl.types import Address, WorkerId
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.tls import Tls

__all__ = ["Charge", "Watchdog", "is_running"]

_log = logging.getLogger("edl.watchdog")

# Signs of life that the agent sends in the time of a lease.
_BEATS_PER_LEASE = 6
# How many must be missing before the watchdog looks at the process.
_MISSED_BEATS = 2.5
_DIAL_S = 1.0
_END_S = 1.0
# What /proc says of a process that does not run: stopped, traced, dead.
_NOT_RUNNING = "TtZXx"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The worker that a watchdog looks after."""

    job: str
    worker: str
    pid: int
    secret: str  # hexadecimal
    store: str
    lease: str
    lease_s: float
    silence_s: float
    unresponsive_s: float

    @property
    def beat_s(self) -> float:
        """Between two signs of life, so that a lease can still be renewed when some are missing."""
        return min(self.lease_s / _BEATS_PER_LEASE, self.silence_s / 16)


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
        self._codec = Codec(MESSAGES)
        self._heard_at = time.monotonic()
        self._to: tuple[Address, ...] = ()
        self._leads = False
        self._open: dict[Address, Channel] = {}
        self._store: Store | None = None
        self._speaking = False

    def run(self, pipe: TextIO) -> None:
        """Until the worker closes the pipe."""
        rest = ""
        while True:
            ready, _, _ = select.select([pipe], [], [], self._charge.beat_s)
            if ready:
                text = os.read(pipe.fileno(), 65536).decode()
                if not text:
                    return
                *lines, rest = (rest + text).split("\n")
                for line in lines:
                    self._on_beat(json.loads(line))
            elif time.monotonic() - self._heard_at > _MISSED_BEATS * self._charge.beat_s:
                self._on_quiet(time.monotonic() - self._heard_at)

    def _on_beat(self, news: dict[str, object]) -> None:
        self._heard_at = time.monotonic()
        if "to" in news:
            addresses = news["to"]
            assert isinstance(addresses, list)
            self._to = tuple(Address.parse(str(each)) for each in addresses)
            self._leads = bool(news["leads"])
        if self._speaking:
            self._speaking = False
            for channel in self._open.values():
                channel.close()
            self._open.clear()

    def _on_quiet(self, quiet_s: float) -> None:
        if quiet_s > self._charge.unresponsive_s or not is_running(self._charge.pid):
            return
        if not self._speaking:
            self._speaking = True
            _log.warning(
                "the agent of %s has not run for %.1f s; the process is running, so the script may "
                "hold the GIL: sending heartbeats for it",
                self._charge.worker,
                quiet_s,
            )
        if self._leads:
            self._renew()
        for address in self._to:
            self._vouch(address)

    def _renew(self) -> None:
        here = self._charge
        try:
            if self._store is None:
                secret = bytes.fromhex(here.secret)
                self._store = open_store(here.store, job=here.job, secret=secret, tls=self._tls)
            self._store.keep_alive(here.lease, here.lease_s)
        except EdlError as error:
            _log.warning("the lease of %s was not renewed: %s", here.worker, error)

    def _vouch(self, address: Address) -> None:
        here = self._charge
        try:
            channel = self._open.get(address)
            if channel is None:
                channel = self._open[address] = Channel(
                    address,
                    job=here.job,
                    secret=bytes.fromhex(here.secret),
                    codec=self._codec,
                    timeout_s=_DIAL_S,
                    tls=self._tls,
                )
            channel.send(Alive(worker=WorkerId(here.worker), generation=0))
        except EdlError as error:
            _log.warning("%s cannot be told that %s runs: %s", address, here.worker, error)
            lost = self._open.pop(address, None)
            if lost is not None:
                lost.close()


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
