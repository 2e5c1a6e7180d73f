"""What the members of a generation publish so that they find each other.

To build a group, each member publishes one value that all other members read. A message for each
pair would be n(n-1) messages through the leader, so the leader collects instead: one entry from
each member of a group, and, once it has them all, one table to each member.

An entry has a common part, the same for all readers, and one part for each rank. A table has the
common parts of all members, packed once for all tables of a group, and of the other parts only
those for the rank that it is sent to. To this module, parts are bytes without a meaning.

Owns: the entries and tables of one generation, and the keys that travel one by one. Invariants: a
table is complete or does not exist; an entry or a key that arrives twice counts once.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from edl.protocol.messages import RendezvousEntry, RendezvousKey, RendezvousTable
from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["Rendezvous", "pack", "rows_of", "unpack"]

# The fastest level: nearly all that can be saved is padding and repeated host names.
_LEVEL = 1
# The most that a packed table may grow to; a thousand members take a quarter of a megabyte.
_UNPACKED_MAX = 64 * 1024 * 1024
_SIZES = struct.Struct(">II")


def pack(commons: list[tuple[str, bytes]]) -> bytes:
    """Keys and common parts in rank order, as one compressed text."""
    pieces = []
    for key, common in commons:
        name = key.encode()
        pieces += [_SIZES.pack(len(name), len(common)), name, common]
    return zlib.compress(b"".join(pieces), _LEVEL)


def unpack(shared: bytes) -> list[tuple[str, bytes]]:
    """The opposite of `pack`; ValueError if these are not such bytes."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(shared, _UNPACKED_MAX)
        if not unpacker.eof:
            raise ValueError(f"it is cut off, or above {_UNPACKED_MAX} bytes")
        found, at = [], 0
        while at < len(plain):
            name_size, size = _SIZES.unpack_from(plain, at)
            start = at + _SIZES.size
            at = start + name_size + size
            if at > len(plain):
                raise ValueError("its last entry is cut off")
            name = plain[start : start + name_size].decode()
            found.append((name, plain[start + name_size : at]))
    except (zlib.error, struct.error, ValueError) as error:
        raise ValueError(f"a malformed rendezvous table of {len(shared)} bytes: {error}") from error
    return found


def rows_of(table: RendezvousTable) -> tuple[tuple[str, bytes, bytes], ...]:
    """For each rank: key, common part, and the part that is for the table's reader."""
    commons, size = unpack(table.shared), table.size
    width = len(table.parts) // max(1, size)
    if len(commons) != size or len(table.parts) != width * size:
        raise ValueError(
            f"a malformed rendezvous table: {len(commons)} entries and {len(table.parts)} bytes "
            f"of parts for a group of {size}"
        )
    parts = (table.parts[at * width : (at + 1) * width] for at in range(size))
    return tuple((key, common, part) for (key, common), part in zip(commons, parts, strict=True))


def _columns(rows: list[bytes]) -> list[bytes]:
    """Row i has rank i's parts for all ranks; column j has all ranks' parts for rank j."""
    size = len(rows)
    length = len(rows[0])
    width = length // size
    whole = b"".join(rows)
    columns = []
    for rank in range(size):
        column = bytearray(length)
        for offset in range(width):
            column[offset::width] = whole[rank * width + offset :: length]
        columns.append(bytes(column))
    return columns


@dataclass(slots=True)
class _Group:
    """One group of a generation, while its entries come in and after that."""

    size: int
    width: int  # bytes of one part
    entries: dict[int, RendezvousEntry] = field(default_factory=dict)
    tables: dict[WorkerId, RendezvousTable] = field(default_factory=dict)

    def add(self, entry: RendezvousEntry) -> bool:
        """True when this was the last entry."""
        if self.tables or entry.rank in self.entries:
            return False
        if entry.size != self.size or len(entry.parts) != self.width * self.size:
            return False
        self.entries[entry.rank] = entry
        if len(self.entries) < self.size:
            return False
        self._complete()
        return True

    def _complete(self) -> None:
        entries = [self.entries[rank] for rank in range(self.size)]
        shared = pack([(entry.key, entry.common) for entry in entries])
        columns = _columns([entry.parts for entry in entries])
        for entry, parts in zip(entries, columns, strict=True):
            self.tables[entry.worker] = RendezvousTable(
                generation=entry.generation,
                group=entry.group,
                rank=entry.rank,
                size=self.size,
                shared=shared,
                parts=parts,
            )
        self.entries.clear()


class Rendezvous:
    """The leader's record of what the members of one generation have published."""

    def __init__(self) -> None:
        self._keys: dict[str, RendezvousKey] = {}
        self._groups: dict[str, _Group] = {}

    def add_key(self, key: RendezvousKey) -> bool:
        """Keep a key that travels by itself; True if it is new."""
        if key.key in self._keys:
            return False
        self._keys[key.key] = key
        return True

    def add_entry(
        self, entry: RendezvousEntry, target: Generation
    ) -> dict[WorkerId, RendezvousTable]:
        """Keep one member's entry. The last one of its group makes a table for each member."""
        if entry.worker not in target or not 0 <= entry.rank < entry.size <= target.size:
            return {}
        group = self._groups.get(entry.group)
        if group is None:
            width = len(entry.parts) // entry.size
            group = self._groups[entry.group] = _Group(size=entry.size, width=width)
        return dict(group.tables) if group.add(entry) else {}

    def known_to(self, worker: WorkerId) -> list[RendezvousKey | RendezvousTable]:
        """All that this member may have missed: the keys of others, and its own tables."""
        keys = [key for key in self._keys.values() if key.worker != worker]
        tables = [group.tables[worker] for group in self._groups.values() if worker in group.tables]
        return [*keys, *tables]
