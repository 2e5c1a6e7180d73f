"""What a job has told so far, read from its folder: events, and what its workers printed."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edl.errors import UsageError
from edl.launch.jobs import JobFolder
from edl.launch.logs import Tail
from edl.runtime.auditing import Audit, audit_folder

__all__ = ["Event", "audited", "events_of", "lines_of"]

log = logging.getLogger("edl.client")

PAUSE_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a job's history; `time` is the wall time at which the launcher heard of it."""

    time: float
    seq: int
    what: str
    request_id: str
    generation: int
    step: int
    fields: dict[str, str | int | float]


def events_of(folder: JobFolder, *, since: int, follow: bool) -> Iterator[Event]:
    """Those after number `since`; `follow`: until the job is over."""
    tail = Tail(folder.events_file)
    for line in _growing(folder, lambda rest: tail.lines(rest=rest), follow=follow):
        try:
            event = Event(**json.loads(line))
        except (ValueError, TypeError):
            # A launcher that was killed may have left half a line.
            log.warning("events of job %s: a line cannot be read: %.80r", folder.name, line)
            continue
        if event.seq > since:
            yield event


def lines_of(folder: JobFolder, *, worker: str | None, follow: bool) -> Iterator[str]:
    """One worker's output, or everybody's with the worker's id before each line."""
    if worker is not None and worker not in folder.workers():
        have = ", ".join(folder.workers()) or "none yet"
        raise UsageError(f"job {folder.name} has no worker {worker!r}; there is {have}")
    tails: dict[str, Tail] = {}

    def more(rest: bool) -> list[str]:
        lines: list[str] = []
        for name in folder.workers() if worker is None else [worker]:
            tail = tails.setdefault(name, Tail(folder.log(name)))
            prefix = f"{name} | " if worker is None else ""
            lines += [prefix + line for line in tail.lines(rest=rest)]
        return lines

    yield from _growing(folder, more, follow=follow)


def _growing(
    folder: JobFolder, more: Callable[[bool], list[str]], *, follow: bool
) -> Iterator[str]:
    while True:
        # Asked before reading: what is written until the end is then read below.
        alive = follow and folder.running()
        yield from more(not alive)
        if not alive:
            return
        threading.Event().wait(PAUSE_S)


def audited(files: JobFolder) -> Audit:
    """The verdict on a job's data; of one that has ended, on all the steps that it did."""
    result = files.result()
    if result is None:
        return audit_folder(files.path)
    return audit_folder(files.path, steps=result.steps, ended=True)
