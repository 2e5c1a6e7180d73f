"""What a simulation found: every job's fate, and the cluster over time. Values only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobOutcome", "Outcome", "Span", "Timeline"]


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One finished job. JCT = `end_s` - `submit_s`."""

    id: str
    model: str
    gpus: int  # what the user asked for
    elastic: bool
    size_gpu_s: float  # gpus * duration alone: the paper's job size
    submit_s: float
    start_s: float  # when it first held GPUs
    end_s: float
    wait_s: float  # time without GPUs, before the start and between preemptions
    held_gpu_s: float  # integral of the GPUs that it held
    adjustments: int  # changes of its number of GPUs while it ran
    preemptions: int
    stopped_s: float  # time in which it held GPUs and made no progress


@dataclass(frozen=True, slots=True)
class Timeline:
    """Means over equal bins: bin i is [i * bin_s, (i + 1) * bin_s)."""

    bin_s: float
    used: tuple[float, ...]  # GPUs held
    worth: tuple[float, ...]  # sum of G_j(p_j): GPUs' worth of useful work
    running: tuple[float, ...]  # jobs
    waiting: tuple[float, ...]  # jobs


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which one job held a constant number of GPUs."""

    job: str
    begin_s: float
    end_s: float
    gpus: int
    asked: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy on one trace. `spans` are complete within [window_s[0], window_s[1]) only."""

    policy: str
    mechanism: str
    trace: str
    nodes: int
    gpus_per_node: int
    seed: int
    load: float  # offered: GPU seconds asked for, over what the cluster has while jobs arrive
    jobs: tuple[JobOutcome, ...]  # by submission
    timeline: Timeline
    spans: tuple[Span, ...]
    window_s: tuple[float, float]
    makespan_s: float  # from the first submission to the last completion
    used_gpu_s: float
    worth_gpu_s: float  # integral of cluster efficiency, in GPUs
    decisions: int
    events: int
    wall_s: float  # how long the simulation itself took
    rejected: int = 0  # jobs larger than the cluster, left out
    notes: tuple[str, ...] = ()  # what a person should know about how it was run
