"""Remove the folders of jobs that are over.

Owns: which folders may be removed, and how. Invariants: the folder of a running job is never
touched, since the remover holds the job's lock; a folder that is a link, belongs to another user
or was not made by EDL under this name is never touched; a folder disappears from its name at once
and whole, by a rename, before its files are deleted.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edl.errors import Refused, UsageError
from edl.launch.jobs import OLD, JobFolder, all_jobs, find_job, home

__all__ = ["EndedJob", "ended_jobs", "named_jobs", "remove_job", "remove_leftovers"]

REMOVED = ".removed-"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that is over, and what its folder takes."""

    folder: JobFolder
    state: str  # finished, failed, stopped; killed: its launcher was
    age_s: float  # since it ended, or was last seen
    size: int  # bytes


def ended_jobs() -> tuple[list[EndedJob], list[JobFolder], list[str]]:
    """Every job that is over, those that run, and why other folders are kept."""
    ended: list[EndedJob] = []
    running: list[JobFolder] = []
    kept: list[str] = []
    for folder in all_jobs(earlier=True):
        try:
            _check_ours(folder)
        except UsageError as error:
            kept.append(str(error))
            continue
        if folder.running():
            running.append(folder)
        else:
            ended.append(_describe(folder))
    return ended, running, kept


def named_jobs(names: Iterable[str]) -> list[EndedJob]:
    """These jobs; UsageError or Refused if one of them must not be removed."""
    found = []
    for name in dict.fromkeys(names):
        folder = find_job(name)
        _check_ours(folder)
        if folder.running():
            raise _still_running(folder)
        found.append(_describe(folder))
    return found


def remove_job(folder: JobFolder) -> None:
    """Remove the folder; Refused if the job runs, OSError if files cannot be removed."""
    _check_ours(folder)
    with _locked(folder) as current:
        if not current:
            return  # another process has removed it, or put it aside
        removed = folder.path.with_name(f"{REMOVED}{folder.name}-{os.getpid()}")
        folder.path.rename(removed)
    shutil.rmtree(removed)


def remove_leftovers() -> None:
    """Delete what a remover that was killed had renamed already."""
    for path in (home() / "jobs").glob(f"{REMOVED}*"):
        if not path.is_symlink() and path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(folder: JobFolder) -> Iterator[bool]:
    """Hold the job's lock; whether the folder still has this name then."""
    try:
        lock = os.open(folder.path / "lock", os.O_RDWR)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            # Only a launcher holds it exclusively for long; who looks at the job shares it.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except BlockingIOError:
            raise _still_running(folder) from None
        yield _same_file(lock, folder.path / "lock")
    finally:
        os.close(lock)


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _check_ours(folder: JobFolder) -> None:
    path = folder.path
    if path.is_symlink():
        raise UsageError(f"{path} is a link, not a folder of `edl run`; it is kept")
    owner = path.lstat().st_uid
    if owner != os.geteuid():
        raise UsageError(f"{path} belongs to user {owner}, not to you ({os.geteuid()}); it is kept")
    if not (path / "lock").is_file():
        raise UsageError(f"{path} has no lock file, so `edl run` did not make it; it is kept")
    name = folder.info().name
    if name != folder.name.removesuffix(OLD):
        raise UsageError(f"{path / 'job.json'} is of job {name}, not {folder.name}; it is kept")


def _still_running(folder: JobFolder) -> Refused:
    return Refused(f"job {folder.name} is running; end it first: `edl stop {folder.name}`")


def _describe(folder: JobFolder) -> EndedJob:
    try:
        result = folder.result()
        state = result.state if result else "killed"
    except UsageError:
        state = "unknown"  # result.json is damaged
    files = [folder.path / name for name in ("result.json", "seen.json", "job.json")]
    last = next(path for path in files if path.exists())
    return EndedJob(
        folder=folder,
        state=state,
        age_s=max(0.0, time.time() - last.stat().st_mtime),
        size=_size(folder.path),
    )


def _size(path: Path) -> int:
    total = 0
    for parent, _, files in os.walk(path):
        total += sum(os.lstat(os.path.join(parent, name)).st_size for name in files)
    return total
