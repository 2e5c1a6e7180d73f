"""Outcomes written out by hand, for tests of what is told about them."""

from __future__ import annotations

from collections.abc import Sequence

from edl.simulator.outcome import JobOutcome, Outcome, Span, Timeline

__all__ = ["an_outcome", "compared", "done"]


def done(
    job: str,
    *,
    submit_s: float = 0.0,
    start_s: float | None = None,
    end_s: float = 100.0,
    gpus: int = 1,
    size_gpu_s: float = 100.0,
    adjustments: int = 0,
    preemptions: int = 0,
) -> JobOutcome:
    """A job that waited until `start_s` and then ran to its end."""
    start = submit_s if start_s is None else start_s
    return JobOutcome(
        id=job,
        model="resnet50",
        gpus=gpus,
        elastic=True,
        size_gpu_s=size_gpu_s,
        submit_s=submit_s,
        start_s=start,
        end_s=end_s,
        wait_s=start - submit_s,
        held_gpu_s=gpus * (end_s - start),
        adjustments=adjustments,
        preemptions=preemptions,
        stopped_s=0.0,
    )


def an_outcome(
    *jobs: JobOutcome,
    policy: str = "tiresias",
    used_gpu_s: float = 300.0,
    worth_gpu_s: float = 240.0,
    spans: Sequence[Span] = (),
    window_s: tuple[float, float] = (0.0, 100.0),
    trace: str = "small",
    rejected: int = 0,
) -> Outcome:
    """On one machine of 4 GPUs."""
    end_s = max((job.end_s for job in jobs), default=0.0)
    return Outcome(
        policy=policy,
        mechanism="edl",
        trace=trace,
        nodes=1,
        gpus_per_node=4,
        seed=0,
        load=0.75,
        jobs=jobs,
        timeline=Timeline(
            bin_s=end_s / 2 or 1.0,
            used=(4.0, 2.0),
            worth=(3.0, 2.0),
            running=(2.0, 1.0),
            waiting=(1.0, 0.0),
        ),
        spans=tuple(spans),
        window_s=window_s,
        makespan_s=end_s,
        used_gpu_s=used_gpu_s,
        worth_gpu_s=worth_gpu_s,
        decisions=7,
        events=9,
        wall_s=0.25,
        rejected=rejected,
    )


def compared(name: str = "job-b") -> list[Outcome]:
    """Three jobs on 4 GPUs: rigidly, and shrunk and grown, with bars of every colour."""
    rigid = an_outcome(
        done("job-a", end_s=100.0, gpus=4, size_gpu_s=400.0),
        done(name, start_s=100.0, end_s=200.0, gpus=2, size_gpu_s=9_000.0),
        done("job-c", submit_s=50.0, start_s=100.0, end_s=150.0, gpus=1, size_gpu_s=50_000.0),
        spans=[
            Span("job-a", 0.0, 100.0, 4, 4),
            Span(name, 100.0, 200.0, 2, 2),
            Span("job-c", 100.0, 150.0, 1, 1),
        ],
        window_s=(0.0, 200.0),
        used_gpu_s=650.0,
        worth_gpu_s=600.0,
    )
    elastic = an_outcome(
        done("job-a", end_s=120.0, gpus=4, size_gpu_s=400.0, adjustments=2),
        done(name, end_s=160.0, gpus=2, size_gpu_s=9_000.0, adjustments=2),
        done("job-c", submit_s=50.0, end_s=100.0, gpus=1, size_gpu_s=50_000.0),
        policy="elastic-tiresias",
        spans=[
            Span("job-a", 0.0, 50.0, 3, 4),
            Span("job-a", 50.0, 120.0, 2, 4),
            Span(name, 0.0, 120.0, 1, 2),
            Span(name, 120.0, 140.0, 3, 2),
            Span(name, 140.0, 160.0, 4, 2),
            Span("job-c", 50.0, 100.0, 1, 1),
        ],
        window_s=(0.0, 200.0),
        used_gpu_s=600.0,
        worth_gpu_s=590.0,
    )
    return [rigid, elastic]
