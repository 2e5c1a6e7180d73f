"""What happened in one world, as the checkers read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edl.protocol.effects import Announce
from edl.protocol.record import StepRecord
from edl.protocol.requests import Final
from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = [
    "Answered",
    "Blamed",
    "Committed",
    "Exit",
    "Gathered",
    "History",
    "Moved",
    "Request",
    "Tried",
]


@dataclass(frozen=True, slots=True)
class Committed:
    """One worker has committed one step."""

    worker: WorkerId
    generation: int
    step: int
    epoch: int
    indexes: tuple[int, ...]
    weight: float
    before: tuple[int, int]
    after: tuple[int, int]
    time: float


@dataclass(frozen=True, slots=True)
class Tried:
    """One worker has computed its part of a step, which may be committed or not."""

    worker: WorkerId
    generation: int
    step: int
    epoch: int
    indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Moved:
    """One worker has left a generation at a step, for another one or for good."""

    worker: WorkerId
    source: int
    target: int
    step: int


@dataclass(frozen=True, slots=True)
class Gathered:
    """One complete round of records."""

    generation: Generation
    records: tuple[StepRecord, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A leader has sent a final answer."""

    time: float
    worker: WorkerId
    answer: Final
    office: int  # the how many-th of this worker; it remembers nothing of the one before


@dataclass(frozen=True, slots=True)
class Exit:
    time: float
    status: int
    why: str


@dataclass(frozen=True, slots=True)
class Blamed:
    """A leader has counted a worker as lost."""

    time: float
    leader: WorkerId
    worker: WorkerId
    why: str


@dataclass(slots=True)
class Request:
    """One request as its requester saw it."""

    request_id: str
    kind: str
    joiners: tuple[WorkerId, ...]
    finals: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything a checker may want to know."""

    samples: int
    batch: int
    epochs: int
    drop_last: bool
    commits: list[Committed] = field(default_factory=list)
    moves: list[Moved] = field(default_factory=list)
    rounds: list[Gathered] = field(default_factory=list)
    drifted: list[tuple[WorkerId, int, int]] = field(default_factory=list)  # generation and step
    announcements: list[tuple[WorkerId, Announce]] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    leaders: list[tuple[WorkerId, int]] = field(default_factory=list)
    answers: dict[str, list[Answered]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    generations: dict[int, Generation] = field(default_factory=dict)
    started: dict[WorkerId, float] = field(default_factory=dict)
    exits: dict[WorkerId, Exit] = field(default_factory=dict)
    dismissals: dict[WorkerId, bool] = field(default_factory=dict)
    tried: list[Tried] = field(default_factory=list)
    adopted: list[tuple[WorkerId, int, int]] = field(default_factory=list)
    # By place: in which generation each worker had the result, and what it was.
    reduced: dict[tuple[int, int], dict[WorkerId, tuple[int, Any]]] = field(default_factory=dict)
    recorded: list[Generation] = field(default_factory=list)  # by the store, in its order
    blamed: list[Blamed] = field(default_factory=list)
    touched: set[WorkerId] = field(default_factory=set)  # whom a fault has met
    recovered: int = 0
    # Of every new leader: how many steps its shell knew to be committed, and how many it told.
    told_steps: list[tuple[WorkerId, int, int]] = field(default_factory=list)
    fenced_at: float = 0.0  # when the launcher deleted the generation; 0: never
    let_go: set[tuple[WorkerId, int]] = field(default_factory=set)  # stayed for one step, and went
    broken_epochs: set[int] = field(default_factory=set)
    crashes: list[str] = field(default_factory=list)
    state: str = ""
    ended_at: float = 0.0
    stuck: str = ""  # what everybody waits for, when the time is up
    lost: bool = False  # a member died
    faulty: bool = False  # things go wrong in this world that only recovery can mend
