"""What every launcher is to the rest: how a job is described, and the port of a backend.

A backend starts, signals and watches worker processes; local ones today. Whatever decides about
the job as a whole is the same for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Protocol

from edl.config import DIVERGENCE_POLICIES, STRAGGLER_POLICIES
from edl.errors import UsageError
from edl.types import Gpu, WorkerId

__all__ = [
    "MOST_AT_ONCE",
    "Backend",
    "ColdStart",
    "Ended",
    "JobSpec",
    "WorkerPlan",
    "checkpoint_interval",
]

# Rather a slip of the keyboard than a wish; so many processes would end the machine.
MOST_AT_ONCE = 1024
# A fault of the machine is over after one or two; what is not would not be after ten either.
RESTARTS = 3
# Every interface in other words than IPv4's and IPv6's own.
WORDS_FOR_ALL = frozenset({"", "*", "0"})
INTERVAL = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smh]?)")
UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What `edl run` was asked for. 0 workers: one per GPU, or two without GPUs."""

    script: str
    args: tuple[str, ...] = ()
    workers: int = 0
    name: str | None = None
    min_workers: int = 1
    max_workers: int = 0
    slots: int = 0
    gpus: str | None = None
    oversubscribe: bool = False
    share_gpus: bool = False  # use GPUs that other jobs hold
    port: int = 0
    checkpoint: str = ""  # where checkpoints go; empty: nowhere
    checkpoint_every: str = ""  # see `checkpoint_interval`; empty: as the environment says
    resume: bool = False  # from the last one there
    store: str = ""  # URL of a store that others serve; empty: the launcher's own
    host: str = "127.0.0.1"  # the address that launcher and workers listen on
    grace_s: float = 0.0  # between SIGTERM to a worker and its forced exit; 0: unlimited
    keep: int = 0  # lost workers are replaced while there are fewer; 0: never
    stragglers: str = ""  # what is done about slow workers; empty: as the environment says
    on_divergence: str = ""  # what is done when replicas differ; empty: as the environment says
    digest_steps: int | None = None  # all state is compared within so many steps; None: likewise
    max_restarts: int | None = None  # when nobody survived; None: see `restarts`
    warm: int = 0  # workers that are kept forked off a template, waiting; 0: no template
    preload: tuple[str, ...] = ()  # modules that the template imports, besides the framework
    audit: bool = True  # keep a log of the samples that were used
    env: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Whether the job can be started as described; UsageError says why not."""
        low, high, count = self.min_workers, self.max_workers, self.workers
        self._check_texts()
        if _listens_everywhere(self.host):
            raise UsageError(
                f"--host {self.host or repr('')} cannot be dialled by workers and clients, which "
                "are told this address; give the one address of this machine that the other "
                "machines reach, such as 10.0.0.7 (`ip -brief address` lists them)"
            )
        if low < 1:
            raise UsageError(f"--min {low} is too small; a job has at least 1 worker")
        if high < 0 or count < 0 or self.slots < 0:
            raise UsageError("-n, --max and --slots cannot be negative")
        if high and high < low:
            raise UsageError(f"--max {high} is under --min {low}; raise it, or lower --min")
        if count and count < low:
            raise UsageError(f"-n {count} is under --min {low}; start at least {low}")
        if count and high and count > high:
            raise UsageError(f"-n {count} is over --max {high}; start at most {high}")
        if max(count, low) > MOST_AT_ONCE:
            raise UsageError(
                f"{max(count, low)} workers cannot be started; give at most {MOST_AT_ONCE}"
            )
        if self.resume and not self.checkpoint:
            raise UsageError("--resume needs --checkpoint URL: where to find what to go on from")
        if self.checkpoint_every:
            checkpoint_interval(self.checkpoint_every)
            if not self.checkpoint:
                raise UsageError(
                    f"--checkpoint-every {self.checkpoint_every} needs --checkpoint URL: where "
                    "they are to be written"
                )
        if self.keep < 0 or (high and self.keep > high):
            raise UsageError(f"--keep {self.keep} is not from 1 to --max {high or 'any'}")
        if self.stragglers and self.stragglers not in STRAGGLER_POLICIES:
            known = ", ".join(STRAGGLER_POLICIES)
            raise UsageError(f"--stragglers {self.stragglers} is no policy; give one of {known}")
        if self.on_divergence and self.on_divergence not in DIVERGENCE_POLICIES:
            known = ", ".join(DIVERGENCE_POLICIES)
            raise UsageError(
                f"--on-divergence {self.on_divergence} is no policy; give one of {known}"
            )
        if self.digest_steps is not None and self.digest_steps < 0:
            raise UsageError(
                f"--digest-steps {self.digest_steps} is negative; give 0 to compare nothing"
            )
        if self.max_restarts is not None and self.max_restarts < 0:
            raise UsageError(f"--max-restarts {self.max_restarts} is negative; give 0 for never")
        if not 0 <= self.warm <= MOST_AT_ONCE:
            raise UsageError(f"--warm {self.warm} is not from 0 (never) to {MOST_AT_ONCE}")
        if self.preload and not self.warm:
            raise UsageError(
                f"--preload {self.preload[0]} needs --warm N: how many workers are to wait with it"
            )
        if not 0 <= self.port < 65536:
            raise UsageError(f"--port {self.port} is no port; give 1 to 65535, or 0 for any")

    def _check_texts(self) -> None:
        """The system takes no NUL in a program's arguments and environment."""
        for text in (self.script, *self.args, *self.env, *self.env.values()):
            if "\0" in text:
                raise UsageError(
                    f"{text!r} has a NUL character, which no script, argument or environment "
                    "variable may have; remove it"
                )
        for name in self.env:
            if not name or "=" in name:
                raise UsageError(
                    f"env has a variable {name!r}; its name must not be empty and not have '='"
                )

    @property
    def restarts(self) -> int:
        """How often in a row it is started again: unless told, only with checkpoints."""
        if self.max_restarts is None:
            return RESTARTS if self.checkpoint else 0
        return self.max_restarts

    def founders(self, gpus: int) -> int:
        """How many workers the job starts with."""
        usual = self.keep or gpus or min(2, self.slots or 2)
        count = max(self.workers or usual, self.min_workers)
        return min(count, self.max_workers) if self.max_workers else count


