"""The layout of what Gloo publishes for one rank, as far as the rendezvous needs it.

Gloo's full mesh has each rank publish one value of 154 + 8n bytes for n ranks: the length of the
host name (8 bytes), the host name, the length of the address (8), the address, and for each rank
an identifier of the pair (8). The reader with rank r uses the name, the address and identifier r
only. So a value has a common part, everything before the identifiers, and one part for each rank.
A value of another layout is all common, which is right as well, only larger.
"""

from __future__ import annotations

import struct

__all__ = ["IDENTIFIER_BYTES", "group_and_rank", "own_key", "split"]

IDENTIFIER_BYTES = 8
_LENGTH = struct.Struct("=Q")


def own_key(group: str, rank: int) -> str:
    """The key under which each rank of a group publishes its value, once."""
    return f"{group}/0/{rank}"


def group_and_rank(key: str) -> tuple[str, int] | None:
    """Whose value a key is of; None for a key of another form."""
    group, _, rest = key.partition("/")
    context, _, rank = rest.partition("/")
    if not (group and context.isdecimal() and rank.isdecimal()):
        return None
    return group, int(rank)


def split(value: bytes, size: int) -> tuple[bytes, bytes]:
    """A value's common part, and the identifiers for all ranks; these are empty if unknown."""
    address_at = _after(value, 0)
    end = _after(value, address_at) if address_at else 0
    if not end or len(value) - end != IDENTIFIER_BYTES * size:
        return value, b""
    return value[:end], value[end:]


def _after(value: bytes, at: int) -> int:
    """Where the field ends that begins with its length at this offset; 0 if it cannot be one."""
    if at + _LENGTH.size > len(value):
        return 0
    (length,) = _LENGTH.unpack_from(value, at)
    end: int = at + _LENGTH.size + length
    return end if end <= len(value) else 0
