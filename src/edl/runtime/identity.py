"""Who this process is in a job, from the EDL_* variables its launcher set, or its user.

A process without EDL_JOB is a job of its own: `python train.py` just trains. One with EDL_JOIN=1
was started by somebody else than the job's launcher, and asks to be let in.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from edl.config import Settings
from edl.errors import EdlError, UsageError
from edl.store.url import with_run
from edl.types import NAME, Gpu, JobHandle, WorkerId
from edl.wire.tls import Tls

__all__ = ["Identity", "identify", "refuse_foreign_launchers"]

_Number = TypeVar("_Number", int, float)

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
    unsupervised: bool = False  # it joined by itself; no launcher tells how it fares

    def announce(self, text: str) -> None:
        """Write a line for the person who started this worker by hand."""
        if self.unsupervised:
            sys.stderr.write(f"edl: {text}\n")
            sys.stderr.flush()


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
    """This process's identity, or None when nobody launched it as a worker.

    With EDL_JOIN=1 it returns when the job's leader expects this worker.
    """
    known = os.environ if environment is None else environment
    refuse_foreign_launchers(known)
    if "EDL_JOB" not in known:
        return None
    run = known.get("EDL_RUN", "")
    joins = known.get("EDL_JOIN", "") == "1"
    if not joins or known.get("EDL_REQUEST", ""):
        identity = _identity(known, joins=joins)
        return replace(identity, store=with_run(identity.store, run))
    # Imported here, because it asks on behalf of the identity above.
    from edl.runtime.joining import let_in

    try:
        return let_in(_identity(known, joins=True), run)
    except EdlError as error:
        _print_without_traceback(error)
        raise


def _identity(known: Mapping[str, str], *, joins: bool) -> Identity:
    """What the variables say; UsageError names the one that is absent or wrong."""
    needed = ["EDL_SECRET_FILE"] if joins else ["EDL_SECRET_FILE", "EDL_WORKER"]
    absent = [name for name in needed if name not in known]
    if "EDL_STORE" not in known and "EDL_STORE_FILE" not in known:
        absent.insert(0, "EDL_STORE")
    if absent:
        raise UsageError(f"EDL_JOB is set but {', '.join(absent)} is not; unset EDL_JOB or set it")
    for variable in ("EDL_JOB", "EDL_WORKER"):
        name = known.get(variable, "")
        if name and not NAME.fullmatch(name):
            raise UsageError(
                f"{variable}={name!r} is no name; give up to 128 letters, digits, '.', '_' and '-'"
            )
    return Identity(
        job=JobHandle(known["EDL_JOB"]),
        worker=WorkerId(known.get("EDL_WORKER", "") or _own_name()),
        slot=_slot(known, joins=joins),
        bind=known.get("EDL_HOST", "127.0.0.1"),
        store=_store_url(known),
        secret=_secret(known["EDL_SECRET_FILE"]),
        request_id=known.get("EDL_REQUEST", ""),
        founders=_number(known, "EDL_FOUNDERS", int, 1),
        spawned_at=_number(known, "EDL_SPAWNED_AT", float, 0.0),
        settings=Settings.from_environment(known),
        tls=Tls.from_environment(known),
    )


def _slot(known: Mapping[str, str], *, joins: bool) -> Gpu:
    text = known.get("EDL_SLOT", f"{socket.gethostname()}:0" if joins else "localhost:0")
    try:
        return Gpu.parse(text)
    except UsageError as error:
        raise UsageError(f"EDL_SLOT: {error}") from None


def _number(
    known: Mapping[str, str], variable: str, kind: Callable[[str], _Number], default: _Number
) -> _Number:
    text = known.get(variable, "")
    try:
        return kind(text) if text else default
    except ValueError:
        raise UsageError(f"{variable}={text!r} is no number; unset it") from None


def _print_without_traceback(error: EdlError) -> None:
    """If the script does not catch this error, Python prints its message alone.

    The message says what to change; the traceback would only lead through EDL's own files.
    """
    usual = sys.excepthook

    def hook(kind: type[BaseException], found: BaseException, trace: TracebackType | None) -> None:
        if found is error:
            print(f"edl: {error}", file=sys.stderr, flush=True)  # noqa: T201
        else:
            usual(kind, found, trace)

    sys.excepthook = hook


def _own_name() -> str:
    """A worker's name that no other process of any machine has."""
    host = re.sub(r"[^A-Za-z0-9-]+", "-", socket.gethostname())[:24]
    return f"{host}-{os.getpid()}-{secrets.token_hex(2)}"


def _secret(path: str) -> bytes:
    try:
        return bytes.fromhex(Path(path).read_text().strip())
    except (OSError, ValueError) as error:
        raise UsageError(f"the job's secret cannot be read from {path}: {error}") from error


def _store_url(known: Mapping[str, str]) -> str:
    """With its password, which lies in a file: others may see a process's environment."""
    path = known.get("EDL_STORE_FILE", "")
    if not path:
        return known["EDL_STORE"]
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the store's URL cannot be read from EDL_STORE_FILE={path}: {error}"
        ) from error


def program() -> str:
    """What runs here, for messages to people."""
    return sys.argv[0] or "python"
