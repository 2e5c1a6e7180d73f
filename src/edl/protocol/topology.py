"""Who is in a generation, in which order, and who carries how much of a batch.

Owns: Generation and the pure functions that draw the next one and split a batch. Holds: the
order of the stayers never changes, newcomers come last, and shares add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edl.types import Member, WorkerId

__all__ = [
    "FULL",
    "Generation",
    "draw_again",
    "draw_first",
    "draw_next",
    "part_of",
    "split",
    "split_among",
    "weighed",
]

# The weight of a worker that carries as much as any other.
FULL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One membership of the job. The number is never used again, not even after an undo."""

    number: int
    members: tuple[Member, ...]
    newcomers: tuple[WorkerId, ...]  # they receive state from `source` when they enter
    source: WorkerId
    leader: WorkerId
    founding: bool  # the first one: its newcomers carry their share at once
    mended: bool  # made of survivors after a failure: they compare how far they are and go on
    token: int
    request_id: str
    # They carry its first step with the others, so that it takes no longer than any other, and go
    # after it: by rule, without a word. From then on the generation is `settled`.
    leaving: tuple[WorkerId, ...] = ()
    came: tuple[WorkerId, ...] = ()  # for whom they make room; without any they stay

    @property
    def size(self) -> int:
        return len(self.members)

    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(member.worker for member in self.members)

    def rank(self, worker: WorkerId) -> int:
        return self.workers().index(worker)

    def member(self, worker: WorkerId) -> Member:
        return self.members[self.rank(worker)]

    def __contains__(self, worker: object) -> bool:
        return any(member.worker == worker for member in self.members)

    def carriers(self, *, entering: bool) -> tuple[WorkerId, ...]:
        """Who carries a share. Newcomers enter their first step with weight zero."""
        if not entering or self.founding:
            return self.workers()
        new = set(self.newcomers)
        return tuple(worker for worker in self.workers() if worker not in new)

    def elders(self) -> tuple[WorkerId, ...]:
        """Who was there before, if others are new; they alone have gradients in the first step."""
        return self.carriers(entering=True) if self.newcomers and not self.founding else ()

    def settled(self) -> Generation:
        """The same generation after its first step: who was leaving is gone, and nobody is new."""
        if not self.leaving:
            return self
        stay = tuple(member for member in self.members if member.worker not in self.leaving)
        workers = [member.worker for member in stay]
        return replace(
            self,
            members=stay,
            newcomers=(),
            source=self.source if self.source in workers else workers[0],
            leader=self.leader if self.leader in workers else workers[0],
            leaving=(),
            came=(),
        )


def draw_first(
    members: Iterable[Member], *, number: int, leader: WorkerId, token: int
) -> Generation:
    """The founding generation: everybody takes the leader's state, so unseeded scripts work."""
    # By name, whoever leads: rank 0 is then the worker that an operator expects.
    ordered = sorted(members, key=lambda m: _natural(m.worker))
    return Generation(
        number=number,
        members=tuple(ordered),
        newcomers=tuple(m.worker for m in ordered if m.worker != leader),
        source=leader,
        leader=leader,
        founding=True,
        mended=False,
        token=token,
        request_id="",
    )


def draw_next(
    current: Generation,
    *,
    number: int,
    joiners: Iterable[Member],
    leavers: Iterable[WorkerId],
    leaving: tuple[WorkerId, ...] = (),
    token: int,
    request_id: str,
) -> Generation:
    """The generation after one adjustment. Its leader is the present one, or the first stayer.

    Whoever is `leaving` is in it for its first step, and leads it if it leads now.
    """
    gone = set(leavers)
    stayers = [member for member in current.members if member.worker not in gone]
    if not stayers:
        raise ValueError("a generation needs at least one worker that stays")
    arriving = sorted(joiners, key=lambda m: _natural(m.worker))
    leader = current.leader if current.leader not in gone else stayers[0].worker
    return Generation(
        number=number,
        members=(*stayers, *arriving),
        newcomers=tuple(m.worker for m in arriving),
        # One sender only: two would halve each other's bandwidth. One that stays, if any does.
        source=next((m.worker for m in stayers if m.worker not in leaving), stayers[0].worker),
        leader=leader,
        founding=False,
        mended=False,
        token=token,
        request_id=request_id,
        leaving=leaving,
        came=tuple(m.worker for m in arriving) if leaving else (),
    )


def draw_again(
    base: Generation, *, number: int, dead: Iterable[WorkerId], leader: WorkerId, token: int
) -> Generation:
    """What is left of a generation after a failure. Everybody in it carries a share at once."""
    lost = set(dead)
    members = tuple(member for member in base.members if member.worker not in lost)
    if not members:
        raise ValueError("nobody is left of this generation")
    workers = [member.worker for member in members]
    came = tuple(worker for worker in base.came if worker in workers)
    return Generation(
        number=number,
        members=members,
        newcomers=(),
        source=workers[0],
        leader=leader if leader in workers else workers[0],
        founding=False,
        mended=True,
        token=token,
        request_id=base.request_id,
        # Where nobody is left to take their places they stay.
        leaving=tuple(worker for worker in base.leaving if worker in workers) if came else (),
        came=came,
    )


def split(total: int, parts: int) -> tuple[int, ...]:
    """Shares that add up to `total`: as even as can be, the larger ones first.

    Nobody gets a single sample where two can be had: BatchNorm cannot train on one row, so a
    small last batch goes to fewer workers and the others have no share in it.
    """
    return tuple(part_of(total, parts, index)[1] for index in range(parts))


def split_among(
    total: int, carriers: Sequence[WorkerId], weights: Sequence[tuple[WorkerId, int]]
) -> tuple[int, ...]:
    """`split`, but whoever has a weight of its own gets so many thousandths of a full share.

    The one place that knows of weights. What cannot be divided goes to the largest remainders.
    """
    if not weights:
        return split(total, len(carriers))
    known = dict(weights)
    carrying = min(len(carriers), max(1, total // 2))
    parts = [known.get(worker, FULL) for worker in carriers[:carrying]]
    whole = sum(parts)
    shares = [total * part // whole for part in parts]
    by_rest = sorted(range(carrying), key=lambda i: (-(total * parts[i] % whole), i))
    for index in by_rest[: total - sum(shares)]:
        shares[index] += 1
    for index in range(carrying):
        while shares[index] < 2 <= total // carrying:
            shares[shares.index(max(shares))] -= 1
            shares[index] += 1
    return (*shares, *([0] * (len(carriers) - carrying)))


def part_of(total: int, parts: int, index: int) -> tuple[int, int]:
    """Where the share of one part begins, and how large it is: `split`, for one of many."""
    carrying = min(parts, max(1, total // 2))
    if index >= carrying:
        return total, 0
    base, extra = divmod(total, carrying)
    return index * base + min(index, extra), base + (1 if index < extra else 0)


def _natural(worker: WorkerId) -> tuple[int, str]:
    # w10 after w9: by length first, then by text.
    return (len(worker), worker)


def weighed(
    weights: Sequence[tuple[WorkerId, int]], worker: WorkerId, weight: int
) -> tuple[tuple[WorkerId, int], ...]:
    """The weights with this one changed; a full one is not listed."""
    known = {**dict(weights), worker: weight}
    return tuple((name, part) for name, part in sorted(known.items()) if part != FULL)
