"""What a machine may ask of its shell. A shell does exactly this and reports back by events."""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.messages import Happened, Message
from edl.protocol.topology import Generation
from edl.types import Address

__all__ = [
    "Announce",
    "Begin",
    "BreakGroup",
    "BuildGroup",
    "Close",
    "Dial",
    "Dismiss",
    "DropGroup",
    "Effect",
    "LetGo",
    "MayGo",
    "OfferKey",
    "OfferTable",
    "Publish",
    "Send",
    "StoreSwap",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Send a message over one connection."""

    peer: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Dial:
    """Open a connection; answered by PeerOpened or PeerClosed with the same number."""

    peer: int
    address: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close a connection after what was sent."""

    peer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSwap:
    """Compare and swap in the store; answered by Swapped with the same purpose."""

    purpose: str
    key: str
    expected: int
    value: bytes | None
    leased: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildGroup:
    """Build the collective groups of a generation beside the present ones."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup:
    """Forget a generation's groups, built or half built."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakGroup:
    """Make everything under way in this generation's groups fail, now."""

    number: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferKey:
    """Another member's rendezvous key for a group that is being built."""

    generation: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferTable:
    """All members' entries for one group that is being built, as this member's rank needs them.

    `entries` holds for each rank: key, common part, and the part that is for this member.
    """

    generation: int
    rank: int
    size: int
    entries: tuple[tuple[str, bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Put this announcement in every step record from now on; generation 0: none."""

    generation: int
    switch_step: int
    token: int
    weighing: int = 0  # and this change of shares, as `record.Weighing` packs it


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Let the training thread enter a generation it has waited for."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """This worker is not wanted (any more); its script ends with status 0, or fails.

    `over`: because the whole job is, so that whoever waits in the closing round has passed it.
    `retire`: the others cannot go on while this worker leads, so it stops leading now, however long
    its script takes to notice.
    """

    why: str
    failed: bool
    over: bool = False
    retire: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """This worker will claim nothing of the job any more: it may let the others go on without it.

    Said before anything that lets them; so a leaver that still could lead is one that all need.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MayGo:
    """Nothing keeps this process any more: what it knew is in other hands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """Something an operator would tell a colleague."""

    happened: Happened


Effect = (
    Send
    | Dial
    | Close
    | StoreSwap
    | BuildGroup
    | DropGroup
    | BreakGroup
    | OfferKey
    | OfferTable
    | Announce
    | Begin
    | Dismiss
    | LetGo
    | MayGo
    | Publish
)
