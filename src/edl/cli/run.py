"""`edl run`: start a job and show it until it is over."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import sys
import time
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edl.cli.output import Output
from edl.cli.table import brief_event_line, live_view, notable, result_line, told_failures
from edl.errors import UsageError
from edl.launch import detached
from edl.launch.base import JobSpec
from edl.launch.jobs import Result
from edl.launch.local import LocalLauncher
from edl.protocol.messages import Status
from edl.redaction import redact_url
from edl.types import workers_said

__all__ = ["give_up_stdout", "run"]

REFRESH_S = 0.1


class Screen(Protocol):
    """Where a running job is shown."""

    def line(self, text: str) -> None: ...

    def refresh(self, status: Status | None) -> None: ...

    def close(self) -> None: ...


class PlainScreen:
    """Lines only, for pipes and files."""

    def __init__(self) -> None:
        self._broken = False

    def line(self, text: str) -> None:
        if self._broken:
            return
        try:
            print(text, flush=True)
        except BrokenPipeError:
            # Whoever read us is gone (`edl run ... | head`); the job is not theirs to end.
            self._broken = True
            give_up_stdout()

    def refresh(self, status: Status | None) -> None:
        return

    def close(self) -> None:
        return


class LiveScreen:
    """Lines, and beneath them a table that follows the job."""

    def __init__(self, console: Console, job: str, workers: int) -> None:
        self._console = console
        self._job = job
        self._workers = workers
        self._began = time.monotonic()
        self._drawn: tuple[Status | None, int] | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def line(self, text: str) -> None:
        self._console.print(Text.from_ansi(text), soft_wrap=True)

    def refresh(self, status: Status | None) -> None:
        seconds = time.monotonic() - self._began
        # To draw costs more than all else that the launcher does.
        if self._drawn == (status, int(seconds)):
            return
        self._drawn = (status, int(seconds))
        view = live_view(self._job, status, starting=self._workers, seconds=seconds)
        self._live.update(view, refresh=True)

    def close(self) -> None:
        self._live.stop()


def give_up_stdout() -> None:
    """Let Python flush what nobody will read to where it does no harm."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def store_url(option: str | None) -> str:
    """The URL that --store gives, by itself or as @FILE; empty: the launcher's own store."""
    return _url(option, "--store", "give a URL such as etcd://HOST:PORT")


def checkpoint_url(option: str | None) -> str:
    """The same for --checkpoint; empty: no checkpoints."""
    return _url(option, "--checkpoint", "give a folder or a URL")


def _url(option: str | None, flag: str, advice: str) -> str:
    if option is None:
        return ""
    if option.startswith("@"):
        try:
            url = Path(option[1:]).expanduser().read_text().strip()
        except (OSError, ValueError) as error:
            raise UsageError(f"{flag} {option}: the file cannot be read: {error}") from error
    else:
        url = option
        if redact_url(url) != url:
            print(
                f"edl: others can see the password in {flag}, in the list of processes; put the "
                f"URL in a file of your own and give {flag} @FILE",
                file=sys.stderr,
            )
    if not url:
        raise UsageError(f"{flag} is empty (an unset variable?); {advice}")
    return url


def run(options: argparse.Namespace) -> int:
    if options.checkpoint_every == "":
        raise UsageError("--checkpoint-every is empty (an unset variable?); give 500 or 10m")
    spec = JobSpec(
        script=options.script,
        args=tuple(options.args),
        workers=options.workers,
        name=options.name,
        min_workers=options.min,
        max_workers=options.max,
        slots=options.slots,
        gpus=options.gpus,
        oversubscribe=options.oversubscribe,
        share_gpus=options.share_gpus,
        port=options.port,
        checkpoint=checkpoint_url(options.checkpoint),
        checkpoint_every=options.checkpoint_every or "",
        resume=options.resume,
        max_restarts=options.max_restarts,
        keep=options.keep,
        stragglers=options.stragglers or "",
        on_divergence=options.on_divergence or "",
        digest_steps=options.digest_steps,
        grace_s=options.grace or 0.0,
        store=store_url(options.store),
        host=options.host,
        audit=not options.no_audit,
        warm=options.warm,
        preload=tuple(options.preload),
    )
    if options.detach:
        print(detached.start(spec))
        return 0
    launcher = LocalLauncher(spec)
    try:
        detached.log_to_folder(launcher.folder)
    except BaseException:
        launcher.abandon()
        raise
    detached.stop_on_signals(launcher)
    console = Console(highlight=False)
    workers = launcher.folder.info().workers
    live = console.is_terminal and not console.is_dumb_terminal
    screen: Screen = LiveScreen(console, launcher.folder.name, workers) if live else PlainScreen()
    with contextlib.closing(launcher), contextlib.closing(screen):
        screen.line(f"edl: job {launcher.folder.name}: {workers_said(workers)} of {spec.script}")
        launcher.start()
        result = _show(launcher, screen, Output(launcher.folder, options.output), options.output)
    _show_end(launcher.folder.name, result)
    return result.exit_status


def _show(launcher: LocalLauncher, screen: Screen, output: Output, mode: str) -> Result:
    rank_zero: str | None = None
    while True:
        # Read before the lines: once there is a result, everything has been written.
        result, status = launcher.result, launcher.status
        _show_told(launcher, screen)
        if status is not None:
            ranks = {worker.rank: str(worker.id) for worker in status.workers}
            rank_zero = ranks.get(0, rank_zero) if status.generation else rank_zero
        for worker, text in output.poll(rank_zero, rest=result is not None):
            screen.line(f"{worker} | {text}" if mode == "all" else text)
        if result is not None:
            return result
        screen.refresh(status)
        launcher.wait(REFRESH_S)


def _show_told(launcher: LocalLauncher, screen: Screen) -> None:
    while True:
        try:
            told = launcher.told.get_nowait()
        except queue.Empty:
            return
        if isinstance(told, str):
            screen.line(f"edl: {told}")
        elif notable(told):
            screen.line(f"edl: {brief_event_line(told)}")


def _show_end(job: str, result: Result) -> None:
    if result.first_failure is None:
        target = sys.stderr if result.state == "failed" else sys.stdout
        print(f"edl: {result_line(job, result)}", file=target, flush=True)
        return
    sys.stdout.flush()
    lines: list[str] = []
    for failure in told_failures(result):
        order = " too" if lines else " first"
        lines.append(f"edl: worker {failure.worker} of job {job} failed{order}: {failure.reason}")
        lines += (f"  {line}" for line in failure.traceback.rstrip().splitlines())
        lines.append(f"edl: its log: {failure.log}")
        if failure.status == -9:
            lines.append("edl: SIGKILL that nobody sent is often the kernel's: out of memory")
    lines.append(f"edl: {result_line(job, result)}")
    print("\n".join(lines), file=sys.stderr, flush=True)
