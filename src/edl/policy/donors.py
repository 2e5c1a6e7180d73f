"""Who of several that would lose alike gives GPUs up, where it matters on which machines they lie.

What is taken is for jobs that are about to start, and whose GPUs are to lie together. So those give
that make whole places: for each start in turn, on the machine where fewest have to give. The order
in which they were handed in decides between equals. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from edl.policy.decisions import Where
from edl.policy.placement import shrink
from edl.policy.view import Job

__all__ = ["released", "together"]


def released(job: Job, target: int) -> Where:
    """Which of its GPUs fall free if it shrinks to so many."""
    kept = dict(shrink(job.where, job.held - target)) if target else {}
    return tuple((node, count - kept.get(node, 0)) for node, count in job.where)


def together(
    alike: Sequence[Job], count: int, target: int, free_on: Sequence[int], starts: Iterable[int]
) -> list[Job]:
    """`count` of those that are alike, to shrink to `target`. `free_on` are the GPUs that are idle
    then anyhow, by machine; `starts` the numbers that are to find a place each."""
    room = list(free_on)
    # Whoever has no more than that is not changed.
    chosen = [job for job in alike if 0 < job.held <= target][:count]
    by_node: dict[int, list[Job]] = {}
    for job in alike:
        if job.held > target:
            # The first that it gives are on one machine, where it has fewest.
            node = max(released(job, target), key=lambda part: part[1])[0]
            by_node.setdefault(node, []).append(job)

    def give(node: int, number: int) -> None:
        for job in by_node[node][:number]:
            chosen.append(job)
            for at, gpus in released(job, target):
                room[at] += gpus
        del by_node[node][:number]
        if not by_node[node]:
            del by_node[node]

    for gpus in starts:
        place = _roomy(room, gpus)
        if place is None:
            need, place = min(
                ((_needed(jobs, target, gpus - room[at]), at) for at, jobs in by_node.items()),
                default=(count + 1, 0),
            )
            if need > count - len(chosen):
                continue
            give(place, need)
        room[place] -= gpus
    while len(chosen) < count and by_node:
        give(max(by_node, key=lambda at: (room[at], -at)), 1)
    # Those that are about to start themselves hold no place yet, and come last.
    return [*chosen, *(job for job in alike if not job.held)][:count]


def _roomy(room: Sequence[int], gpus: int) -> int | None:
    """The machine with fewest idle GPUs of those that suffice."""
    fitting = [node for node, idle in enumerate(room) if idle >= gpus]
    return min(fitting, key=lambda node: (room[node], node), default=None)


def _needed(jobs: Sequence[Job], target: int, gpus: int) -> int:
    """How many of them must give, for so many GPUs; more than there are if that is not enough."""
    for number, job in enumerate(jobs, 1):
        gpus -= max(count for _, count in released(job, target))
        if gpus <= 0:
            return number
    return 1 << 30
