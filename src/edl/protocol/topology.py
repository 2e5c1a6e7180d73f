"""Who is in a generation, in which order, and who carries how much of a batch.

Owns: Generation and the pure functions that draw the next one and split a batch. Holds: the
order of the stayers never changes, newcomers come last, and shares add up to the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from edl.errors import StoreError
from edl.types import Address, Gpu, Member, WorkerId

__all__ = [
    "Generation",
    "draw_again",
    "draw_first",
    "draw_next",
    "part_of",
    "read_generation",
    "split",
    "write_generation",
]


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
    token: int,
    request_id: str,
) -> Generation:
    """The generation after one adjustment. Its leader is the present one, or the first stayer."""
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
        # One sender only: two would halve each other's bandwidth.
        source=stayers[0].worker,
        leader=leader,
        founding=False,
        mended=False,
        token=token,
        request_id=request_id,
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
    )


def write_generation(generation: Generation) -> bytes:
    """A generation as the store keeps it: all that a leader needs who knew nothing of it."""
    fields = {
        "number": generation.number,
        "members": list(generation.workers()),
        "token": generation.token,
        "request_id": generation.request_id,
        "leader": generation.leader,
        "where": [
            [m.address.host, m.address.port, m.host, m.slot.host, m.slot.index, m.pid]
            for m in generation.members
        ],
    }
    return json.dumps(fields).encode()


def read_generation(value: bytes) -> Generation:
    """The inverse, for a leader that takes over after a failure."""
    try:
        fields = json.loads(value)
        members = tuple(
            Member(
                worker=WorkerId(name),
                address=Address(where[0], where[1]),
                host=where[2],
                slot=Gpu(where[3], where[4]),
                pid=where[5],
            )
            for name, where in zip(fields["members"], fields["where"], strict=True)
        )
        return Generation(
            number=int(fields["number"]),
            members=members,
            newcomers=(),
            source=members[0].worker,
            leader=WorkerId(fields["leader"]),
            founding=False,
            mended=True,
            token=int(fields["token"]),
            request_id=str(fields["request_id"]),
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(f"the generation's key holds {value[:80]!r}, not a generation") from error


def split(total: int, parts: int) -> tuple[int, ...]:
    """Shares that add up to `total`: as even as can be, the larger ones first.

    Nobody gets a single sample where two can be had: BatchNorm cannot train on one row, so a
    small last batch goes to fewer workers and the others have no share in it.
    """
    return tuple(part_of(total, parts, index)[1] for index in range(parts))


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
