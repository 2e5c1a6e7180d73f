"""What a trace is once it is read: jobs in the order of their submission.

Every reader and the generator make these values, and the engine knows no others. Holds: sorted by
submission, identifiers unique, every number finite and in range; `Trace.skipped` counts what a
reader left out, by reason, so that nothing vanishes unsaid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Trace", "TraceJob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job as it was submitted. Its work is what `gpus` GPUs do in `duration_s`."""

    id: str
    submit_s: float  # since the first submission of the trace
    gpus: int  # what the user asked for
    duration_s: float  # of running on exactly these GPUs, packed, without any adjustment
    model: str = ""  # empty: drawn from the models at hand
    batch: int = 0  # the aggregate batch; 0: the model's batch per GPU times `gpus`
    min_gpus: int = 1
    max_gpus: int = 0  # 0: no limit of the user's
    elastic: bool = True  # else exactly `gpus` or nothing
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A named list of jobs, sorted by submission."""

    name: str
    jobs: tuple[TraceJob, ...]
    skipped: Mapping[str, int] = field(default_factory=dict)  # reason: how many
    notes: tuple[str, ...] = ()  # what a person should know about how it was read
    speeds: str | None = None  # a table that was read with it and has its models' speeds too
