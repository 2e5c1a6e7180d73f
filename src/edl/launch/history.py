"""A job's history: events.jsonl, one line for each thing that happened, and what a user is told.

The leader tells most of it; the launcher adds what only it can know, such as a restart. Owns: the
file, and the numbers in it. Holds: numbers grow by one, also over leaders and restarts, so that a
reader can ask for what came after the last one it has seen.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import queue
import time
from dataclasses import asdict, replace

from edl.launch.files import writing
from edl.launch.jobs import JobFolder, Result
from edl.protocol.messages import Happened

__all__ = ["KEPT_TOLD", "History"]

log = logging.getLogger("edl.launch")

# What waits to be shown to a user: nobody takes it from a detached job, and a terminal may stand
# still. The oldest is dropped; events.jsonl has everything.
KEPT_TOLD = 4096


class History:
    """`told` carries what a user should see: lines, and events as they are written."""

    def __init__(self, folder: JobFolder) -> None:
        with writing(folder.events_file):
            # Unbuffered: what a full disk refused must not be written again by `close`.
            self._file = open(folder.events_file, "ab", buffering=0)  # noqa: SIM115
        self._torn = False  # the last line was written in part
        self._last: Happened | None = None
        self.told: queue.SimpleQueue[str | Happened] = queue.SimpleQueue()

    def add(self, event: Happened) -> None:
        event = replace(event, seq=self._last.seq + 1 if self._last else 1)
        self._last = event
        self._tell(event)
        line = json.dumps({"time": time.time(), **asdict(event)}).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            # A full disk must not end a job that trains.
            log.error("launch.event lost seq=%d why=%r", event.seq, str(error))

    def note(
        self, what: str, request_id: str = "", /, *, step: int, **fields: str | int | float
    ) -> None:
        """Something that no leader tells."""
        generation = self._last.generation if self._last else 0
        log.info("%s step=%d %s", what, step, " ".join(f"{k}={v!r}" for k, v in fields.items()))
        self.add(
            Happened(
                seq=0,
                what=what,
                request_id=request_id,
                generation=generation,
                step=step,
                fields=fields,
            )
        )

    def failed(self, result: Result) -> None:
        """The last line of a job that failed: no leader is left to write it."""
        first, fields = result.first_failure, {"why": result.why}
        if first is not None:
            fields |= {"worker": first.worker, "reason": first.reason, "log": first.log}
        self.note("job.failed", step=result.steps, **fields)

    def say(self, line: str) -> None:
        self._tell(line)

    def _tell(self, news: str | Happened) -> None:
        while self.told.qsize() >= KEPT_TOLD:
            with contextlib.suppress(queue.Empty):  # its reader was faster
                self.told.get_nowait()
        self.told.put(news)

    def close(self) -> None:
        try:
            self._file.close()
        except OSError as error:
            # Network file systems report a failed write only now.
            log.error("launch.events incomplete why=%r", str(error))

    def _write(self, line: bytes) -> None:
        """A line that was cut off is ended first, so that it spoils no other."""
        data = b"\n" + line if self._torn else line
        written = self._file.write(data)
        self._torn = written < len(data) and (self._torn or written > 0)
        if written < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
