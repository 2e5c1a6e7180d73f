"""Functions of the scheduler's side: start a job, and the paper's API by its own names."""

from __future__ import annotations

from collections.abc import Sequence

from edl.client.job import Job, Slots
from edl.launch import detached
from edl.launch.base import JobSpec
from edl.protocol import messages as m
from edl.protocol.profiling import Profile
from edl.types import Gpu

__all__ = ["migrate", "profile", "run", "scale_in", "scale_out"]


def run(
    script: str,
    *args: str,
    workers: int = 2,
    name: str | None = None,
    min_workers: int = 1,
    max_workers: int = 0,
    slots: int = 0,
    gpus: str | None = None,
    oversubscribe: bool = False,
    checkpoint: str = "",
    resume: bool = False,
    max_restarts: int | None = None,
    keep: int = 0,
    stragglers: str = "",
    grace_s: float = 0.0,
    store: str = "",
    host: str = "127.0.0.1",
    audit: bool = True,
    warm: int = 0,
    preload: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Job:
    """Start a job that lives on in a process of its own; returns when it has a leader.

    >>> job = run("train.py", "--lr", "0.1", workers=4)          # doctest: +SKIP
    JobFailed, with the first failing worker's traceback, if it ended before that.
    """
    spec = JobSpec(
        script=script,
        args=args,
        workers=workers,
        name=name,
        min_workers=min_workers,
        max_workers=max_workers,
        slots=slots,
        gpus=gpus,
        oversubscribe=oversubscribe,
        checkpoint=checkpoint,
        resume=resume,
        max_restarts=max_restarts,
        keep=keep,
        stragglers=stragglers,
        grace_s=grace_s,
        store=store,
        host=host,
        audit=audit,
        warm=warm,
        preload=tuple(preload),
        env=env or {},
    )
    job = Job(detached.start(spec), timeout_s=timeout_s)
    try:
        job.await_leader()
    except KeyboardInterrupt:
        # Nobody holds the job yet who could stop it.
        job.stop(force=True, wait=False)
        raise
    return job


def scale_out(
    job_handle: Job | str, add_gpu_info: Slots, *, timeout_s: float = 60.0
) -> m.AdjustmentRecord | None:
    """The paper's scale_out(job_handle, add_gpu_info)."""
    return _job(job_handle, timeout_s).scale_out(add_gpu_info)


def scale_in(
    job_handle: Job | str, rmv_gpu_info: Slots, *, timeout_s: float = 60.0
) -> m.AdjustmentRecord | None:
    """The paper's scale_in(job_handle, rmv_gpu_info)."""
    return _job(job_handle, timeout_s).scale_in(rmv_gpu_info)


def migrate(
    job_handle: Job | str,
    rmv_gpu_info: str | Sequence[str | Gpu],
    add_gpu_info: Slots,
    *,
    timeout_s: float = 60.0,
) -> m.AdjustmentRecord | None:
    """scale_in and scale_out as one adjustment, in the style of the paper's functions."""
    return _job(job_handle, timeout_s).migrate(rmv_gpu_info, add_gpu_info)


def profile(job_handle: Job | str, min_p: int, max_p: int, *, timeout_s: float = 60.0) -> Profile:
    """The paper's profile(job_handle, min_p, max_p)."""
    return _job(job_handle, timeout_s).profile(min_p, max_p)


def _job(handle: Job | str, timeout_s: float) -> Job:
    return handle if isinstance(handle, Job) else Job(handle, timeout_s=timeout_s)
