"""Shortest remaining time first, by sizes that somebody knows: a measure for those that guess.

At every event the plan is made anew from an empty cluster: whoever would end first with its user's
GPUs comes first, all or nothing, and whoever does not fit is passed over. Jobs that run may be
stopped for it. Those of whom nobody knows what they have left come last.

While nothing happens the plan stays: those that run come nearer to their ends, all alike, and
those that wait do not. So those that run are kept in the order of the moments at which they would
end, those that wait by seconds left, and a plan looks only at the places where something can
change: at the first of each number of GPUs among those that wait, and at the first that runs and
no longer fits.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from itertools import accumulate

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, Start
from edl.policy.view import Job, View

__all__ = ["Srtf"]

Entry = tuple[float, int]  # the end (if it runs) or seconds left (if it waits), key
NEVER = float("inf")


class Srtf(Policy):
    name = "srtf"

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._view: View | None = None
        self._clear()

    def _clear(self) -> None:
        self._found: dict[int, tuple[int, Entry]] = {}  # GPUs asked for, or 0: it runs
        self._running: list[Entry] = []
        self._held: list[int] = []  # by those
        self._still: dict[int, Job] = {}  # run, but stand still for a while: not among those
        self._waiting: dict[int, list[Entry]] = {}  # by GPUs asked for

    def _update(self, view: View) -> None:
        news = view.take_news()
        if self._view is not view:
            self._clear()
            self._view = view
            news = list(view.jobs.values())
        news += [job for job in self._still.values() if job.as_of <= view.now]
        for job in news:
            self._drop(job.key)
            if not job.over:
                self._insert(job, view.now)

    def _drop(self, key: int) -> None:
        found = self._found.pop(key, None)
        if found is None:
            return
        gpus, entry = found
        if self._still.pop(key, None):
            return
        if gpus:
            entries = self._waiting[gpus]
            del entries[bisect_left(entries, entry)]
            if not entries:
                del self._waiting[gpus]
        else:
            at = bisect_left(self._running, entry)
            del self._running[at]
            del self._held[at]

    def _insert(self, job: Job, now: float) -> None:
        if job.held:
            entry = (job.as_of + _seconds(job), job.key)
            self._found[job.key] = (0, entry)
            if job.as_of > now:
                self._still[job.key] = job
            else:
                at = bisect_left(self._running, entry)
                self._running.insert(at, entry)
                self._held.insert(at, job.held)
        else:
            entry = (_seconds(job), job.key)
            insort(self._waiting.setdefault(job.gpus, []), entry)
            self._found[job.key] = (job.gpus, entry)

    def decide(self, view: View) -> list[Decision]:
        self._update(view)
        stopped, started = self._plan(view)
        decisions: list[Decision] = [
            Preempt(key, "those with less time left need its GPUs") for key in stopped
        ]
        for seconds, key in started:
            gpus = view.jobs[key].gpus
            left = f"{seconds:,.0f} s left" if seconds < NEVER else "nobody knows how long"
            reason = f"{left}: nobody with less could use its {gpus} GPUs"
            decisions.append(Start(key, gpus, reason))
        return decisions

    def _line(self, now: float) -> _Line:
        """Those that run; those that stand still are no nearer to their ends than a moment ago."""
        line = _Line(list(self._running), list(self._held))
        for key, job in self._still.items():
            entry = (now + _seconds(job), key)
            at = bisect_left(line.running, entry)
            line.running.insert(at, entry)
            line.held.insert(at, job.held)
        line.sums = list(accumulate(line.held))
        return line

    def _plan(self, view: View) -> tuple[list[int], list[Entry]]:
        """Who stops and who starts. `room` is the capacity less what was started, and more by
        what was stopped, so that sums over all that run need not be made anew."""
        now, line = view.now, self._line(view.now)
        room, at = view.capacity, 0
        heads = dict.fromkeys(self._waiting, 0)
        stopped: list[int] = []
        started: list[Entry] = []
        while True:
            over = bisect_right(line.sums, room, lo=at)
            first = self._first_that_fits(now, room, over, line, heads)
            if first is not None:
                gpus, entry = first
                started.append(entry)
                heads[gpus] += 1
                room -= gpus
            elif over < len(line.running):
                end, key = line.running[over]
                stopped.append(key)
                room += line.held[over]
                at = over + 1
                # Those before it have had their turn.
                for gpus, entries in self._waiting.items():
                    heads[gpus] = bisect_left(
                        entries, end, lo=heads[gpus], key=lambda entry: now + entry[0]
                    )
            else:
                return stopped, started

    def _first_that_fits(
        self, now: float, room: int, over: int, line: _Line, heads: dict[int, int]
    ) -> tuple[int, Entry] | None:
        """Of those that wait and come before `over`. Where the first of a number of GPUs did not
        fit, the others cannot, for what is left only becomes less."""
        best: tuple[int, Entry] | None = None
        for gpus, entries in self._waiting.items():
            head = heads[gpus]
            if gpus > room or head == len(entries):
                continue
            entry = entries[head]
            if best is not None and best[1] < entry:
                continue
            # Of equals, whoever runs.
            before = bisect_right(line.running, now + entry[0], key=_first)
            if before <= over and gpus <= room - (line.sums[before - 1] if before else 0):
                best = (gpus, entry)
        return best


@dataclass(slots=True)
class _Line:
    """All that run, in the order of their ends, what each holds, and the sums of that."""

    running: list[Entry]
    held: list[int]
    sums: list[int] = field(default_factory=list)


def _first(entry: Entry) -> float:
    return entry[0]


def _seconds(job: Job) -> float:
    """How long it takes from `as_of` on, if it has what its user asked for."""
    left = job.left_at(job.as_of)
    return NEVER if left is None else left / job.gpus
