"""The generation as the store keeps it: all that a leader needs who knew nothing of the job.

Owns: the value behind the store's generation key, which is written by compare-and-swap only. Beside
the membership it carries the deeds, every adjustment whose generation was ever recorded and what
became of it. Holds: whoever reads it gives the same answers to those requests as whoever wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edl.errors import StoreError
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.protocol.topology import Generation
from edl.types import Address, Gpu, Member, WorkerId

__all__ = ["KEPT_DEEDS", "VALUE_BYTES", "Deed", "Recorded", "read_recorded", "write_recorded"]

# Requesters ask again within minutes; so many adjustments back is far longer ago.
KEPT_DEEDS = 64
# ZooKeeper refuses packets of 1 MB, etcd requests of 1.5 MB, in which a value has 4/3 of its size.
VALUE_BYTES = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One adjustment whose generation was recorded; `undone` says why it is not in force."""

    request_id: str
    kind: str
    joined: tuple[WorkerId, ...]
    left: tuple[WorkerId, ...]
    generation: int
    size: int
    undone: str

    def record(self) -> AdjustmentRecord:
        """The adjustment as its requester hears it from a leader that did not see it done."""
        return AdjustmentRecord(
            request_id=self.request_id,
            kind=self.kind,
            joined=self.joined,
            left=self.left,
            generation=self.generation,
            step=0,
            size=self.size,
            total_s=0.0,
            transfer_bytes=0,
            parts=Parts(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the store's generation key says."""

    generation: Generation
    deeds: tuple[Deed, ...]


def write_recorded(generation: Generation, deeds: Sequence[Deed]) -> bytes:
    """The value of the generation key, at most VALUE_BYTES with as many deeds as fit in.

    The latest deeds are kept, and in any case the last one and the generation's own, which the next
    leader may have to complete.
    """
    fields: dict[str, Any] = {
        "number": generation.number,
        "members": list(generation.workers()),
        "newcomers": list(generation.newcomers),
        "source": generation.source,
        "leader": generation.leader,
        "founding": generation.founding,
        "mended": generation.mended,
        "token": generation.token,
        "request_id": generation.request_id,
        "leaving": list(generation.leaving),
        "came": list(generation.came),
        "where": [
            [m.address.host, m.address.port, m.host, m.slot.host, m.slot.index, m.pid]
            for m in generation.members
        ],
    }
    room = VALUE_BYTES - len(json.dumps(fields))
    written: list[list[Any]] = []
    for index, deed in enumerate(reversed(deeds)):
        values = _values(deed)
        room -= len(json.dumps(values)) + len(", ")
        needed = index == 0 or deed.request_id == generation.request_id != ""
        if needed or (room >= 0 and index < KEPT_DEEDS):
            written.append(values)
    fields["deeds"] = written[::-1]
    return json.dumps(fields).encode()


def _values(deed: Deed) -> list[Any]:
    return [
        deed.request_id,
        deed.kind,
        list(deed.joined),
        list(deed.left),
        deed.generation,
        deed.size,
        deed.undone,
    ]


# The same value comes as a notification and as an answer, and again after each reconnection.
@lru_cache(maxsize=4)
def read_recorded(value: bytes) -> Recorded:
    """The inverse of `write_recorded`; a foreign value is the store's fault, not ours."""
    try:
        fields: dict[str, Any] = json.loads(value)
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
        generation = Generation(
            number=int(fields["number"]),
            members=members,
            newcomers=tuple(WorkerId(name) for name in fields["newcomers"]),
            source=WorkerId(fields["source"]),
            leader=WorkerId(fields["leader"]),
            founding=bool(fields["founding"]),
            mended=bool(fields["mended"]),
            token=int(fields["token"]),
            request_id=str(fields["request_id"]),
            leaving=tuple(WorkerId(name) for name in fields["leaving"]),
            came=tuple(WorkerId(name) for name in fields["came"]),
        )
        deeds = tuple(_deed(*values) for values in fields["deeds"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise StoreError(f"the generation's key holds {value[:80]!r}, not a generation") from error
    return Recorded(generation=generation, deeds=deeds)


def _deed(
    request_id: str,
    kind: str,
    joined: list[str],
    left: list[str],
    generation: int,
    size: int,
    undone: str,
) -> Deed:
    return Deed(
        request_id=request_id,
        kind=kind,
        joined=tuple(WorkerId(name) for name in joined),
        left=tuple(WorkerId(name) for name in left),
        generation=int(generation),
        size=int(size),
        undone=undone,
    )
