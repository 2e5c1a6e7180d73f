"""Water filling: a GPU has a price, and every job takes as many as are worth it, at every event.

When a resize costs a second, all jobs can be given new numbers whenever something happens. The
best that could be done with jobs of known size is found by prices: what a GPU costs in each second,
in seconds of others' time. Each job by itself then takes the number of GPUs that makes its own time
and what its GPUs cost the others together least, and the right price is the one at which the
cluster is just full (`edl.policy.water` finds it).

- **On how many** is a matter of speed: a piece pays for itself while the time that it saves costs
  less than its GPUs. The time that a unit of work saves is what it would cost at the job's end.
- **Who runs** is a matter of size: a job that ends soon ends at the present price, one that has
  much left at a lower one, when the crowd of now is gone; so it had better wait, or run on fewer.
  How low: between all and `hold` of the present price, half-way for a job of the mean size of all
  that are here. The size is the work left, as the job's leader tells it (WF-SRPT), or, where
  nobody knows, the service it has had (WF-LAS).

So one setting serves clusters of every size and load: without a crowd the price is low and hardly
anybody yields. The first piece is `share` of what the user asked for, all or nothing. Against
starvation, a job's size shrinks with the time that it has waited: by half when that is `patience`
times as long as the longest job here would run on what its user asked for, so that a cluster of
hours has as much patience as one of days, and at most 1e6 s (12 days), which are long to a person
on whatever cluster. And one of the longest that were ever told of here, which in a crowd has always
more left than others, is late when it would end, with what its user asked for from now on, after
`LATE` times the longest one's length and `BEHIND` times as long as all work here takes together: a
late job gets what its user asked for, at any price.

Against restlessness: a job's level moves in steps; whoever runs is ahead of whoever waits by `keep`
in the logarithm of the price; equals keep what they have; and a job that would gain less than
`resize_s` until its end is left alone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import ceil, exp, inf, log, log2

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, ScaleIn, ScaleOut, Start
from edl.policy.throughput import Curve
from edl.policy.view import Job, View
from edl.policy.water import AT_ANY_PRICE, LEVELS, Shape, Water

__all__ = ["WaterFilling", "WaterFillingBlind"]

GROUND_GPU_S = 500.0  # below this, sizes are alike
GRAIN = 0.1  # in the logarithm of the mean size
SHAPES = 1 << 12  # that are remembered, where every job has a speed of its own
PATIENCE_S = 1e6  # at most, and where nobody knows how long jobs are
LONG = 0.75  # of the longest that was told of, and it is one of the longest
LATE, BEHIND = 1.2, 0.8
LATELY = "it is one of the longest and late, so it gets what its user asked for, if that can be"
AT_ONCE_S = 1e-3  # who is late so soon is late, for floats are not exact
SURE = 1.0 - 0.25 / LEVELS  # that it ends soon, at the most, where nobody knows
EDGE = 0.5 + 1e-7  # just past the middle between two levels, for floats are not exact


class WaterFilling(Policy):
    """By what jobs have left. Jobs that tell nothing of their progress count by their service."""

    name = "wf-srpt"
    resizes = True

    def __init__(
        self,
        *,
        share: float = 0.5,
        hold: float = 0.5,
        keep: float = 0.1,
        patience: float = 0.25,
        resize_s: float = 2.0,
        rest_s: float = 60.0,
        told: bool = True,
    ) -> None:
        self.share = share
        self.hold = hold
        self.keep = keep
        self.patience = patience
        self.resize_s = resize_s
        self.rest_s = rest_s
        self.told = told
        self.forget()

    def forget(self) -> None:
        self._view: View | None = None
        self._water = Water(0)
        # With the curve itself, for another one may have its id when it is gone.
        self._shapes: dict[tuple[int, int, int, int], tuple[Curve, Shape]] = {}
        self._spilled: set[int] = set()
        self._asked: set[int] = set()  # whoever the last decision was about: was it carried out?
        # When a job's level changes.
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        # Sizes as straight lines over time, job by job, and their sum.
        self._lines: dict[int, tuple[float, float]] = {}
        # When each has done what it told of: if it goes on, what is left is nothing, not less.
        self._told_out: list[tuple[float, int]] = []
        self._sum_gpu_s = 0.0
        self._sum_slope = 0.0
        self._mean_gpu_s = 1.0
        # How long jobs run on what their users asked for: powers of two, how many of each.
        self._known: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._patience_s = PATIENCE_S
        # What says who is late, and the longest, whom it may concern.
        self._longest_s = 0.0
        self._behind_s = 0.0
        self._long: set[int] = set()
        self._late: set[int] = set()

    # -- sizes ---------------------------------------------------------------------------------

    def _account(self, job: Job, now: float) -> None:
        """Its size among those of all. One that stands still is looked at again when it goes on."""
        begin, slope = self._lines.pop(job.key, (0.0, 0.0))
        self._sum_gpu_s -= begin
        self._sum_slope -= slope
        if job.over:
            return
        left = job.left_at(now) if self.told else None
        if left is None:
            line = (job.total_gpu_s - job.held * job.since_s, float(job.held))
        elif left and job.pace and job.as_of <= now:
            line = (left + job.pace * now, -job.pace)
            heappush(self._told_out, (now + left / job.pace, job.key))
        else:
            line = (left, 0.0)
        self._lines[job.key] = line
        self._sum_gpu_s += line[0]
        self._sum_slope += line[1]

    def _weigh(self, now: float) -> bool:
        """Find the mean size; whether it is another one now. It moves in steps, so this is rare."""
        if not self._lines:
            return False
        mean = max(0.0, self._sum_gpu_s + self._sum_slope * now) / len(self._lines)
        mean_gpu_s = exp(GRAIN * round(log(GROUND_GPU_S + mean) / GRAIN))
        changed = mean_gpu_s != self._mean_gpu_s
        self._mean_gpu_s = mean_gpu_s
        return changed

    def _longest(self, news: list[Job]) -> bool:
        """Take account of who came and went; whether the longest is of another length now.

        Lengths are powers of two, so that this is rare.
        """
        lengths, known = self._lengths, self._known
        for job in news:
            if job.over:
                length = known.pop(job.key, None)
                if length is not None:
                    lengths[length] -= 1
                    if not lengths[length]:
                        del lengths[length]
            elif job.key not in known and self.told and job.told_gpu_s is not None:
                length = ceil(log2(max(1.0, job.told_gpu_s / job.gpus)))
                known[job.key] = length
                lengths[length] = lengths.get(length, 0) + 1
        longest_s = 2.0 ** max(lengths) if lengths else inf
        patience_s = min(PATIENCE_S, self.patience * longest_s)
        changed = patience_s != self._patience_s
        self._patience_s = patience_s
        return changed

    def _file(self, job: Job, now: float) -> None:
        """Its pieces where they belong now, and when they will belong elsewhere."""
        left = job.left_at(now) if self.told else None
        size = GROUND_GPU_S + (job.total_at(now) if left is None else left)
        waited = max(0.0, now - job.submitted_s - job.ran_at(now))
        beside = size / (1.0 + waited / self._patience_s) / self._mean_gpu_s
        level = round(LEVELS / (1.0 + beside))
        late_in = self._late_in(job, left, now)
        late = late_in <= AT_ONCE_S
        (self._late.add if late else self._late.discard)(job.key)
        where = AT_ANY_PRICE if late else level
        self._water.place(job, self._shape(job), where, kept=job.held > 0)
        # The next edge: up where work is done or waited for, down where service is counted.
        edge = level - EDGE if job.held and left is None else level + EDGE
        when = None
        if 0.0 < edge < LEVELS:
            factor = (LEVELS / edge - 1.0) / beside
            when = self._reached(job, size, waited, factor, told=left is not None)
        if left is not None and job.as_of > now:
            when = min(inf if when is None else when, job.as_of - now)
        if not late and late_in < inf:
            when = min(inf if when is None else when, late_in - AT_ONCE_S)
        self._due.pop(job.key, None)
        if when is not None:
            self._due[job.key] = now + when
            heappush(self._heap, (now + when, job.key))
        if len(self._heap) > 4 * len(self._due) + 64:
            self._heap[:] = [(at_s, key) for key, at_s in self._due.items()]
            heapify(self._heap)

    def _late_in(self, job: Job, left: float | None, now: float) -> float:
        """Seconds until it is late, if it stands still; inf: it is none of the longest."""
        self._long.discard(job.key)
        if left is None or job.told_gpu_s is None:
            return inf
        if job.told_gpu_s < LONG * self._longest_s * job.gpus:
            return inf
        self._long.add(job.key)
        end_s = job.submitted_s + LATE * self._longest_s + BEHIND * self._behind_s
        return end_s - left / job.gpus - now

    def _measure(self, view: View) -> bool:
        """Find by when a job is late; whether it is another time now. It moves in steps."""
        work_s = max(0.0, self._sum_gpu_s + self._sum_slope * view.now) / view.capacity
        behind_s = exp(GRAIN * round(log(1.0 + work_s) / GRAIN))
        changed = (behind_s, view.longest_s) != (self._behind_s, self._longest_s)
        self._behind_s, self._longest_s = behind_s, view.longest_s
        return changed

    def _reached(
        self, job: Job, size: float, waited: float, factor: float, *, told: bool
    ) -> float | None:
        """Seconds until its aged size is so many times what it is; None: never by itself."""
        if not job.held:
            return (self._patience_s + waited) * (1.0 / factor - 1.0)
        speed = -job.pace if told else float(job.held)
        if speed == 0 or (told and size * factor < GROUND_GPU_S):
            return None
        return max(0.0, size * (factor - 1.0) / speed)

    def _shape(self, job: Job) -> Shape:
        floor = max(job.least, ceil(self.share * job.gpus)) if job.elastic else job.gpus
        key = (id(job.curve), floor, job.most, job.gpus)
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= SHAPES:
                self._shapes.clear()
            shape = Shape.of(
                job.curve,
                floor=floor,
                most=job.most,
                hold=self.hold,
                keep=self.keep,
                sure=1.0 if self.told else SURE,
                asked=job.gpus,
            )
            known = self._shapes[key] = job.curve, shape
        return known[1]

    # -- the plan ------------------------------------------------------------------------------

    def decide(self, view: View) -> list[Decision]:
        news = view.take_news()
        if self._view is not view:
            self.forget()
            self._view = view
            self._water = Water(view.capacity)
            news = list(view.jobs.values())
        water, now = self._water, view.now
        touched = {key: view.jobs[key] for key in self._asked if key in view.jobs}
        for job in news:
            if job.over:
                water.remove(job)
                self._account(job, now)
                self._due.pop(job.key, None)
                self._long.discard(job.key)
                self._late.discard(job.key)
                touched.pop(job.key, None)
            else:
                touched[job.key] = job
        heap, due = self._heap, self._due
        while heap and heap[0][0] <= now:
            when, key = heappop(heap)
            if due.get(key) == when:
                touched[key] = view.jobs[key]
        for job in touched.values():
            self._account(job, now)
        out: list[int] = []
        while self._told_out and self._told_out[0][0] <= now:
            out.append(heappop(self._told_out)[1])
        # Not as they are found: what rounding leaves of one may end at this very moment again.
        for key in out:
            if key in view.jobs:
                self._account(view.jobs[key], now)
        if len(self._told_out) > 4 * len(self._lines) + 64:
            self._told_out = []
            for job in view.jobs.values():
                self._account(job, now)
        # Lengths only grow, so whoever was none of the longest is none now.
        concerned = list(self._long) if self._measure(view) else []
        if self._longest(news) | self._weigh(now):
            touched = dict(view.jobs)
        touched.update((key, view.jobs[key]) for key in concerned)
        for job in touched.values():
            self._file(job, now)
        before = water.surface
        water.settle()
        for at in range(min(before, water.surface), max(before, water.surface) + 1):
            for key in water.owners(at):
                touched[key] = view.jobs[key]
        return self._difference(view, touched)

    def wake(self, view: View) -> float | None:
        if view.news:
            # Whoever was changed is filed by the next decision, which is not to be long in coming.
            return view.now + self.rest_s
        heap, due = self._heap, self._due
        while heap and due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return max(heap[0][0], view.now + self.rest_s) if heap else None

    def _difference(self, view: View, touched: dict[int, Job]) -> list[Decision]:
        water = self._water
        spilled = water.spill()
        # Whoever held something from such a spill before may lose it now.
        for key in (*self._spilled, *spilled):
            if key in view.jobs:
                touched[key] = view.jobs[key]
        self._spilled = set(spilled)
        stops: list[Decision] = []
        fewer: list[Decision] = []
        more: list[Decision] = []
        for key in sorted(touched):
            job = touched[key]
            target = spilled.get(key)
            if target is None:
                target = water.wishes[key].granted(water.surface)
            if target == job.held:
                continue
            if not target:
                why = f"its {job.held} GPUs are worth more to others, and it can wait"
                stops.append(Preempt(key, why))
            elif not job.held:
                why = f"{target} GPUs are worth most here now"
                more.append(Start(key, target, LATELY if key in self._late else why))
            elif target < job.held:
                why = f"{job.held - target} of its GPUs speed others up by more"
                fewer.append(ScaleIn(key, target, why))
            elif self._worthwhile(job, target, view.now):
                why = f"{target - job.held} more GPUs speed it up by more than others"
                more.append(ScaleOut(key, target, LATELY if key in self._late else why))
        decisions = stops + fewer + more
        self._asked = {decision.job for decision in decisions}
        return decisions

    def _worthwhile(self, job: Job, target: int, now: float) -> bool:
        """What is saved until its end, by what is known of that, is more than a resize costs."""
        left = job.left_at(now) if self.told else None
        if left is None or not job.pace:
            return True
        rate = job.curve.rate
        return left / job.pace * (1.0 - rate[job.held] / rate[target]) >= self.resize_s


class WaterFillingBlind(WaterFilling):
    """By the service that jobs have had, where nobody knows what they have left.

    Service grows in whoever runs, so equals would swap for ever, were they not kept by more.
    """

    name = "wf-las"

    def __init__(self, *, share: float = 0.5, hold: float = 0.6, keep: float = 1.5) -> None:
        super().__init__(share=share, hold=hold, keep=keep, told=False)
