"""Simulations side by side: a process per policy, at most as many as there are cores.

Holds: when `run_policies` is left, however that happens, no process of it is left; one that dies
is told with its policy. A child never hears Ctrl-C itself: its parent does, and kills it. A child
whose parent is gone ends at its next report of progress.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from edl.cli.say import say
from edl.cli.signals import later
from edl.errors import EdlError, UsageError
from edl.simulator.comparison import time_text
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.setting import Setting

__all__ = ["Simulate", "Watch", "run_policies", "watch"]

EVERY_S = 0.2  # between two reports of a child
LINE_EVERY_S = 10.0  # between two lines where nobody sees bars


class Simulate(Protocol):
    def __call__(
        self,
        trace: Trace,
        policy: str,
        setting: Setting,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> Outcome: ...


class Watch(AbstractContextManager["Watch"]):
    """Told how far each policy is. As it is, nobody looks."""

    def at(self, policy: str, done: int, jobs: int) -> None:
        """`done` of `jobs` are finished."""

    def over(self, policy: str, outcome: Outcome) -> None:
        """The policy's simulation is complete."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """Nothing stays on the terminal."""


class _Bars(Watch):
    """A bar per policy on the terminal, gone when all is done."""

    def __init__(self, policies: Sequence[str], jobs: int, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            # One that has not begun yet lies still.
            BarColumn(pulse_style="bar.back"),
            MofNCompleteColumn(),
            TextColumn("jobs"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {
            policy: self._progress.add_task(policy, start=False, total=jobs) for policy in policies
        }

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def at(self, policy: str, done: int, jobs: int) -> None:
        self._progress.start_task(self._tasks[policy])
        self._progress.update(self._tasks[policy], completed=done, total=jobs)

    def over(self, policy: str, outcome: Outcome) -> None:
        jobs = len(outcome.jobs)
        self._progress.update(self._tasks[policy], completed=jobs, total=jobs)


class _Lines(Watch):
    """A line now and then, for a log."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def at(self, policy: str, done: int, jobs: int) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            say(f"{policy}: {done:,} of {jobs:,} jobs")

    def over(self, policy: str, outcome: Outcome) -> None:
        say(f"{policy}: {len(outcome.jobs):,} jobs, simulated in {time_text(outcome.wall_s)}")


def watch(policies: Sequence[str], jobs: int) -> Watch:
    console = Console(stderr=True)
    return _Bars(policies, jobs, console) if console.is_terminal else _Lines()


@dataclass(slots=True)
class _Child:
    policy: str
    process: SpawnProcess
    pipe: Connection


def run_policies(
    simulate: Simulate,
    trace: Trace,
    policies: Sequence[str],
    setting: Setting,
    *,
    watch: Watch,
    processes: int | None = None,
) -> list[Outcome]:
    """An outcome per policy, in their order. One policy needs no process of its own."""
    if len(policies) == 1:
        (policy,) = policies
        progress = _seldom(partial(watch.at, policy))
        outcome = simulate(trace, policy, setting, progress=progress)
        watch.over(policy, outcome)
        return [outcome]
    waiting = list(policies)
    running: list[_Child] = []
    found: dict[str, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < (processes or _cores()):
                _start(running, simulate, trace, waiting.pop(0), setting)
            ready = wait([child.pipe for child in running])
            for child in [child for child in running if child.pipe in ready]:
                outcome_or_none = _hear(child, watch)
                if outcome_or_none is not None:
                    found[child.policy] = outcome_or_none
                    running.remove(child)
                    child.process.join()
                    child.pipe.close()
    finally:
        for child in running:
            child.process.kill()
        for child in running:
            child.process.join()
            child.pipe.close()
    return [found[policy] for policy in policies]


def _start(
    running: list[_Child], simulate: Simulate, trace: Trace, policy: str, setting: Setting
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs,), name=policy, daemon=True)
    # It is started with the first child otherwise, and lifts the mask that is set here.
    resource_tracker.ensure_running()
    # Not interrupted: a child that was told half of how to begin would complain of it, and one
    # that is not in the list yet would not be killed.
    with later():
        # A child keeps the mask that it is born with: Ctrl-C is never for it, also not while it is
        # still importing, where it would tell of it at length.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process.start()
            running.append(_Child(policy, process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            # Ours of it must go, else the pipe outlives the child.
            theirs.close()
    try:
        # Apart from the start, for this waits until the child reads it.
        ours.send((simulate, trace, policy, setting))
    except OSError as error:
        process.join()
        raise EdlError(_died(running[-1])) from error


def _hear(child: _Child, watch: Watch) -> Outcome | None:
    """What the child says: how far it is (None), its outcome, or that there will be none."""
    try:
        what, told = child.pipe.recv()
    except (EOFError, OSError) as error:
        child.process.join()
        raise EdlError(_died(child)) from error
    if what == "at":
        watch.at(child.policy, *told)
        return None
    if what == "refused":
        raise UsageError(f"policy {child.policy}: {told}")
    if what == "failed":
        raise EdlError(f"the simulation of policy {child.policy} failed:\n{told}")
    assert isinstance(told, Outcome)
    watch.over(child.policy, told)
    return told


def _died(child: _Child) -> str:
    code = child.process.exitcode or 0
    how = f"exit status {code}"
    if code < 0:
        how = f"killed by {signal.Signals(-code).name}"
    if code == -signal.SIGKILL:
        how += ", perhaps for want of memory: try fewer policies at a time"
    return f"the simulation of policy {child.policy} died ({how}); nothing was written"


def _work(pipe: Connection) -> None:
    """In the child."""

    def report(done: int, jobs: int) -> None:
        try:
            pipe.send(("at", (done, jobs)))
        except OSError:
            # Nobody listens any more, so there is nothing left to do.
            os._exit(1)

    try:
        simulate, trace, policy, setting = pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
    try:
        outcome = simulate(trace, policy, setting, progress=_seldom(report))
    except UsageError as error:
        pipe.send(("refused", str(error)))
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
    else:
        pipe.send(("done", outcome))


def _seldom(report: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """At most one call in EVERY_S gets through, for a simulation reports thousands a second."""
    last = -EVERY_S

    def throttled(done: int, jobs: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EVERY_S:
            last = now
            report(done, jobs)

    return throttled


def _cores() -> int:
    return len(os.sched_getaffinity(0))
