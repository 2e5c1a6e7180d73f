"""What a simulation comes to in a few numbers.

A percentile is interpolated between the two nearest ranks, as numpy does by default: of n sorted
values the q-th lies at rank q * (n - 1), counted from 0. Shares are of the whole cluster over the
whole makespan, so a long tail of one job lowers them; that is what the cluster's owner paid for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from edl.errors import UsageError
from edl.simulator.outcome import JobOutcome, Outcome

__all__ = [
    "SIZES_GPU_S",
    "SizeClass",
    "Summary",
    "by_size",
    "cdf",
    "jct_s",
    "percentile",
    "summarise",
]

# The first two are where Tiresias demotes a job, the third is where the paper's long jobs begin.
SIZES_GPU_S = (500.0, 10_000.0, 100_000.0)
CDF_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy on one trace. Times in seconds, shares from 0 to 1."""

    policy: str
    jobs: int
    rejected: int  # jobs larger than the cluster, left out
    jct_mean_s: float
    jct_median_s: float
    jct_p95_s: float
    jct_p99_s: float
    jct_max_s: float
    wait_mean_s: float
    wait_median_s: float
    wait_p95_s: float
    makespan_s: float
    utilisation: float  # GPU time held, of all there was
    cluster_efficiency: float  # GPUs' worth of useful work, of all there was
    gpu_efficiency: float  # useful work, of the GPU time held
    adjustments: int
    preemptions: int
    decisions: int
    events: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeClass:
    """Jobs whose size (GPUs asked for times duration alone) is above the class before."""

    name: str
    most_gpu_s: float | None  # None: no limit
    jobs: int
    jct_mean_s: float | None  # None where there are no jobs


def jct_s(job: JobOutcome) -> float:
    return job.end_s - job.submit_s


def summarise(outcome: Outcome) -> Summary:
    """UsageError where no job finished: then there is no mean to tell."""
    if not outcome.jobs:
        raise UsageError(
            f"no job of {outcome.trace} ran under {outcome.policy} ({outcome.rejected} are larger "
            f"than {outcome.nodes} x {outcome.gpus_per_node} GPUs); give more GPUs or another trace"
        )
    times = sorted(jct_s(job) for job in outcome.jobs)
    waits = sorted(job.wait_s for job in outcome.jobs)
    whole_gpu_s = outcome.nodes * outcome.gpus_per_node * outcome.makespan_s
    return Summary(
        policy=outcome.policy,
        jobs=len(times),
        rejected=outcome.rejected,
        jct_mean_s=_mean(times),
        jct_median_s=percentile(times, 0.5),
        jct_p95_s=percentile(times, 0.95),
        jct_p99_s=percentile(times, 0.99),
        jct_max_s=times[-1],
        wait_mean_s=_mean(waits),
        wait_median_s=percentile(waits, 0.5),
        wait_p95_s=percentile(waits, 0.95),
        makespan_s=outcome.makespan_s,
        utilisation=_ratio(outcome.used_gpu_s, whole_gpu_s),
        cluster_efficiency=_ratio(outcome.worth_gpu_s, whole_gpu_s),
        gpu_efficiency=_ratio(outcome.worth_gpu_s, outcome.used_gpu_s),
        adjustments=sum(job.adjustments for job in outcome.jobs),
        preemptions=sum(job.preemptions for job in outcome.jobs),
        decisions=outcome.decisions,
        events=outcome.events,
        wall_s=outcome.wall_s,
    )


def by_size(outcome: Outcome) -> tuple[SizeClass, ...]:
    """Four classes, small jobs first, also those that have no jobs."""
    limits = (*SIZES_GPU_S, None)
    times: list[list[float]] = [[] for _ in limits]
    for job in outcome.jobs:
        place = sum(job.size_gpu_s > limit for limit in SIZES_GPU_S)
        times[place].append(jct_s(job))
    return tuple(
        SizeClass(
            name=f"more than {SIZES_GPU_S[-1]:,.0f}" if limit is None else f"up to {limit:,.0f}",
            most_gpu_s=limit,
            jobs=len(each),
            jct_mean_s=_mean(each) if each else None,
        )
        for limit, each in zip(limits, times, strict=True)
    )


def cdf(values: Iterable[float], points: int = CDF_POINTS) -> tuple[tuple[float, float], ...]:
    """(value, share of values up to it), rising. Of many values every so manieth is kept, with the
    first and the last, and each point is one of the true curve."""
    ordered = sorted(values)
    count = len(ordered)
    ranks: Iterable[int] = range(count)
    if count > points:
        ranks = (round(step * (count - 1) / (points - 1)) for step in range(points))
    kept = dict.fromkeys(ordered[rank] for rank in ranks)
    return tuple((value, bisect_right(ordered, value) / count) for value in kept)


def percentile(ordered: Sequence[float], share: float) -> float:
    rank = share * (len(ordered) - 1)
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
