"""What can happen to a worker's machines. Past tense: each says what was, not what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.protocol.messages import Message
from edl.protocol.record import StepRecord
from edl.types import WorkerId

__all__ = [
    "Broke",
    "ContextReady",
    "Entered",
    "EntryMade",
    "Event",
    "GenerationSeen",
    "GroupFell",
    "GroupStands",
    "Heard",
    "JobOver",
    "KeyMade",
    "LeaderSeen",
    "Parted",
    "PeerClosed",
    "PeerOpened",
    "RoundJoined",
    "Settled",
    "StateSeen",
    "StepCommitted",
    "Swapped",
    "SwitchDecided",
    "Through",
    "Tick",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; drives timeouts alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSeen:
    """The store's leader key as it stands now."""

    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSeen:
    """The store's word on the job as a whole; empty while it runs."""

    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """The store's answer to a StoreSwap."""

    purpose: str
    done: bool
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOpened:
    peer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerClosed:
    peer: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    peer: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReady:
    """The training thread has its model and data and waits to be let in."""

    context_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyMade:
    """This worker's own rendezvous key for a group that is being built."""

    generation: int
    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryMade:
    """This worker's own entry for the rendezvous of one group; see `RendezvousEntry`."""

    generation: int
    group: str
    rank: int
    size: int
    key: str
    common: bytes
    parts: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStands:
    number: int
    build_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFell:
    """A group was not built. `unreached`: the members this worker could not connect to;
    `unproven`: those that did not prove the job's secret to it."""

    number: int
    why: str
    unreached: tuple[WorkerId, ...] = ()
    unproven: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """A step is committed on this worker. Only the leader's machines need every one of them."""

    step: int  # how many are committed now
    epoch: int
    epochs: int
    batch: int
    samples: int
    duration_s: float
    records: tuple[StepRecord, ...]
    report: dict[str, float]
    weights: Mapping[WorkerId, int] = field(default_factory=dict)  # of those without a full one


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchDecided:
    """The committed records say: the next step belongs to this generation (or to none)."""

    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A collective of this generation failed on the training thread, which waits now."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSeen:
    """The store's last recorded generation."""

    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The first step in a generation is committed on this worker."""

    generation: int
    step: int
    transfer_s: float
    transfer_bytes: int
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundJoined:
    """A newcomer's first round is complete: everybody has moved to its generation."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The first step with newcomers is committed here: this worker's state is the job's.

    What the step cost is told later, by Entered.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """Everybody has committed the first step of a generation that some stay in for that only.

    A leaver is answered with LetGo, unless the generation has fallen; until then nobody goes on
    without it.
    """

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """A leaver has let the others go on, as all leavers have, and is gone."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicasDiffer:
    """The training thread found replicas that differ, or has copied the state of one to others.

    `what` is the name of the event that is emitted.
    """

    what: str
    step: int
    subject: str
    workers: tuple[WorkerId, ...]
    policy: str
    why: str
    times: int = 0  # how often this was done; 0: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOver:
    """Everybody committed the last step: the closing record says so."""

    step: int


Event = (
    Tick
    | LeaderSeen
    | StateSeen
    | Swapped
    | PeerOpened
    | PeerClosed
    | Heard
    | ContextReady
    | KeyMade
    | EntryMade
    | GroupStands
    | GroupFell
    | StepCommitted
    | SwitchDecided
    | Broke
    | GenerationSeen
    | Entered
    | RoundJoined
    | Settled
    | Through
    | Parted
    | ReplicasDiffer
    | JobOver
)
