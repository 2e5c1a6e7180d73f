"""Measures a running job at each parallelism from many workers down to few.

As the paper has it: from max_p on, scaling in step by step, for that is what costs a job least.
Owns: the course of one profile. Holds: the job is as before afterwards (see `undoing.py`), also
when this was interrupted or failed; what cannot be measured is told and left out, and what was
measured is kept in the job's folder, to compare with later.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from edl.errors import AdjustmentFailed, JobFinished, PeerError, Refused, TimedOut, UsageError
from edl.launch.base import MOST_AT_ONCE
from edl.launch.jobs import JobFolder, write_json
from edl.launch.undoing import ATTEMPTS, POLL_S, TELL_S, Adjustable, Unchanged, counted, pause
from edl.protocol.profiling import Meter, Profile, Row, judged, members_of, row_of

__all__ = ["Plan", "known_speeds", "measure", "present"]

FILE = "profile.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. `restore`: undo afterwards what this changed."""

    min_p: int
    max_p: int | None  # None: as many as it has
    steps: int = 20
    warm_up: int = 5
    restore: bool = True

    def check(self) -> None:
        if self.min_p < 1 or (self.max_p is not None and self.max_p < self.min_p):
            raise UsageError(
                f"profile of {self.min_p} to {self.max_p} workers; give 1 <= min_p <= max_p"
            )
        if (self.max_p or 0) > MOST_AT_ONCE:
            raise UsageError(
                f"profile of up to {self.max_p} workers; {MOST_AT_ONCE} at most are ever started"
            )
        if self.steps < 1 or self.warm_up < 0:
            raise UsageError(
                f"profile of {self.steps} steps after {self.warm_up}; give at least 1 after 0"
            )


def present(job: Adjustable, folder: JobFolder | None) -> Profile:
    """The parallelism that the job has, from what its leader knows; nothing is disturbed."""
    status = job.status()
    workers = members_of(status)
    if not job.running():
        raise JobFinished(f"job {job.name} is over; profile it while it runs, or with --script")
    if not workers or not status.throughput:
        raise TimedOut(f"job {job.name} has done no step yet; try again when it trains")
    row = row_of(
        workers=workers,
        samples=status.throughput,
        seconds=1.0,
        steps=status.pace_steps,
    )
    return judged(job.name, [replace(row, step_s=status.step_s)], known=known_speeds(folder))


