"""A launcher's part in checkpoints: whether the folder will do, whose it is, and what came of them.

Owns: the folder's owner mark, for as long as the launcher lives, and what of the news was told.
Holds: two live jobs of a machine never write to one folder; each piece of news is told once.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from edl.errors import CheckpointError, Refused, UsageError
from edl.launch.files import open_own, writing
from edl.launch.jobs import JobFolder
from edl.redaction import redact_url
from edl.runtime.checkpoint import CheckpointFolder
from edl.runtime.standing import Noted, read_noted

__all__ = ["CheckpointNews", "Ownership", "own"]

log = logging.getLogger("edl.launch")

OWNER = ".edl-owner"
# How a file system says that it has no locks.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

News = tuple[str, int, dict[str, str | int | float]]


class Ownership:
    """The mark of a folder's owner; the kernel takes it away from whoever ends."""

    def __init__(self, mark: int = -1) -> None:
        self._mark = mark

    def release(self) -> None:
        if self._mark >= 0:
            os.close(self._mark)
            self._mark = -1


def own(where: str, *, job: str, resume: bool) -> Ownership:
    """Look at the folder before a worker is started, and keep other jobs out of it.

    UsageError, with what to do, where it is of no known kind, cannot be written to, or holds what
    another job has left; Refused where another job writes to it now. The mark is for folders of
    this machine: elsewhere nothing tells whether its owner lives.
    """
    if not where:
        return Ownership()
    try:
        folder = CheckpointFolder(where)
        folder.prepare()
        steps = [] if resume else folder.steps()
    except CheckpointError as error:
        raise UsageError(f"--checkpoint {redact_url(where)}: {error}") from error
    mark = _marked(where, job)
    if steps:
        mark.release()
        raise UsageError(
            f"{folder.where} holds checkpoints, the last one of step {steps[-1]}; go on from it "
            "with --resume, or give another --checkpoint folder"
        )
    return mark


def _marked(where: str, job: str) -> Ownership:
    path = Path(where.removeprefix("file://"))
    if "://" in str(path) or "::" in where or not path.is_dir():
        return Ownership()
    mark = open_own(path / OWNER)
    try:
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(mark, 200, 0).decode(errors="replace").strip() or "another job"
        os.close(mark)
        raise Refused(
            f"{where} is in use: {owner} writes its checkpoints there now; give this job another "
            "--checkpoint folder, or end that one first"
        ) from None
    except OSError as error:
        os.close(mark)
        if error.errno not in NO_LOCKS:
            raise UsageError(f"cannot lock {path / OWNER}: {error.strerror}") from error
        log.warning(
            "checkpoints.unlocked folder=%s why=%r; a second job that writes there is not noticed",
            where,
            error.strerror,
        )
        return Ownership()
    try:
        with writing(path / OWNER):
            os.ftruncate(mark, 0)
            os.pwrite(mark, f"job {job} (process {os.getpid()})\n".encode(), 0)
    except UsageError:
        os.close(mark)
        raise
    return Ownership(mark)


class CheckpointNews:
    """`poll` now and then: (event, step, fields) of what is new."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder
        self._told = Noted()

    def poll(self) -> list[News]:
        now, told = read_noted(self._folder.path), self._told
        if now is None or now == told:
            return []
        self._told = now
        found: list[News] = []
        if now.resumed is not None and now.resumed_by != told.resumed_by:
            who: dict[str, str | int | float] = {"worker": now.resumed_by}
            if now.passed_over:
                who["passed_over"] = now.passed_over
            for path, why in now.passed_over_why:
                fields = {"worker": now.resumed_by, "path": path, "why": why}
                found.append(("checkpoint.passed_over", now.resumed, {**fields}))
            found.append(("job.resumed", now.resumed, {"from_step": now.resumed, **who}))
        elif now.step is not None and now.saved_at != told.saved_at:
            found.append(("checkpoint.saved", now.step, {}))
        if now.error and (now.error, now.failed_step) != (told.error, told.failed_step):
            found.append(("checkpoint.failed", now.failed_step, {"why": now.error}))
        return found
