"""Elastic-Tiresias: Tiresias with two rules more, which use that jobs can be resized.

R1, compaction: if more than `crowd` jobs wait, running jobs outside the first queue give GPUs up,
never below `share` of what their users asked for, and waiting jobs start on them, where the
cluster gains by it. R2, expansion: if nobody waits and GPUs are idle, they go one by one to
whoever gains most speed by one. Both are worked out from Tiresias' plan by what users asked for,
and only the difference to what runs is carried out. Jobs that are not elastic have exactly what
was asked for, or nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter

from edl.policy.decisions import Decision, ScaleIn, ScaleOut, Start
from edl.policy.donors import released, together
from edl.policy.kinds import Kinds
from edl.policy.queues import Queues
from edl.policy.tiresias import QUANTA, Tiresias
from edl.policy.view import Job, View

__all__ = ["ElasticTiresias"]

KIND = attrgetter("kind")


class Plan:
    """Tiresias' plan on paper, and what the two rules make of it.

    `level` says how many GPUs a running job of each kind has, `targets` those of some jobs of it.
    """

    __slots__ = (
        "demoted", "free", "fresh", "level", "passed", "rest", "safe", "started", "targets"
    )  # fmt: skip

    def __init__(self, free: int, demoted: set[int]) -> None:
        self.free = free
        self.safe: list[Job] = []  # run as users asked for, in the first queue
        self.rest: list[Job] = []  # in others
        self.passed: list[list[Job]] = []  # by queue: run, but not in this plan
        self.started: set[int] = set()  # wait, but run in this plan
        self.demoted = demoted
        self.level: dict[int, int] = {}
        self.targets: dict[int, int] = {}
        self.fresh: list[Start] = []  # waiting jobs that compaction starts


class ElasticTiresias(Tiresias):
    name = "elastic-tiresias"
    resizes = True

    def __init__(
        self,
        *,
        quanta: tuple[float, ...] = QUANTA,
        knob: float = 0.0,
        crowd: int = 10,
        share: float = 0.5,
    ) -> None:
        super().__init__(quanta=quanta, knob=knob)
        self.crowd = crowd
        self.share = share
        self.forget()

    def forget(self) -> None:
        self.kinds = Kinds(self.share)
        self.queues = Queues(self.quanta, self.knob, self.kinds)

    def decide(self, view: View) -> list[Decision]:
        self.queues.update(view)
        decisions, demoted = self._requeue(view)
        plan = self._paper(view, demoted)
        waiting = len(view.jobs) - len(plan.safe) - len(plan.rest)
        why = "as its user asked for"
        if waiting > self.crowd:
            why = f"compaction: {waiting} jobs wait"
            self._compact(plan, view, why)
        elif not waiting and plan.free:
            why = f"expansion: nobody waits, {plan.free} GPUs are left over"
            self._expand(plan)
        decisions += self._difference(plan, waiting > self.crowd, why)
        return decisions

    # -- Tiresias' plan by what users asked for ------------------------------------------------

    def _paper(self, view: View, demoted: dict[int, list[Job]]) -> Plan:
        queues = self.queues
        plan = Plan(view.capacity, {job.key for jobs in demoted.values() for job in jobs})
        for queue, running in enumerate(queues.running):
            runs = plan.rest if queue else plan.safe
            passed: list[Job] = []
            plan.passed.append(passed)
            asked = queues.asked[queue]
            if asked <= plan.free and not plan.demoted:
                plan.free -= asked
                runs += running.values()
            else:
                plan.free = self._scan(
                    [job for job in running.values() if job.key not in plan.demoted],
                    plan.free,
                    runs,
                    passed,
                )
            for key, gpus in queues.fitting(queue, plan.free):
                runs.append(view.jobs[key])
                plan.started.add(key)
                plan.free -= gpus
            if queue in demoted:
                plan.free = self._scan(demoted[queue], plan.free, runs, passed)
        return plan

    @staticmethod
    def _scan(jobs: list[Job], free: int, runs: list[Job], passed: list[Job]) -> int:
        for job in jobs:
            gpus = job.gpus
            if gpus <= free:
                free -= gpus
                runs.append(job)
            else:
                passed.append(job)
        return free

    # -- R1 ------------------------------------------------------------------------------------

    def _compact(self, plan: Plan, view: View, why: str) -> None:
        kinds = self.kinds
        donors = Counter(map(KIND, plan.rest))
        units = [0.0] * plan.free
        for loss, number in kinds.ladder_down:
            if number in donors:
                units += [loss] * donors[number]
        if units:
            taken = self._start_waiting(plan, view, units, why)
            self._take(taken - plan.free, plan, donors, view)

    def _start_waiting(self, plan: Plan, view: View, units: list[float], why: str) -> int:
        """Whoever the cluster gains by, in order; how many of the units were given away."""
        sums = [0.0, *accumulate(units)]
        at, end = 0, len(units)
        kinds = self.kinds.all
        for job in self._in_order(plan, view):
            kind = kinds[job.kind]
            left = end - at
            if kind.floor > left:
                if not left:
                    break
                continue
            spent, held = sums[at], job.held
            worth = kind.curve.worth
            if 0 < held <= min(left, kind.gpus) and worth[held] > sums[at + held] - spent:
                # It waits on paper only: what it has been started with is not changed any more.
                plan.targets[job.key] = held
                at += held
                continue
            best, gain = 0, 0.0
            for p in kind.offers:
                if p <= left and worth[p] - sums[at + p] + spent > gain:
                    best, gain = p, worth[p] - sums[at + p] + spent
            if best:
                at += best
                if job.held:
                    plan.targets[job.key] = best
                else:
                    plan.fresh.append(Start(job.key, best, why))
        return at

    def _in_order(self, plan: Plan, view: View) -> Iterator[Job]:
        """Those not in the plan, by queue: those that run, that wait, that were just demoted."""
        jobs = view.jobs
        for waiting, passed in zip(self.queues.waiting, plan.passed, strict=True):
            yield from (job for job in passed if job.key not in plan.demoted)
            if plan.started:
                yield from (jobs[entry[2]] for entry in waiting if entry[2] not in plan.started)
            else:
                yield from (jobs[entry[2]] for entry in waiting)
            if plan.demoted:
                yield from (job for job in passed if job.key in plan.demoted)

    def _take(self, units: int, plan: Plan, donors: Counter[int], view: View) -> None:
        """So many GPUs from those that lose least by it; of equals, from whoever has fewest, and
        where machines matter from those who make room on one."""
        kinds = self.kinds
        deep: dict[int, int] = {}
        some: dict[int, int] = {}
        for _, number in kinds.ladder_down:
            if units <= 0:
                break
            count = donors.get(number, 0)
            if not count:
                continue
            if count <= units:
                deep[number] = deep.get(number, 0) + 1
            else:
                some[number] = units
            units -= count
        for number, depth in deep.items():
            plan.level[number] = kinds.all[number].gpus - depth
        for number, count in some.items():
            gpus = kinds.all[number].gpus - deep.get(number, 0) - 1
            alike = [job for job in plan.rest if job.kind == number]
            alike.sort(key=lambda job: job.held or job.gpus)
            if view.free_on:
                free_on = self._idle_anyhow(plan, view, number)
                alike = together(alike, count, gpus, free_on, self._starts(plan))
            plan.targets.update((job.key, gpus) for job in alike[:count])

    @staticmethod
    def _starts(plan: Plan) -> list[int]:
        """With how many GPUs others begin, in the order in which they get their places."""
        begun = [job.gpus for job in (*plan.safe, *plan.rest) if job.key in plan.started]
        return begun + [start.gpus for start in plan.fresh]

    @staticmethod
    def _idle_anyhow(plan: Plan, view: View, besides: int) -> list[int]:
        """By machine, when all have given up what they do, but for those of one kind."""
        free_on = list(view.free_on)
        changes = [(job, plan.targets.get(job.key, 0)) for jobs in plan.passed for job in jobs]
        level = plan.level
        changes += [(job, level[job.kind]) for job in plan.rest if job.kind in level]
        for job, target in changes:
            if target < job.held and job.kind != besides:
                for node, count in released(job, target):
                    free_on[node] += count
        return free_on

    # -- R2 ------------------------------------------------------------------------------------

    def _expand(self, plan: Plan) -> None:
        kinds = self.kinds
        members = Counter(map(KIND, plan.safe))
        members.update(map(KIND, plan.rest))
        free, split = plan.free, set()
        level = {number: kinds.all[number].gpus for number in members}
        for _, number, gpus in kinds.ladder_up:
            count = members.get(number, 0)
            if not count or number in split:
                continue
            if count * gpus <= free:
                level[number] += gpus
                free -= count * gpus
            else:
                split.add(number)
                alike = [job for job in (*plan.safe, *plan.rest) if job.kind == number]
                # Of equals, whoever has them already.
                alike.sort(key=lambda job: -job.held)
                most = level[number] + gpus
                plan.targets.update((job.key, most) for job in alike[: free // gpus])
                free %= gpus
            if not free:
                break
        plan.level = level

    # -- the difference ------------------------------------------------------------------------

    def _difference(self, plan: Plan, compact: bool, why: str) -> list[Decision]:
        stops: list[Decision] = []
        fewer: list[Decision] = []
        more: list[Decision] = []
        level, targets = plan.level, plan.targets
        for jobs in (plan.safe, plan.rest):
            if compact and jobs is plan.safe:
                # Nothing is taken from the first queue.
                level = {}
            for job in jobs:
                target = level.get(job.kind, job.gpus)
                if job.key in targets:
                    target = targets[job.key]
                if target != job.held:
                    self._change(job, target, why, fewer, more)
            level = plan.level
        for jobs in plan.passed:
            for job in jobs:
                target = targets.get(job.key, 0)
                if not target:
                    stops.append(self._preempt(job))
                elif target != job.held:
                    self._change(job, target, why, fewer, more)
        return stops + fewer + more + plan.fresh

    @staticmethod
    def _change(
        job: Job, target: int, why: str, fewer: list[Decision], more: list[Decision]
    ) -> None:
        if not job.held:
            more.append(Start(job.key, target, why))
        elif target < job.held:
            fewer.append(ScaleIn(job.key, target, why))
        else:
            more.append(ScaleOut(job.key, target, why))
