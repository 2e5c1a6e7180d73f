"""The simulation itself: a queue of events, one book, one policy, and jobs that answer by their
price.

Exact: between two events every job goes at a constant speed, and the next event is computed, not
stepped to. Deterministic: the same trace, policy and setting give the same outcome to the last
bit. Pure: no clock, no randomness, no input or output. The policy and the book are the very ones
of a live scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ulp

from edl.policy.base import Policy
from edl.policy.book import Book
from edl.policy.decisions import Decision, Migrate, Preempt, Requeue, Start
from edl.policy.throughput import Curve
from edl.policy.view import Job
from edl.simulator.cost import NEVER, SimulatedJob
from edl.simulator.outcome import JobOutcome, Span
from edl.simulator.setting import Prices
from edl.simulator.timeline import Recorder

__all__ = ["Arrival", "Engine"]

# So often may a policy be woken at one moment before it is taken for broken.
PATIENCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A job of the trace with its speed. `guess` is what it tells of its work, over the truth."""

    submit_s: float
    name: str
    gpus: int
    size_gpu_s: float
    curve: Curve
    least: int
    most: int
    elastic: bool
    guess: float = 1.0


class Engine:
    """One run. `finished` grows by submission's end; `jobs` are those that are not over."""

    def __init__(
        self,
        arrivals: Sequence[Arrival],
        policy: Policy,
        book: Book,
        prices: Prices,
        recorder: Recorder,
        *,
        window_s: tuple[float, float] = (0.0, 0.0),
        check: bool = False,
    ) -> None:
        self.arrivals = arrivals
        self.policy = policy
        self.book = book
        self.prices = prices
        self.recorder = recorder
        self.window_s = window_s
        self.check = check
        self.jobs: dict[int, SimulatedJob] = {}
        self.finished: list[tuple[int, JobOutcome]] = []
        self.spans: list[Span] = []
        self.now = 0.0
        self.events = 0
        self.decisions = 0
        self.running = 0
        self._next = 0  # arrival
        self._queue: list[tuple[float, int]] = []
        self._speeds: dict[tuple[int, int], list[float]] = {}
        self._wake = NEVER
        self._repeats = 0

    def run(self, progress: Callable[[int, int], None] | None = None) -> None:
        every = max(1, len(self.arrivals) // 200)
        told = 0
        while self.step():
            if progress is not None and len(self.finished) >= told + every:
                told = len(self.finished)
                progress(told, len(self.arrivals))
        if progress is not None:
            progress(len(self.finished), len(self.arrivals))

    def step(self) -> bool:
        """Everything that happens at the next moment; False when there is none."""
        now = self._next_moment()
        if now == NEVER:
            # A policy that leaves jobs waiting in an idle cluster would never be asked again.
            assert not self.jobs, f"{len(self.jobs)} jobs wait for ever under {self.policy.name}"
            return False
        assert now >= self.now, (now, self.now)
        view = self.book.view
        held = view.capacity - view.free
        self.recorder.passed(now, held, self.running, len(self.jobs) - self.running)
        self._repeats = self._repeats + 1 if now == self.now else 0
        assert self._repeats < PATIENCE, f"{self.policy.name} asks for {now} again and again"
        self.now = view.now = now
        asked = self._wake <= now
        asked = self._advance_jobs(now) or asked
        asked = self._admit(now) or asked
        self.events += 1
        if asked:
            self._decide(now)
        if self.check:
            self._check()
        return True

    def _next_moment(self) -> float:
        queue, jobs = self._queue, self.jobs
        while queue:
            when, key = queue[0]
            job = jobs.get(key)
            if job is not None and job.next_s == when:
                break
            heappop(queue)
        now = queue[0][0] if queue else NEVER
        if self._next < len(self.arrivals):
            now = min(now, self.arrivals[self._next].submit_s)
        # With nobody in the cluster there is nothing to be woken for.
        return min(now, self._wake) if jobs else now

    def _advance_jobs(self, now: float) -> bool:
        """Lots that are ready, and jobs that are done; True if any is done."""
        queue, done = self._queue, False
        while queue and queue[0][0] <= now:
            when, key = heappop(queue)
            job = self.jobs.get(key)
            if job is None or job.next_s != when:
                continue
            job.settle(now, self.recorder.useful)
            if job.ends:
                self._finish(job, now)
                done = True
            else:
                job.take_in_lot(now)
                self._follow(job, now)
        return done

    def _admit(self, now: float) -> bool:
        came = False
        while self._next < len(self.arrivals) and self.arrivals[self._next].submit_s <= now:
            arrival = self.arrivals[self._next]
            self._next += 1
            came = True
            job = self.book.submit(
                now,
                arrival.name,
                gpus=arrival.gpus,
                curve=arrival.curve,
                least=arrival.least,
                most=arrival.most,
                elastic=arrival.elastic,
                left_gpu_s=arrival.size_gpu_s * arrival.guess,
            )
            speeds = self._speeds_of(arrival.curve, arrival.gpus)
            self.jobs[job.key] = SimulatedJob(job, arrival.size_gpu_s, speeds, self.prices)
        return came

    def _speeds_of(self, curve: Curve, gpus: int) -> list[float]:
        """GPU seconds of work a second on p GPUs; `gpus` of them do `gpus` by definition."""
        key = (id(curve), gpus)
        found = self._speeds.get(key)
        if found is None:
            each = gpus / curve.rate[gpus]
            found = self._speeds[key] = [rate * each for rate in curve.rate]
        return found

    # -- decisions -----------------------------------------------------------------------------

    def _decide(self, now: float) -> None:
        view = self.book.view
        decisions = self.policy.decide(view)
        for decision in decisions:
            self._carry_out(decision, now)
        self.decisions += len(decisions)
        wake = self.policy.wake(view)
        self._wake = NEVER if wake is None else max(wake, now)

    def _carry_out(self, decision: Decision, now: float) -> None:
        job = self.jobs[decision.job]
        if isinstance(decision, Requeue):
            self.book.apply(now, decision)
            return
        held, lost = job.job.held, 0.0
        job.settle(now, self.recorder.useful)
        self._end_span(job, held, now)
        self.book.apply(now, decision)
        if isinstance(decision, Start):
            job.start(now, decision.gpus)
            self.running += 1
        elif isinstance(decision, Preempt):
            lost = job.preempt(now)
            self.running -= 1
        elif isinstance(decision, Migrate):
            job.move(now)
        elif decision.gpus > held:
            job.grow(now, decision.gpus - held)
        else:
            job.shrink(now, held - decision.gpus)
        if self.book.view.together:
            self._spread(job)
        self._follow(job, now, lost)

    def _spread(self, job: SimulatedJob) -> None:
        """On more machines than need be it is slower."""
        state = job.job
        if state.held:
            nodes = len(state.where)
            curve = state.curve
            each = state.gpus / curve.rate[state.gpus]
            speeds = self._speeds_of(curve, state.gpus)
            packed = -(-state.held // self.book.view.gpus_per_node)
            if nodes > packed:
                speeds = speeds.copy()
                # Also for when the GPUs that are being prepared are ready.
                for gpus in range(1, state.held + 1):
                    speeds[gpus] = curve.rate_on(gpus, nodes) * each
            job.speeds = speeds

    def _follow(self, job: SimulatedJob, now: float, lost_gpu_s: float = 0.0) -> None:
        job.aim()
        if job.next_s != NEVER:
            heappush(self._queue, (job.next_s, job.job.key))
        # What it tells of its work is off by the same factor all the time.
        told = job.left_gpu_s * self.arrivals[job.job.key].guess
        pace = job.speeds[job.active] if job.active else 0.0
        begins = max(now, job.stalled_s)
        self.book.tell(now, job.job, told, pace, from_s=begins, lost_gpu_s=lost_gpu_s)

    def _finish(self, job: SimulatedJob, now: float) -> None:
        state = job.job
        self._end_span(job, state.held, now)
        self.book.finish(now, state.key)
        del self.jobs[state.key]
        self.running -= 1
        if self.check:
            # Late in a trace, moments are no finer than this.
            slack = 1e-9 * max(1.0, job.size_gpu_s) + 4 * ulp(now) * job.speeds[job.active]
            assert abs(job.left_gpu_s) <= slack, (state, job.left_gpu_s)
        outcome = JobOutcome(
            id=state.name,
            model=state.curve.label,
            gpus=state.gpus,
            elastic=state.elastic,
            size_gpu_s=job.size_gpu_s,
            submit_s=state.submitted_s,
            start_s=job.first_s,
            end_s=now,
            wait_s=job.waited_s,
            held_gpu_s=state.total_gpu_s,
            adjustments=job.adjustments,
            preemptions=job.preemptions,
            stopped_s=job.stopped_s,
        )
        self.finished.append((state.key, outcome))

    def _end_span(self, job: SimulatedJob, held: int, now: float) -> None:
        begin, end = self.window_s
        if held and begin < end and job.span_s < end and now > begin and now > job.span_s:
            state: Job = job.job
            self.spans.append(Span(state.name, job.span_s, now, held, state.gpus))

    def _check(self) -> None:
        self.book.check()
        for job in self.jobs.values():
            assert job.active + sum(count for _, count in job.lots) == job.job.held, job.job
            assert job.left_gpu_s >= -1e-9 * max(1.0, job.size_gpu_s), job.job
