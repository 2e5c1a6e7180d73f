"""What an adjustment costs a simulated job: the answer to a decision, where no real job gives it.

A job trains on `active` GPUs and holds those and the lots that are still being prepared. A lot is
what one scale-out brought: it is prepared beside training, and when it is ready the job stands
still for a moment. Giving GPUs back takes them from the lots first, the latest before the others,
for these do nothing yet. Holds: work done is speed times the time in which the job neither waits
nor stands still, to the last float; so what a job needed in all can be checked against what it
was given.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.policy.view import Job
from edl.simulator.setting import Prices

__all__ = ["SimulatedJob"]

NEVER = float("inf")
Sink = Callable[[float, float, float], None]


class SimulatedJob:
    """One job's progress. `next_s` is when something happens to it by itself."""

    __slots__ = (
        "active",
        "adjustments",
        "ends",
        "first_s",
        "job",
        "left_gpu_s",
        "lots",
        "next_s",
        "preemptions",
        "prices",
        "since_s",
        "size_gpu_s",
        "span_s",
        "speeds",
        "stalled_s",
        "stopped_s",
        "waited_s",
    )

    def __init__(self, job: Job, size_gpu_s: float, speeds: list[float], prices: Prices) -> None:
        self.job = job
        self.size_gpu_s = size_gpu_s
        self.left_gpu_s = size_gpu_s
        self.speeds = speeds  # by active GPUs: GPU seconds of the user's work a second
        self.prices = prices
        self.active = 0
        self.lots: list[tuple[float, int]] = []  # (ready, GPUs), by time
        self.since_s = job.submitted_s
        self.stalled_s = 0.0  # until then it stands still
        self.next_s = NEVER
        self.ends = False  # what happens then is its end, and not that a lot is ready
        self.first_s = -1.0
        self.waited_s = 0.0
        self.stopped_s = 0.0
        self.span_s = job.submitted_s  # since when it holds what it holds
        self.adjustments = 0
        self.preemptions = 0

    def settle(self, now: float, useful: Sink) -> None:
        """Book the work done since the last time; `useful(begin, end, GPUs' worth)` hears of it."""
        since = self.since_s
        if now == since:
            return
        if not self.active:
            if not self.lots:
                self.waited_s += now - since
        else:
            begin = self.stalled_s if self.stalled_s > since else since
            if begin >= now:
                self.stopped_s += now - since
            else:
                self.stopped_s += begin - since
                self.left_gpu_s -= self.speeds[self.active] * (now - begin)
                useful(begin, now, self.job.curve.worth[self.active])
        self.since_s = now

    def aim(self) -> None:
        """Find `next_s`: the next lot that is ready, or the end."""
        if not self.active:
            self.next_s = NEVER
            return
        begin = self.stalled_s if self.stalled_s > self.since_s else self.since_s
        end = begin + self.left_gpu_s / self.speeds[self.active]
        lots = self.lots
        # A lot that would be ready at the very end comes too late.
        self.ends = not lots or end <= lots[0][0]
        self.next_s = end if self.ends else lots[0][0]

    # Each of these is called at a moment to which the job was settled.

    def start(self, now: float, gpus: int) -> None:
        self.active = gpus
        self.stalled_s = now + self.prices.start_s
        if self.first_s < 0:
            self.first_s = now
        self.span_s = now

    def grow(self, now: float, more: int) -> None:
        self.adjustments += 1
        self.span_s = now
        if self.prices.prepare_s:
            self.lots.append((now + self.prices.prepare_s, more))
        else:
            self._take_in(now, more)

    def take_in_lot(self, now: float) -> None:
        _, more = self.lots.pop(0)
        self._take_in(now, more)

    def _take_in(self, now: float, more: int) -> None:
        self.active += more
        self._stand_still(now, self.prices.stop_s)

    def shrink(self, now: float, fewer: int) -> None:
        self.adjustments += 1
        self.span_s = now
        while fewer and self.lots:
            ready, count = self.lots.pop()
            if count > fewer:
                self.lots.append((ready, count - fewer))
                return
            fewer -= count
        if fewer:
            self.active -= fewer
            self._stand_still(now, self.prices.shrink_s)

    def move(self, now: float) -> None:
        """All of its GPUs at other places: prepared beside training, then one switch."""
        self.adjustments += 1
        self.span_s = now
        self._stand_still(now, self.prices.stop_s)

    def preempt(self, now: float) -> float:
        """How much of its work is lost, in GPU seconds."""
        self.preemptions += 1
        before = self.left_gpu_s
        lost = self.prices.preempt_s * self.speeds[self.active]
        self.left_gpu_s = min(self.size_gpu_s, before + lost)
        self.span_s = now
        self.active = 0
        self.lots.clear()
        self.stalled_s = 0.0
        return self.left_gpu_s - before

    def _stand_still(self, now: float, seconds: float) -> None:
        if seconds:
            self.stalled_s = max(now, self.stalled_s) + seconds
