"""Water filling: every GPU goes where it is worth most, at every event.

When a resize costs a second, all jobs can be given new numbers whenever something happens. Each
job's GPUs come in pieces (`edl.policy.water`), and a piece's worth has two sides:

- **Who runs.** The first piece is `share` of what the user asked for, all or nothing. Its worth
  falls with the job's size to the power `steep`: whoever is done soonest goes first. The size is
  the work left, as the job's leader tells it (WF-SRPT), or, where nobody knows, the service it
  has had (WF-LAS). But it falls only so far (`turn`): nobody, however large, is kept waiting so
  that others may have GPUs which hardly speed them up.
- **On how many.** Every further piece is worth the speed it adds, relative to what the job has,
  so that the tenth GPU of one job yields to the second of another; sizes hardly matter (`tilt`).
  Pieces up to what the user asked for are worth more (`own`) than those beyond.

The scale is the cluster's own: a job whose work would fill all of it for `horizon_s` stands where
a piece beyond what its user asked for would double the speed of another. So one setting serves
clusters of every size, and no exponent has to follow the load: under load the surface rises above
what lies beyond users' wishes by itself. Against starvation, a job's size shrinks with the time
that it has waited: by half when that is `patience` times as long as the longest job here would run
on what its user asked for, so that a cluster of hours and one of months have the same patience.

Against restlessness: weights move in steps of `grain` bins; equals keep what they have; and a job
that would gain less than `resize_s` until its end is left alone.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import ceil, exp, log, log2

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, ScaleIn, ScaleOut, Start
from edl.policy.view import Job, View
from edl.policy.water import Shape, Water

__all__ = ["WaterFilling", "WaterFillingBlind"]

GROUND_GPU_S = 500.0  # below this, sizes are alike
WIDTH = 0.05  # of a bin, in the logarithm of worth
GRAIN = 4  # bins
KEEP = 0.5  # grains by which another must be ahead of whoever runs, where service counts
PATIENCE_S = 1e6  # the same where nobody knows how long jobs are
SPILL = 12  # bins that are looked through for who can use what is left over
EDGE = 0.5 + 1e-7  # just past the middle between two grains, for floats are not exact


class WaterFilling(Policy):
    """By what jobs have left. Jobs that tell nothing of their progress count by their service."""

    name = "wf-srpt"
    resizes = True

    def __init__(
        self,
        *,
        share: float = 0.5,
        steep: float = 1.0,
        tilt: float = 0.1,
        first: float = 1.5,
        own: float = 2.0,
        horizon_s: float = 300.0,
        patience: float = 0.25,
        turn: float = -2.0,
        resize_s: float = 2.0,
        rest_s: float = 60.0,
        told: bool = True,
    ) -> None:
        self.share = share
        self.steep = steep
        self.tilt = tilt
        self.first = first
        self.own = own
        self.horizon_s = horizon_s
        self.patience = patience
        self.turn = turn
        self.resize_s = resize_s
        self.rest_s = rest_s
        self.told = told
        self.forget()

    def forget(self) -> None:
        self._view: View | None = None
        self._water = Water(0, WIDTH)
        self._scale = 1.0
        self._shapes: dict[tuple[int, int, int, int], Shape] = {}
        self._spilled: set[int] = set()
        self._asked: set[int] = set()  # whoever the last decision was about: was it carried out?
        # When a job's weight leaves its grain.
        self._due: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []
        # How long jobs run on what their users asked for: powers of two, how many of each.
        self._known: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._patience_s = PATIENCE_S

    # -- weights -------------------------------------------------------------------------------

    def _file(self, job: Job, now: float) -> None:
        """Its pieces where they belong now, and when they will belong elsewhere."""
        left = job.left_at(now) if self.told else None
        size = GROUND_GPU_S + (job.total_at(now) if left is None else left)
        waited = max(0.0, now - job.submitted_s - job.ran_at(now))
        aged = size / (1.0 + waited / self._patience_s) / self._scale
        unit = WIDTH * GRAIN
        at = -self.steep * log(aged) / unit
        # Where service counts it grows in whoever runs, and what waits ages: equals would swap for
        # ever. So another must be ahead by some of a grain.
        counted = job.held > 0 and left is None
        kept = KEEP if counted else 0.0
        usual, first = round(at), round(at + kept)
        more = round(usual * self.tilt / self.steep)
        ahead = GRAIN * (first - usual)
        self._water.place(job, self._shape(job), GRAIN * usual, GRAIN * more, ahead)
        # The next edge: up where work is done or waited for, down where service is counted.
        edge = max(usual, first - kept) - EDGE if counted else usual + EDGE
        factor = exp(-(edge - at) * unit / self.steep)
        when = self._reached(job, size, waited, factor, told=left is not None)
        self._due.pop(job.key, None)
        if when is not None:
            self._due[job.key] = now + when
            heappush(self._heap, (now + when, job.key))
        if len(self._heap) > 4 * len(self._due) + 64:
            self._heap[:] = [(at_s, key) for key, at_s in self._due.items()]
            heapify(self._heap)

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
        patience_s = self.patience * 2.0 ** max(lengths) if lengths else PATIENCE_S
        changed = patience_s != self._patience_s
        self._patience_s = patience_s
        return changed

    def _shape(self, job: Job) -> Shape:
        floor = max(job.least, ceil(self.share * job.gpus)) if job.elastic else job.gpus
        key = (id(job.curve), floor, job.gpus, job.most)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = Shape.of(
                job.curve,
                floor=floor,
                asked=job.gpus,
                most=job.most,
                width=WIDTH,
                first=self.first,
                own=self.own,
                turn=self.turn,
            )
        return shape

    # -- the plan ------------------------------------------------------------------------------

    def decide(self, view: View) -> list[Decision]:
        news = view.take_news()
        if self._view is not view:
            self.forget()
            self._view = view
            self._water = Water(view.capacity, WIDTH)
            self._scale = self.horizon_s * view.capacity
            news = list(view.jobs.values())
        water, now = self._water, view.now
        touched = {key: view.jobs[key] for key in self._asked if key in view.jobs}
        if self._longest(news):
            touched = dict(view.jobs)
        for job in news:
            if job.over:
                water.remove(job)
                self._due.pop(job.key, None)
                touched.pop(job.key, None)
            else:
                touched[job.key] = job
        heap, due = self._heap, self._due
        while heap and heap[0][0] <= now:
            when, key = heappop(heap)
            if due.get(key) == when:
                touched[key] = view.jobs[key]
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
        spilled = water.spill(SPILL)
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
                more.append(Start(key, target, f"{target} GPUs are worth most here now"))
            elif target < job.held:
                why = f"{job.held - target} of its GPUs speed others up by more"
                fewer.append(ScaleIn(key, target, why))
            elif self._worthwhile(job, target, view.now):
                why = f"{target - job.held} more GPUs speed it up by more than others"
                more.append(ScaleOut(key, target, why))
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
    """By the service that jobs have had, where nobody knows what they have left."""

    name = "wf-las"

    def __init__(
        self, *, share: float = 0.5, steep: float = 0.3, tilt: float = 0.05, own: float = 2.0
    ) -> None:
        super().__init__(share=share, steep=steep, tilt=tilt, own=own, told=False)
