"""What travels between processes, in the order of a job's life; `asking.py` has the requests.

Plain values. Every one carries a `request_id` or a `generation`, so that a stale one is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.asking import (
    REQUESTS,
    Accepted,
    Adjusted,
    AskStatus,
    Events,
    Finished,
    Joiner,
    Migrate,
    NotLeader,
    ProcessEnded,
    Refusal,
    Retry,
    ScaleIn,
    ScaleOut,
    Status,
    StopJob,
    Subscribe,
    Undone,
    Withdraw,
)
from edl.protocol.recorded import Deed
from edl.protocol.tale import (
    AdjustmentRecord,
    AdjustmentStatus,
    Happened,
    OpenSwitch,
    Parts,
    WorkerStatus,
)
from edl.protocol.topology import Generation
from edl.types import Member, WorkerId

# -- a worker arrives ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A new worker's background thread has found the leader."""

    member: Member
    request_id: str  # the scale-out it belongs to; empty for the founders
    process_start_s: float
    last: int  # the highest generation that it has heard of


@dataclass(frozen=True, slots=True, kw_only=True)
class Hail:
    """A worker of this generation says hello to a leader it was not connected to."""

    worker: WorkerId
    generation: int
    last: int  # the highest one that it has heard of, so that no number is used twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """This worker is not expected. `finished`: because the job is over, which is no fault."""

    request_id: str
    reason: str
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A new worker has prepared its context: imports, model, data."""

    worker: WorkerId
    request_id: str
    context_s: float


# -- somebody may be lost --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A worker's collectives broke: its training thread waits for the next generation."""

    generation: int
    worker: WorkerId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fell:
    """Generations up to this number are dead; everyone breaks its own sockets of them.

    `out`: the next generation is made without the receiver, because of `why`.
    """

    generation: int
    why: str
    out: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Out:
    """This worker is in no generation any more: it was lost, and the job went on without it."""

    generation: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Slow is not dead: whoever answers this is alive, whatever its script does."""

    generation: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    generation: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """From a worker's watchdog: the process runs, though its agent does not get to answer pings."""

    worker: WorkerId
    generation: int  # 0: a watchdog knows of none


# -- a generation is made --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Build this generation's groups beside the present ones."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousKey:
    """One key of a group's rendezvous, relayed by the leader to the other members."""

    generation: int
    worker: WorkerId
    key: str
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousEntry:
    """What one member publishes for a group; the leader collects the entries of all members.

    `parts` holds one part for each rank of the group, in rank order and of equal length; empty
    where the whole value is common to all readers.
    """

    generation: int
    worker: WorkerId
    group: str
    rank: int
    size: int
    key: str
    common: bytes
    parts: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousTable:
    """The entries of all members of a group, as the member of one rank needs them.

    `shared` holds the keys and common parts, packed by `rendezvous.pack`; `parts` holds, in rank
    order, the part of each member's entry that is for `rank`.
    """

    generation: int
    group: str
    rank: int
    size: int
    shared: bytes
    parts: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBuilt:
    generation: int
    worker: WorkerId
    build_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFailed:
    """A group was not built here. `unreached`: the members `worker` could not connect to;
    `unproven`: those that did not prove the job's secret to it."""

    generation: int
    worker: WorkerId
    why: str
    unreached: tuple[WorkerId, ...] = ()
    unproven: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """A prepared generation will not be. `finished`: because the job is over."""

    generation: int
    request_id: str
    why: str
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Founded:
    """The founding generation is in the store: training may begin."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Switched:
    """A worker has committed its first step in a generation."""

    generation: int
    worker: WorkerId
    step: int
    transfer_s: float
    transfer_bytes: int
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A worker has committed its last step and goes."""

    generation: int
    worker: WorkerId


# -- the leader changes ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """Everything a leader knows that is not in the ledger, for its successor.

    `failed`: a failure carried the switch out, so that members may still train in the generation
    before it; the successor must recover.
    """

    generation: Generation
    leader_revision: int
    generation_revision: int
    last_number: int
    seq: int
    stopping: str
    answers: tuple[tuple[str, str, str], ...]  # request id, kind of answer, text
    records: tuple[AdjustmentRecord, ...]
    deeds: tuple[Deed, ...]
    recent: tuple[Happened, ...]
    open_switch: OpenSwitch | None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HandoverTaken:
    """The successor has it all; the old leader may go."""

    generation: int
    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The leader stayed for one step only, and hands its office to this worker: turn to it."""

    generation: int
    worker: WorkerId


Message = (
    Register
    | Hail
    | Rejected
    | Ready
    | Stuck
    | Fell
    | Out
    | Ping
    | Pong
    | Alive
    | Prepare
    | RendezvousKey
    | RendezvousEntry
    | RendezvousTable
    | GroupBuilt
    | GroupFailed
    | Undo
    | Founded
    | Switched
    | Leaving
    | Handover
    | HandoverTaken
    | Succeeded
    | ScaleOut
    | ScaleIn
    | Migrate
    | Withdraw
    | StopJob
    | ProcessEnded
    | AskStatus
    | Subscribe
    | Accepted
    | Retry
    | Refusal
    | Adjusted
    | Undone
    | Finished
    | NotLeader
    | Status
    | Events
)

MESSAGES: tuple[type, ...] = Message.__args__

__all__ = [
    "MESSAGES",
    "REQUESTS",
    "Accepted",
    "Adjusted",
    "AdjustmentRecord",
    "AdjustmentStatus",
    "Alive",
    "AskStatus",
    "Events",
    "Fell",
    "Finished",
    "Founded",
    "GroupBuilt",
    "GroupFailed",
    "Hail",
    "Handover",
    "HandoverTaken",
    "Happened",
    "Joiner",
    "Leaving",
    "Message",
    "Migrate",
    "NotLeader",
    "OpenSwitch",
    "Out",
    "Parts",
    "Ping",
    "Pong",
    "Prepare",
    "ProcessEnded",
    "Ready",
    "Refusal",
    "Register",
    "Rejected",
    "RendezvousEntry",
    "RendezvousKey",
    "RendezvousTable",
    "Retry",
    "ScaleIn",
    "ScaleOut",
    "Status",
    "StopJob",
    "Stuck",
    "Subscribe",
    "Succeeded",
    "Switched",
    "Undo",
    "Undone",
    "Withdraw",
    "WorkerStatus",
]
