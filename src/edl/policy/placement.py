"""Which GPUs: where on the machines of a cluster a job's GPUs lie, and how they lie together.

GPUs of one machine talk faster than those of two, so a job is packed on as few machines as hold
it, and where several would do, on the one with the fewest GPUs left (best fit), which keeps whole
machines idle for those that need them. All functions are pure: `free_on` counts idle GPUs by
machine and is never changed; `Where` is (machine, GPUs) pairs by number of the machine. None:
there is no such place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from edl.policy.decisions import Where

__all__ = ["gather", "grow", "machines_for", "make_room", "pack", "shrink"]

Moves = list[tuple[int, Where]]
# Machines looked at for room. Those with the most idle GPUs come first; if none of them can be
# cleared, a crowded one hardly can.
TRIES = 8


def machines_for(gpus: int, gpus_per_node: int) -> int:
    """As few as hold so many."""
    return -(-gpus // gpus_per_node)


def pack(free_on: Sequence[int], gpus: int, gpus_per_node: int) -> Where | None:
    """Consolidated: up to a machine's GPUs on one machine; more on machines of their own and the
    rest on one other."""
    if gpus <= gpus_per_node:
        node = _best_fit(free_on, gpus)
        return None if node is None else ((node, gpus),)
    whole, rest = divmod(gpus, gpus_per_node)
    idle = [node for node, free in enumerate(free_on) if free == gpus_per_node][:whole]
    if len(idle) < whole:
        return None
    counts = dict.fromkeys(idle, gpus_per_node)
    if rest:
        node = _best_fit(free_on, rest, besides=counts)
        if node is None:
            return None
        counts[node] = rest
    return _where(counts)


def gather(free_on: Sequence[int], gpus: int, machines: int) -> Where | None:
    """On at most so many machines, however the parts are: as few as can be."""
    counts: dict[int, int] = {}
    order = sorted(range(len(free_on)), key=lambda node: (-free_on[node], node))
    for node in order[:machines]:
        if free_on[node] >= gpus:
            last = _best_fit(free_on, gpus, besides=counts)
            counts[node if last is None else last] = gpus
            return _where(counts)
        if not free_on[node]:
            return None
        counts[node] = free_on[node]
        gpus -= free_on[node]
    return None


def grow(
    free_on: Sequence[int], where: Where, more: int, gpus_per_node: int, *, spread: bool = False
) -> Where | None:
    """So many more: on machines that it uses, then on others, if they are no more in all than hold
    that many GPUs; with `spread` on however many."""
    counts = dict(where)
    total = sum(counts.values()) + more
    for node in sorted(counts, key=lambda node: (-counts[node], node)):
        taken = min(more, free_on[node])
        counts[node] += taken
        more -= taken
    if more:
        others = [0 if node in counts else free for node, free in enumerate(free_on)]
        allowed = machines_for(total, gpus_per_node) - len(counts)
        found = gather(others, more, len(others) if spread else max(0, allowed))
        if found is None:
            return None
        counts.update(found)
    return _where(counts)


def shrink(where: Where, fewer: int) -> Where:
    """So many fewer: from the machine where it has fewest, so that it lies on fewer machines."""
    counts = dict(where)
    for node in sorted(counts, key=lambda node: (counts[node], -node)):
        taken = min(fewer, counts[node])
        counts[node] -= taken
        fewer -= taken
    assert not fewer, (where, fewer)
    return _where(counts)


def make_room(
    free_on: Sequence[int],
    gpus: int,
    gpus_per_node: int,
    movable: Mapping[int, Where],
    *,
    moves: int = 2,
) -> Moves | None:
    """Which jobs to move where, in this order, so that so many GPUs can be packed; at most `moves`,
    those with fewest GPUs first. Jobs on several machines stay."""
    there: dict[int, list[tuple[int, int]]] = {}
    for key, where in movable.items():
        if len(where) == 1:
            node, count = where[0]
            there.setdefault(node, []).append((count, key))
    order = sorted(range(len(free_on)), key=lambda node: (-free_on[node], node))
    if gpus > gpus_per_node:
        nodes = order[: gpus // gpus_per_node]
        group = [mover for node in nodes for mover in there.get(node, ())]
        found = _move(free_on, nodes, group) if len(group) <= moves else None
        return found if found and _makes(free_on, found, movable, gpus, gpus_per_node) else None
    for node in [node for node in order if node in there][:TRIES]:
        need = gpus - free_on[node]
        movers = sorted(there[node])
        for size in range(1, moves + 1):
            for few in combinations(movers, size):
                if sum(count for count, _ in few) >= need:
                    found = _move(free_on, [node], few)
                    if found is not None:
                        return found
    return None


def _move(
    free_on: Sequence[int],
    away_from: Iterable[int],
    group: Iterable[tuple[int, int]],
) -> Moves | None:
    """Each of the group to another machine, the largest first, for it finds a place less easily."""
    left = list(free_on)
    for node in away_from:
        left[node] = 0
    found: Moves = []
    for count, key in sorted(group, key=lambda mover: (-mover[0], mover[1])):
        place = _best_fit(left, count)
        if place is None:
            return None
        left[place] -= count
        found.append((key, ((place, count),)))
    return found


def _makes(
    free_on: Sequence[int],
    found: Moves,
    movable: Mapping[int, Where],
    gpus: int,
    gpus_per_node: int,
) -> bool:
    left = list(free_on)
    for key, where in found:
        for node, count in movable[key]:
            left[node] += count
        for node, count in where:
            left[node] -= count
    return pack(left, gpus, gpus_per_node) is not None


def _best_fit(free_on: Sequence[int], gpus: int, besides: Collection[int] = ()) -> int | None:
    best, fewest = None, 0
    for node, free in enumerate(free_on):
        if free >= gpus and (best is None or free < fewest) and node not in besides:
            best, fewest = node, free
    return best


def _where(counts: Mapping[int, int]) -> Where:
    return tuple((node, counts[node]) for node in sorted(counts) if counts[node])
