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
    share_gpus: bool = False,
    checkpoint: str = "",
    checkpoint_every: int | str | None = None,
    resume: bool = False,
    max_restarts: int | None = None,
    keep: int = 0,
    stragglers: str = "",
    on_divergence: str = "",
    digest_steps: int | None = None,
    grace_s: float = 0.0,
    store: str = "",
    host: str = "127.0.0.1",
    audit: bool = True,
    warm: int = 0,
    preload: Sequence[str] = (),
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Job:
    """Start a job in a process of its own; return when it has a leader. JobFailed if it ends first.

    `checkpoint_every`: steps (500), a time ("10m"), or both ("500,10m").
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
        share_gpus=share_gpus,
        checkpoint=checkpoint,
        checkpoint_every="" if checkpoint_every is None else str(checkpoint_every),
        resume=resume,
        max_restarts=max_restarts,
        keep=keep,
        stragglers=stragglers,
        on_divergence=on_divergence,
        digest_steps=digest_steps,
        grace_s=grace_s,
        store=store,
        host=host,
        audit=audit,
        warm=warm,
        preload=tuple(preload),
        env=env or {},
    )
    return _start(spec, timeout_s)


def _start(spec: JobSpec, timeout_s: float) -> Job:
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
