"""Values that tell of a job: adjustments, events and workers, inside messages and on disk."""

from __future__ import annotations

from dataclasses import dataclass

from edl.types import Address, WorkerId

__all__ = [
    "AdjustmentRecord",
    "AdjustmentStatus",
    "Happened",
    "OpenSwitch",
    "Parts",
    "WorkerStatus",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The paper's overhead decomposition of one adjustment, in seconds."""

    process_start_s: float = 0.0
    context_s: float = 0.0
    topology_s: float = 0.0
    switch_wait_s: float = 0.0
    transfer_s: float = 0.0
    stop_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustmentRecord:
    """One finished adjustment as it is told to requester, events and demo."""

    request_id: str
    kind: str
    joined: tuple[WorkerId, ...]
    left: tuple[WorkerId, ...]
    generation: int
    step: int
    size: int
    total_s: float
    transfer_bytes: int
    parts: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One line of `edl events`. `fields` are flat, so that they print in one line."""

    seq: int
    what: str
    request_id: str
    generation: int
    step: int
    fields: dict[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSwitch:
    """An adjustment whose switch has happened but which is not yet reported complete."""

    record: AdjustmentRecord
    age_s: float
    waiting: tuple[WorkerId, ...]
    parting: tuple[WorkerId, ...]  # stayed for one step, and have not let the others go on yet


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    id: WorkerId
    rank: int
    pid: int
    host: str
    slot: str
    address: Address
    leader: bool
    state: str
    samples: int
    compute_s: float
    slowness: float = 0.0  # its time per sample over the median's, lately; 0: not known
    straggler: bool = False
    silent_s: float = 0.0  # for how long it has left heartbeats unanswered; 0: it answers
    process_runs: bool = False  # silent, but its watchdog says that the process is running


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustmentStatus:
    request_id: str
    kind: str
    phase: str
    age_s: float
    workers: tuple[WorkerId, ...]
    detail: str = ""  # whom or what it waits for
