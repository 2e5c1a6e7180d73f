"""What requesters ask of a job, and what they are answered; the rest is in `messages.py`.

Every request has an id, and every answer repeats it: the same id always gets the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.protocol.tale import AdjustmentRecord, AdjustmentStatus, Happened, WorkerStatus
from edl.types import Gpu, WorkerId

__all__ = [
    "REQUESTS",
    "Accepted",
    "Adjusted",
    "AskStatus",
    "Events",
    "Finished",
    "Joiner",
    "Migrate",
    "NotLeader",
    "ProcessEnded",
    "Refusal",
    "Retry",
    "ScaleIn",
    "ScaleOut",
    "Status",
    "StopJob",
    "Subscribe",
    "Undone",
    "Withdraw",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    worker: WorkerId
    slot: Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """Add workers. The requester starts their processes once it hears Accepted."""

    request_id: str
    joiners: tuple[Joiner, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleIn:
    """Remove workers: by id, by slot, or any `count` of them."""

    request_id: str
    workers: tuple[WorkerId, ...]
    gpus: tuple[Gpu, ...]
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrate:
    """Add these workers and remove those, by id or by slot, in one adjustment."""

    request_id: str
    joiners: tuple[Joiner, ...]
    workers: tuple[WorkerId, ...]
    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdraw:
    """The requester gave up: undo what was asked under this id, unless its switch has begun."""

    request_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Everybody leaves at the next boundary."""

    request_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """The launcher saw a worker's process end."""

    request_id: str
    worker: WorkerId
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStatus:
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Send every event after this number, now and as they happen."""

    request_id: str
    since: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Not now: ask again with the same request id."""

    request_id: str
    reason: str
    after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Never, as asked."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """The adjustment is complete."""

    request_id: str
    record: AdjustmentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """The adjustment was given up; the job is as it was."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The job ended first."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotLeader:
    """Ask whoever the store names."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The leader's view of the job."""

    request_id: str
    state: str
    step: int
    epoch: int
    epochs: int
    generation: int
    batch: int
    throughput: float
    step_s: float
    workers: tuple[WorkerStatus, ...]
    adjustment: AdjustmentStatus | None
    report: dict[str, float]
    adjustments: int
    trained_s: float  # in the steps that this leader saw, since it leads
    trained_samples: int
    stragglers: str = ""  # the policy
    switch_steps: int = 0  # a switch that is announced now is made so many steps later
    pace_steps: int = 0  # the last ones with as many workers: throughput and step_s are theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    request_id: str
    events: tuple[Happened, ...]


REQUESTS = (
    ScaleOut,
    ScaleIn,
    Migrate,
    Withdraw,
    StopJob,
    AskStatus,
    Subscribe,
    ProcessEnded,
)
