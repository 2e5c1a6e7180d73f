"""How a job ends: by its own end, by failures, or because somebody stopped it.

Owns: the workers that were lost or failed, and the stop that was asked for. Holds: what came first
counts, and the result tells it with the worker, its exit status, its traceback and where its log
is. A batch that raises on two workers ends the job: a third would fail on it too.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
from collections.abc import Iterable

from edl.launch.base import Ended
from edl.launch.census import Census, Judged, by_signal
from edl.launch.files import disk_full, last_lines, tail_text
from edl.launch.jobs import Failure, JobFolder, Result
from edl.launch.notes import Note, read_note
from edl.launch.processes import how_it_ended
from edl.types import WorkerId

__all__ = ["Ending"]

log = logging.getLogger("edl.launch")

LOG_LINES = 20
# A result tells of so many; the rest is in failures/ and logs/.
FAILURES_TOLD = 8
# An exception's message may hold a whole tensor.
ERROR_CHARS = 200


class Ending:
    """Filled while the job runs, read when it is over."""

    def __init__(self, folder: JobFolder, census: Census) -> None:
        self._folder = folder
        self._census = census
        self._stop_status = 0
        self._why = ""
        self._broken = ""
        self._gone = ""
        self._failures: list[Judged] = []
        self._failed = False
        self.twice = False  # a batch raised on two workers
        # Whether processes were signalled, rather than asked through the leader.
        self.forced = False

    @property
    def failed(self) -> bool:
        """Whether the job cannot go on."""
        return self._failed or bool(self._broken)

    @property
    def stopping(self) -> bool:
        return bool(self._stop_status)

    @property
    def cause(self) -> Note | None:
        """What ended the job, in the script's own words; None for a signal."""
        if self._failed:
            return self.note(self._failures[0].ended)
        for judged in reversed(self._failures):
            note = self.note(judged.ended)
            # Whoever only lost its peer is not the cause.
            if note is None or note.own:
                return note
        return None

    def stop(self, why: str, *, status: int) -> None:
        """Somebody asked for the end; the first one's exit status counts."""
        if not self._stop_status:
            self._stop_status, self._why = status, why

    def fail(self, judged: Judged) -> None:
        if not self._failed:
            self._failed = True
            # Whoever was lost before was survived.
            self._failures.insert(0, judged)

    def lose(self, judged: Judged) -> str:
        """The others go on; unless, as this returns, they must not."""
        self._failures.append(judged)
        mine = self.note(judged.ended)
        if mine is None or not mine.own:
            return ""
        if mine.diverged:
            self._failures.remove(judged)
            self._failures.insert(0, judged)
            self._failed = True
            return mine.headline
        for other in self._failures[:-1]:
            note = self.note(other.ended)
            if note is not None and note.own and mine.same_batch(note):
                self._failures.remove(other)
                self._failures.remove(judged)
                self._failures[:0] = [other, judged]
                self._failed = self.twice = True
                both = f"two workers, {other.ended.worker} and {judged.ended.worker}"
                if mine.step == note.step:
                    return f"step {mine.step} raised on {both}"
                return f"the same samples raised on {both}, in steps {note.step} and {mine.step}"
        return ""

    def lose_elsewhere(self, workers: Iterable[WorkerId]) -> None:
        """Members that the launcher did not start ended before the job did."""
        names = ", ".join(workers)
        self._gone = f"{names} ended on another machine before the job's end"

    def fail_without_worker(self, why: str) -> None:
        self._broken = self._broken or why

    def also_ended(self, ended: Ended) -> None:
        """A worker that failed by itself before the one that was noticed first is the first."""
        if not self._failed:
            return
        first = self._failures[0]
        known = any(each.ended.worker == ended.worker for each in self._failures)
        if known or self._diverged(first.ended):
            return
        if self._diverged(ended):
            self._failures.insert(0, Judged(ended=ended, failed=True))
        elif ended.status > 0 and ended.at < first.ended.at:
            # Its own status may be lost: it was asked to go while it was about to.
            why = "its script failed" if ended.status == 128 + signal.SIGTERM else ""
            self._failures.insert(0, Judged(ended=ended, failed=True, why=why))

    def _diverged(self, ended: Ended) -> bool:
        """Whether it stopped since replicas differ, which is the cause whoever was first."""
        note = self.note(ended)
        return note is not None and note.diverged

    def note(self, ended: Ended) -> Note | None:
        """What a process that ended by itself has left about it."""
        return None if by_signal(ended.status) else read_note(self._folder, ended.worker)

    def own_fault(self, judged: Judged) -> bool:
        """Whether the worker's own script raised, rather than lost a peer."""
        note = self.note(judged.ended)
        return note is not None and note.own

    def last_failure(self) -> Failure | None:
        """Of whoever was lost last, which is what ended a job that had lost others before."""
        return self.failure(self._failures[-1]) if self._failures else None

    def result(self, seconds: float, *, restarts: int = 0) -> Result:
        state, status, why = self._outcome()
        told = self._failures[:FAILURES_TOLD]
        failures = tuple(self.failure(each) for each in told)
        return Result(
            state=state,
            exit_status=status,
            why=why,
            first_failure=failures[0] if failures and state == "failed" else None,
            # A script that raised knows better than a launcher, which looks now and then.
            steps=max([self._census.step, *(each.step or 0 for each in failures)]),
            seconds=round(seconds, 3),
            adjustments=tuple(self._census.records),
            failures=failures,
            restarts=restarts,
        )

    def _outcome(self) -> tuple[str, int, str]:
        census, cause = self._census, self.cause
        if self._failed and cause is not None and cause.diverged:
            # Also where the job was asked to stop: its last checkpoint was not taken.
            return "failed", 1, cause.headline
        if self._stop_status:
            # It may have ended by itself before the request reached it.
            if census.over == "finished" and not self.forced and not self.failed:
                return "finished", 0, ""
            return "stopped", self._stop_status, self._why
        if self._broken:
            return "failed", 1, self._broken
        if self._failed:
            first, *others = [each.ended.worker for each in self._failures]
            both = f"workers {first} and {others[0]}" if self.twice else f"worker {first}"
            return "failed", 1, f"{both} failed" + (" on the same batch" if self.twice else "")
        if census.over == "stopped":
            return "stopped", 128 + signal.SIGTERM, "every worker was told to leave"
        succeeded = census.succeeded or census.finished_elsewhere
        if census.over and (succeeded or not self._failures):
            return "finished", 0, self._lost()
        if self._gone:
            return "failed", 1, f"no worker is left: {self._gone}"
        if self._failures:
            return "failed", 1, "no worker is left"
        if census.founded or census.step:
            return "failed", 1, "no worker is left, and none of them recorded the job's end"
        # Whatever ran, it was no job: say so, but the script's own success is not taken from it.
        return "finished", 0, "the script ended without training: it made no step through EDL"

    def _lost(self) -> str:
        stories = [self.failure(each).story for each in self._failures[:FAILURES_TOLD]]
        more = len(self._failures) - len(stories)
        return ", ".join(stories + ([f"{more} more were lost"] if more else []))

    def failure(self, judged: Judged) -> Failure:
        """The worker that ended, why, and where to read on."""
        worker, status = judged.ended.worker, judged.ended.status
        note = self.note(judged.ended)
        return Failure(
            worker=worker,
            status=status,
            reason=judged.why or how_it_ended(status),
            traceback=self._traceback(worker),
            log=str(self._folder.log(worker)),
            step=note.step if note else None,
            error=f"{note.kind}: {note.message}"[:ERROR_CHARS] if note else "",
        )

    def _traceback(self, worker: WorkerId) -> str:
        """What the worker left, or the end of its log; empty if neither can be read."""
        try:
            return tail_text(self._folder.failure_file(worker))
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("launch.failure worker=%s unreadable why=%r", worker, str(error))
        path = self._folder.log(worker)
        try:
            lines = last_lines(path, LOG_LINES)
        except OSError as error:
            log.warning("launch.log worker=%s unreadable why=%r", worker, str(error))
            return ""
        if not lines and disk_full(path):
            return f"edl: cannot write {path}: {os.strerror(errno.ENOSPC)}\n"
        return lines