def _listens_everywhere(host: str) -> bool:
    """Whether it means every interface: an address to listen on, but none to dial."""
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in WORDS_FOR_ALL


def checkpoint_interval(text: str) -> tuple[int, float]:
    """Steps and seconds between checkpoints, 0 being never, from `500`, `10m` or `500,10m`."""
    steps, seconds = 0, 0.0
    for part in text.split(","):
        match = INTERVAL.fullmatch(part.strip())
        number = float(match[1]) if match else 0.0
        unit = match[2] if match else ""
        if unit and not seconds:
            seconds = number * UNIT_S[unit]
        elif not unit and not steps and number.is_integer():
            steps = int(number)
        else:
            number = 0.0
        if not 0 < number < 1e9:
            raise UsageError(
                f"--checkpoint-every {text}: give steps (500), a time (90s, 10m or 1h), or both "
                "(500,10m): whichever comes first"
            )
    return steps, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """One worker to be started."""

    worker: WorkerId
    slot: Gpu
    request_id: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process ended; a negative status is the signal that ended it."""

    worker: WorkerId
    status: int
    at: float  # wall time: when it failed if it left a note, else when it was noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdStart:
    """A worker that was started from nothing, though it should have been forked off a template."""

    worker: WorkerId
    why: str


class Backend(Protocol):
    """Starts, signals and watches processes. Called from one thread only."""

    def start(self, plan: WorkerPlan) -> int:
        """Start the process; returns its pid."""

    def ended(self) -> list[Ended]:
        """Those that ended since the last call, the earliest failure first."""

    def cold_starts(self) -> list[ColdStart]:
        """Those since the last call."""

    def alive(self) -> tuple[WorkerId, ...]: ...

    def terminate(self, worker: WorkerId) -> None:
        """Ask it to go (SIGTERM). Harmless when it has gone."""

    def kill(self, worker: WorkerId) -> None:
        """End it and all that it started. Harmless when it has gone."""

    def close(self) -> None:
        """No more will be started; those that run go on."""
