"""Who this process is in a job, from the EDL_* variables its launcher set.

A process without EDL_JOB is a job of its own: `python train.py` just trains.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.config import Settings
from edl.errors import UsageError
from edl.types import Gpu, JobHandle, WorkerId
from edl.wire.tls import Tls

__all__ = ["Identity", "identify", "refuse_foreign_launchers"]

# Variables by which other launchers tell a process its rank; two masters cannot both be right.
_FOREIGN = {
    "TORCHELASTIC_RUN_ID": "torchrun",
    "OMPI_COMM_WORLD_SIZE": "mpirun (Open MPI)",
    "PMI_SIZE": "mpirun (MPICH)",
    "HOROVOD_SIZE": "horovodrun",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One worker of one job, as its launcher named it."""

    job: JobHandle
    worker: WorkerId
    slot: Gpu
    bind: str
    store: str
    secret: bytes
    request_id: str
    founders: int
    spawned_at: float
    settings: Settings
    tls: Tls | None = None


def refuse_foreign_launchers(environment: Mapping[str, str]) -> None:
    """A script under torchrun or mpirun must not also be an EDL worker."""
    for name, launcher in _FOREIGN.items():
        if name in environment:
            raise UsageError(
                f"edl.init() under {launcher} ({name} is set): EDL starts the workers itself; "
                "run the script with `edl run -n N SCRIPT`, or alone with `python SCRIPT`"
            )
    if "EDL_JOB" not in environment and {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(environment):
        raise UsageError(
            "edl.init() with RANK, WORLD_SIZE and MASTER_ADDR set, as by torch.distributed's "
            "launchers: unset them, or run the script with `edl run -n N SCRIPT`"
        )


def identify(environment: Mapping[str, str] | None = None) -> Identity | None:
    """This process's identity, or None when nobody launched it as a worker."""
    known = os.environ if environment is None else environment
    refuse_foreign_launchers(known)
    if "EDL_JOB" not in known:
        return None
    absent = [n for n in ("EDL_STORE", "EDL_SECRET_FILE", "EDL_WORKER") if n not in known]
    if absent:
        raise UsageError(f"EDL_JOB is set but {', '.join(absent)} is not; unset EDL_JOB or set it")
    try:
        secret = bytes.fromhex(Path(known["EDL_SECRET_FILE"]).read_text().strip())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the job's secret cannot be read from {known['EDL_SECRET_FILE']}: {error}"
        ) from error
    worker = WorkerId(known["EDL_WORKER"])
    return Identity(
        job=JobHandle(known["EDL_JOB"]),
        worker=worker,
        slot=Gpu.parse(known.get("EDL_SLOT", "localhost:0")),
        bind=known.get("EDL_HOST", "127.0.0.1"),
        store=known["EDL_STORE"],
        secret=secret,
        request_id=known.get("EDL_REQUEST", ""),
        founders=int(known.get("EDL_FOUNDERS", "1") or "1"),
        spawned_at=float(known.get("EDL_SPAWNED_AT", "0") or "0"),
        settings=Settings.from_environment(known),
        tls=Tls.from_environment(known),
    )


def program() -> str:
    """What runs here, for messages to people."""
    return sys.argv[0] or "python"