def measure(
    job: Adjustable,
    plan: Plan,
    *,
    folder: JobFolder | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Profile:
    """See the module.

    `progress` hears a line for each thing that is begun or measured, and every few seconds what is
    waited for, then from another thread.
    """
    plan.check()
    course = _Course(job, plan, progress)
    try:
        course.run()
    except KeyboardInterrupt:
        course.on_interrupted()
        raise
    finally:
        try:
            if plan.restore:
                course.put_back()
        finally:
            _keep(folder, course.rows)
    if not course.rows:
        why = "; ".join(course.notes) or "it ended first"
        raise AdjustmentFailed(f"nothing of job {job.name} could be measured: {why}")
    return judged(job.name, course.rows, notes=course.notes, restored=course.restored)


class _Course:
    def __init__(self, job: Adjustable, plan: Plan, progress: Callable[[str], None]) -> None:
        self._job = job
        self._plan = plan
        self._progress = progress
        self._ending = False
        self._interrupted = False
        self._workers = Unchanged(job, self._say)
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.restored = True

    def run(self) -> None:
        try:
            low, before = self._plan.min_p, self._workers.await_training()
            high = max(low, before) if self._plan.max_p is None else self._plan.max_p
            for workers in range(high, low - 1, -1):
                if self._move_to(workers):
                    self._measure(workers, then=workers - 1 if workers > low else 0)
        except JobFinished as end:
            self._note(f"the job ended first: {end}")
        except (PeerError, TimedOut) as error:
            if not self.rows:
                raise
            self._note(f"the rest is not measured: {error}")

    def on_interrupted(self) -> None:
        again = "; once more, and it is left as it is" if self._plan.restore else ""
        self._ending = self._interrupted = True
        self._say(f"interrupted{again}")

    def put_back(self) -> None:
        """What the job refuses cannot be helped, and is told. It takes two interrupts to stop."""
        self._ending = True
        if not self._workers.before or not self._job.running():
            return
        try:
            self._undo()
        except KeyboardInterrupt:
            if self._interrupted:
                self._not_put_back("interrupted again")
                raise
            self.on_interrupted()
            self.put_back()
            raise

    def _undo(self) -> None:
        with contextlib.suppress(JobFinished):
            try:
                changed = self._workers.undo()
                if changed:
                    self._note(changed)
            except (Refused, AdjustmentFailed, TimedOut, PeerError) as error:
                self._not_put_back(str(error))

    def _not_put_back(self, why: str) -> None:
        self.restored = False
        self._note(
            f"the job is not put back to {counted(self._workers.before)}: {why}; look at it with "
            f"`edl status {self._job.name}`, then `edl scale-out` or `edl scale-in`"
        )

    def _move_to(self, workers: int) -> bool:
        why = self._workers.move_to(workers)
        if why:
            self._note(f"not measured with {counted(workers)}: {why}")
        return not why

    def _measure(self, workers: int, *, then: int) -> None:
        for attempt in range(ATTEMPTS):
            if attempt:
                self._say(f"workers came or went: measuring {counted(workers)} anew")
                if not self._move_to(workers):
                    return
            row = self._try(workers, then if not attempt else 0)
            if row is not None:
                self.rows.append(row)
                self._say(
                    f"{counted(workers)}: {row.throughput:,.1f} samples/s, "
                    f"{row.per_worker:,.1f} a worker, {row.step_s * 1000:.1f} ms/step"
                )
                return
        self._note(f"not measured with {counted(workers)}: workers came or went meanwhile")

    def _try(self, workers: int, then: int) -> Row | None:
        """`then`: how many it is to have next, which takes a moment; 0: nobody knows."""
        plan = self._plan
        meter = Meter(workers, warm_up=plan.warm_up, steps=plan.steps)
        self._say(f"measuring {plan.steps} steps with {counted(workers)}")
        tell_at = time.monotonic() + TELL_S
        while True:
            status = self._workers.status()
            if not meter.on_status(status):
                return None
            if meter.row is not None:
                return meter.row
            if then and meter.nearly:
                # A switch is announced some steps ahead, so that the last steps of one number are
                # measured while the next one is on its way.
                self._workers.ask_ahead(then)
                then = 0
            if time.monotonic() > tell_at:
                tell_at += TELL_S
                self._say(
                    f"{counted(workers)}: {meter.done} of {plan.steps} steps, about "
                    f"{meter.left_s:.0f} s more"
                )
            pause(min(POLL_S, max(0.01, status.step_s / 2)))

    def _say(self, line: str) -> None:
        try:
            self._progress(line)
        except Exception as error:
            # Nobody who cannot listen any more keeps a job from being put back.
            if not self._ending:
                raise
            self.notes.append(f"nobody heard that {line}: {error}")

    def _note(self, line: str) -> None:
        self.notes.append(line)
        self._say(line)


def known_speeds(folder: JobFolder | None) -> dict[int, float]:
    """t(p) by p, as it was last measured in this job."""
    if folder is None:
        return {}
    try:
        found = json.loads((folder.path / FILE).read_text())
        return {int(workers): float(speed) for workers, speed in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _keep(folder: JobFolder | None, rows: list[Row]) -> None:
    if folder is None or not rows:
        return
    speeds = known_speeds(folder) | {row.workers: row.per_worker for row in rows}
    write_json(folder.path / FILE, {str(workers): speed for workers, speed in speeds.items()})
