"""Uniform: each machine is shared evenly by its jobs.

The elastic strategy of the paper's synthetic workload. A new job goes to the machine with the
fewest jobs. If that has idle GPUs, all of its GPUs are shared out anew, as evenly as whole GPUs
can be. If it has none, the job is let in by compaction (R1 of Elastic-Tiresias) over the machine's
own jobs: with the number of GPUs by which the cluster gains most, taken where least is lost. Where
it gains nothing the next machine is asked, and then the job waits. GPUs that are idle on a machine
go to its jobs, to whoever has fewest first, unless they would make it slower. No job has fewer
than `share` of what its user asked for, and nobody is stopped.

A job that no machine can hold gets what its user asked for on idle machines, and stays as it is.
Where the view has no machines (`View.together`), the cluster is taken as one machine with all of
its GPUs.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from math import ceil

from edl.policy.base import Policy
from edl.policy.decisions import Decision, ScaleIn, ScaleOut, Start, Where
from edl.policy.placement import pack
from edl.policy.view import Job, View

__all__ = ["Uniform"]


class Uniform(Policy):
    name = "uniform"
    resizes = True
    places = True

    def __init__(self, *, share: float = 0.5) -> None:
        self.share = share

    def decide(self, view: View) -> list[Decision]:
        view.take_news()
        machines = self._machines(view)
        wide: list[Decision] = []
        for job in view.jobs.values():
            if job.held:
                continue
            if self._floor(job, machines[0].size) > machines[0].size:
                wide += self._start_wide(job, machines)
            else:
                self._let_in(job, machines)
        for machine in machines:
            machine.use_idle()
        return self._difference(view, machines) + wide

    def _floor(self, job: Job, size: int) -> int:
        if not job.elastic:
            return job.gpus
        return max(job.least, min(size, ceil(self.share * job.gpus)))

    def _machines(self, view: View) -> list[_Machine]:
        if not view.free_on:
            machine = _Machine(0, view.capacity)
            for job in view.jobs.values():
                if job.held:
                    machine.add(job, self._floor(job, machine.size), job.held)
            return [machine]
        size = view.gpus_per_node
        machines = [_Machine(node, size) for node in range(view.nodes)]
        for job in view.jobs.values():
            if len(job.where) == 1:
                machines[job.where[0][0]].add(job, self._floor(job, size), job.held)
            else:
                for node, count in job.where:
                    machines[node].reserve(count)
        return machines

    def _let_in(self, job: Job, machines: list[_Machine]) -> None:
        floor = self._floor(job, machines[0].size)
        roomy = [machine for machine in machines if floor <= machine.room]
        for machine in sorted(roomy, key=lambda machine: (machine.load, machine.number)):
            if machine.idle:
                machine.share_out(job, floor)
                return
            gpus = machine.compact(job, floor)
            if gpus:
                machine.add(job, floor, gpus)
                return

    @staticmethod
    def _start_wide(job: Job, machines: list[_Machine]) -> list[Decision]:
        found = pack([machine.idle for machine in machines], job.gpus, machines[0].size)
        if found is None:
            return []
        for node, count in found:
            machines[node].reserve(count)
        return [Start(job.key, job.gpus, "there are idle machines for it", found)]

    @staticmethod
    def _difference(view: View, machines: list[_Machine]) -> list[Decision]:
        fewer: list[Decision] = []
        more: list[Decision] = []
        starts: list[Decision] = []
        for machine in machines:
            many = len(machine.jobs)
            place = f"on machine {machine.number}" if view.free_on else "in the cluster"
            sharing = f"{many} jobs share" if many > 1 else "it is alone with"
            for key, gpus in machine.gpus.items():
                job = machine.jobs[key]
                where: Where = ((machine.number, gpus),) if view.free_on else ()
                if not job.held:
                    reason = f"fewest jobs were {place}: {sharing} {machine.size} GPUs"
                    starts.append(Start(key, gpus, reason, where))
                elif gpus < job.held:
                    reason = f"makes room for another {place}: {sharing} {machine.size} GPUs"
                    fewer.append(ScaleIn(key, gpus, reason, where))
                elif gpus > job.held:
                    reason = f"GPUs are idle {place}: {sharing} {machine.size} GPUs"
                    more.append(ScaleOut(key, gpus, reason, where))
        return fewer + more + starts


class _Machine:
    """One machine on paper: `gpus` by key of its jobs. `idle` is what nobody has, `room` what
    another job may have at most, `load` the number of jobs."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.idle = size
        self.room = size
        self.load = 0
        self.jobs: dict[int, Job] = {}
        self.floors: dict[int, int] = {}
        self.gpus: dict[int, int] = {}
        self._losses: list[tuple[float, int]] | None = None

    def reserve(self, gpus: int) -> None:
        """For a job on several machines."""
        self.idle -= gpus
        self.room -= gpus
        self.load += 1

    def add(self, job: Job, floor: int, gpus: int) -> None:
        self.jobs[job.key] = job
        self.floors[job.key] = floor
        self.room -= floor
        self.load += 1
        self._set(job.key, gpus)

    def _set(self, key: int, gpus: int) -> None:
        self.idle -= gpus - self.gpus.get(key, 0)
        self.gpus[key] = gpus
        self._losses = None

    def share_out(self, job: Job, floor: int) -> None:
        """Everybody's part anew, with this one."""
        self.add(job, floor, floor)
        for key, least in self.floors.items():
            self._set(key, least)
        self.use_idle()

    def use_idle(self) -> None:
        """Idle GPUs to whoever has fewest, as long as somebody gets no slower by them."""
        while self._use_idle():
            pass

    def _use_idle(self) -> bool:
        idle = self.idle
        if idle <= 0:
            return False
        wants = {
            key: limit
            for key, job in self.jobs.items()
            if (limit := self._fastest(job, self.gpus[key], self.size)) > self.gpus[key]
        }
        gpus = dict(self.gpus)
        while idle and wants:
            key = min(wants, key=lambda key: (gpus[key], key))
            gpus[key] += 1
            idle -= 1
            if gpus[key] == wants[key]:
                del wants[key]
        changed = False
        for key, most in gpus.items():
            best = self._fastest(self.jobs[key], self.gpus[key], most)
            if best != self.gpus[key]:
                self._set(key, best)
                changed = True
        return changed

    @staticmethod
    def _fastest(job: Job, least: int, most: int) -> int:
        """What makes it fastest; of equals the most, for that is no slower."""
        rate = job.curve.rate
        return max(range(least, max(least, min(most, job.most)) + 1), key=lambda p: (rate[p], p))

    def compact(self, job: Job, floor: int) -> int:
        """R1: take from the others what this one makes better use of, and say how many GPUs; 0:
        nobody gains. Of equal gains the one that takes fewest."""
        losses = self._losses = self._losses or self._find_losses()
        worth = job.curve.worth
        spent = sum(loss for loss, _ in losses[:floor])
        best, highest = 0, 0.0
        for p in range(floor, min(len(losses), job.gpus) + 1):
            if p > floor:
                spent += losses[p - 1][0]
            if worth[p] - spent > highest:
                best, highest = p, worth[p] - spent
        for _, key in losses[:best]:
            self._set(key, self.gpus[key] - 1)
        return best

    def _find_losses(self) -> list[tuple[float, int]]:
        """What each GPU is worth to the one that gives it, and who that is; the cheapest first."""
        found: list[tuple[float, int]] = []
        steps: dict[int, list[float]] = {}
        for key, job in self.jobs.items():
            if job.elastic:
                pieces = job.curve.hull(self.floors[key], self.floors[key] + 1, self.gpus[key])
                steps[key] = [
                    piece.slope for piece in pieces for _ in range(piece.end - piece.begin)
                ]
        heap = [(each[-1], key) for key, each in steps.items() if each]
        heapify(heap)
        while heap:
            found.append(heap[0])
            key = heap[0][1]
            steps[key].pop()
            if steps[key]:
                heapreplace(heap, (steps[key][-1], key))
            else:
                heappop(heap)
        return found
