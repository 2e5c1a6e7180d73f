"""What a worker finds in its environment: the whole contract between launcher and runtime."""

from __future__ import annotations

import os
from collections.abc import Mapping

from edl.config import Settings
from edl.launch.base import JobSpec
from edl.launch.jobs import JobFolder
from edl.protocol.messages import Joiner

__all__ = [
    "KEEP_MEMORY",
    "checkpoint_environment",
    "checkpoint_place",
    "template_environment",
    "worker_environment",
]


def checkpoint_place(spec: JobSpec) -> str:
    """Where checkpoints go: a URL, or a whole path, since a script may change its folder."""
    where = spec.checkpoint
    local = "://" not in where and "::" not in where
    return os.path.abspath(os.path.expanduser(where)) if where and local else where


def checkpoint_environment(
    spec: JobSpec, *, again: bool = False, saved: int | None = None
) -> dict[str, str]:
    """Where checkpoints go, and whether the job goes on from one.

    `again`: after a restart; `saved`: the step of the last one that it wrote before.
    """
    if not spec.checkpoint:
        return {}
    return {
        "EDL_CHECKPOINT": checkpoint_place(spec),
        "EDL_RESUME": "1" if spec.resume or again else "",
        "EDL_RESUME_SAVED": str(saved) if again and saved is not None else "",
    }


# A training step on a CPU frees and takes its gradients' memory again. By default the C library
# gives large blocks back to the system each time, so every step touches fresh pages: a tenth of a
# step's time, and far more while newcomers grow beside it. On a GPU gradients live elsewhere.
KEEP_MEMORY = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


def worker_environment(
    base: Mapping[str, str],
    *,
    folder: JobFolder,
    run: str,
    attempt: int,
    settings: Settings,
    joiner: Joiner,
    request_id: str,
    founders: int,
    together: int,
    device: str | None,
    gpus: str | None,
) -> dict[str, str]:
    """`together`: how many workers will share this machine's cores. `gpus`: as `--gpus` says."""
    environment = {
        "OMP_NUM_THREADS": str(threads_each(together)),
        **(KEEP_MEMORY if device is None and not any(map(_of_malloc, base)) else {}),
        **base,
        **settings.to_environment(),
        "PYTHONUNBUFFERED": "1",
        "EDL_JOB": folder.name,
        "EDL_JOB_DIR": str(folder.path),
        "EDL_RUN": run,
        "EDL_ATTEMPT": str(attempt),
        "EDL_SECRET_FILE": str(folder.secret_file),
        "EDL_WORKER": joiner.worker,
        "EDL_SLOT": str(joiner.slot),
        "EDL_REQUEST": request_id,
        "EDL_FOUNDERS": str(founders),
    }
    if device is not None:
        environment["CUDA_VISIBLE_DEVICES"] = device
        # EDL and --gpus count as nvidia-smi does, but CUDA counts from the fastest GPU by default.
        # Only who numbers GPUs in CUDA_VISIBLE_DEVICES may say in which order that counts.
        numbered_by_user = gpus is None and "CUDA_VISIBLE_DEVICES" in base
        if device.isdigit() and not (numbered_by_user and "CUDA_DEVICE_ORDER" in base):
            environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return environment


def template_environment(base: Mapping[str, str], *, gpus: bool, together: int) -> dict[str, str]:
    """What workers cannot be given once they are forked, for it is read when a program begins."""
    return {
        **({} if gpus or any(map(_of_malloc, base)) else KEEP_MEMORY),
        "PYTHONUNBUFFERED": "1",
        # A module that asks whether there is a GPU must not open it before the fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "OMP_NUM_THREADS": str(threads_each(together)),
        **base,
    }


def threads_each(together: int) -> int:
    """How many of this machine's cores each of so many workers has."""
    return max(1, len(os.sched_getaffinity(0)) // max(1, together))


def _of_malloc(name: str) -> bool:
    """Whoever sets one of these, or brings another allocator, has a plan of his own."""
    return name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")
