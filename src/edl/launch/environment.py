"""What a worker finds in its environment: the whole contract between launcher and runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping

from edl.config import Settings
from edl.launch.base import JobSpec
from edl.launch.jobs import JobFolder
from edl.protocol.messages import Joiner

__all__ = ["checkpoint_environment", "checkpoint_place", "worker_environment"]


def checkpoint_place(spec: JobSpec) -> str:
    """Where checkpoints go: a URL, or a whole path, since a script may change its folder."""
    where = spec.checkpoint
    local = "://" not in where and "::" not in where
    return os.path.abspath(os.path.expanduser(where)) if where and local else where


def checkpoint_environment(spec: JobSpec, *, again: bool = False) -> dict[str, str]:
    """Where checkpoints go, and whether the job goes on from one; `again`: after a restart."""
    if not spec.checkpoint:
        return {}
    return {
        "EDL_CHECKPOINT": checkpoint_place(spec),
        "EDL_RESUME": "1" if spec.resume or again else "",
    }


def worker_environment(
    base: Mapping[str, str],
    *,
    folder: JobFolder,
    run: str,
    settings: Settings,
    joiner: Joiner,
    request_id: str,
    founders: int,
    together: int,
    device: str | None,
) -> dict[str, str]:
    """`together`: how many workers will share this machine's cores."""
    cores = len(os.sched_getaffinity(0))
    environment = {
        "OMP_NUM_THREADS": str(max(1, cores // max(1, together))),
        **base,
        **settings.to_environment(),
        "PYTHONUNBUFFERED": "1",
        "EDL_JOB": folder.name,
        "EDL_JOB_DIR": str(folder.path),
        "EDL_RUN": run,
        "EDL_SECRET_FILE": str(folder.secret_file),
        "EDL_WORKER": joiner.worker,
        "EDL_SLOT": str(joiner.slot),
        "EDL_REQUEST": request_id,
        "EDL_FOUNDERS": str(founders),
    }
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device
    return environment
