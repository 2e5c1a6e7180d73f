"""How a job ends: by its own end, by a failure, or because somebody stopped it.

Owns: the first failure and the stop that was asked for. Holds: what came first counts, and the
result tells it with the worker, its exit status, its traceback and where its log is.
"""

from __future__ import annotations

import signal
from collections import deque
from typing import TextIO

from edl.launch.base import Ended
from edl.launch.census import Census, Judged
from edl.launch.jobs import Failure, JobFolder, Result
from edl.launch.processes import how_it_ended

__all__ = ["Ending"]

LOG_LINES = 20


class Ending:
    """Filled while the job runs, read when it is over."""

    def __init__(self, folder: JobFolder, census: Census) -> None:
        self._folder = folder
        self._census = census
        self._stop_status = 0
        self._why = ""
        self._broken = ""
        self._first: Judged | None = None
        # Whether processes were signalled, rather than asked through the leader.
        self.forced = False

    @property
    def failed(self) -> bool:
        return self._first is not None or bool(self._broken)

    @property
    def stopping(self) -> bool:
        return bool(self._stop_status)

    def stop(self, why: str, *, status: int) -> None:
        """Somebody asked for the end; the first one's exit status counts."""
        if not self._stop_status:
            self._stop_status, self._why = status, why

    def fail(self, judged: Judged) -> None:
        if self._first is None:
            self._first = judged

    def fail_without_worker(self, why: str) -> None:
        self._broken = self._broken or why

    def also_ended(self, ended: Ended) -> None:
        """A worker that failed by itself before the one that was noticed first is the first."""
        first = self._first
        if first is not None and ended.status > 0 and ended.at < first.ended.at:
            # Its own status may be lost: it was asked to go while it was about to.
            why = "its script failed" if ended.status == 128 + signal.SIGTERM else ""
            self._first = Judged(ended=ended, failed=True, why=why)

    def result(self, seconds: float) -> Result:
        state, status, why = self._outcome()
        return Result(
            state=state,
            exit_status=status,
            why=why,
            first_failure=self._failure() if self._first else None,
            steps=self._census.step,
            seconds=round(seconds, 3),
            adjustments=tuple(self._census.records),
        )

    def _outcome(self) -> tuple[str, int, str]:
        census = self._census
        if self._stop_status:
            # It may have ended by itself before the request reached it.
            if census.over == "finished" and not self.forced and not self.failed:
                return "finished", 0, ""
            return "stopped", self._stop_status, self._why
        if self._broken:
            return "failed", 1, self._broken
        if self._first is not None:
            return "failed", 1, f"worker {self._first.ended.worker} failed"
        if census.over == "stopped":
            return "stopped", 128 + signal.SIGTERM, "every worker was told to leave"
        if census.over:
            return "finished", 0, ""
        # Whatever ran, it was no job: say so, but the script's own success is not taken from it.
        return "finished", 0, "the script ended without training: it made no step through EDL"

    def _failure(self) -> Failure:
        assert self._first is not None
        worker, status = self._first.ended.worker, self._first.ended.status
        log = self._folder.log(worker)
        try:
            trace = self._folder.failure_file(worker).read_text()
        except FileNotFoundError:
            trace = _last_lines(log.open(errors="replace")) if log.exists() else ""
        return Failure(
            worker=worker,
            status=status,
            reason=self._first.why or how_it_ended(status),
            traceback=trace,
            log=str(log),
        )


def _last_lines(file: TextIO) -> str:
    with file:
        return "".join(deque(file, maxlen=LOG_LINES))
