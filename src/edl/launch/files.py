"""How the launcher reads and writes files that may be full, foreign, huge or unreadable.

Holds: a file that cannot be written is reported by its path and the system's reason, and reading
the end of a file costs the same however long the file is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from edl.errors import UsageError

__all__ = [
    "disk_full",
    "last_lines",
    "open_own",
    "tail_text",
    "unmapped_user",
    "user_name",
    "writing",
]

# Enough for the longest traceback that a person reads.
TAIL_BYTES = 256 * 1024


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into a UsageError that names the file."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}; free some space there or set "
            "EDL_HOME to a folder on another disk"
        ) from error


def disk_full(path: Path) -> bool:
    """Whether nothing more can be written where this file is."""
    try:
        return os.statvfs(path).f_bavail == 0
    except OSError:
        return False


def open_own(path: Path) -> int:
    """Open a file for reading and writing in a folder that others may write to; make it if absent.

    Returns a descriptor. UsageError if what lies there may be somebody else's trap: a link, another
    user's file, or no regular file. Only its owner may open it, so that nobody else can lock it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _untrusted(path, "is a symbolic link") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            _refuse_foreign(path)
        raise UsageError(f"cannot open {path} for writing: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _untrusted(path, "is not a regular file")
        _refuse_owner(path, found.st_uid)
        if found.st_nlink != 1:
            raise _untrusted(path, f"has {found.st_nlink} hard links")
        os.fchmod(descriptor, 0o600)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def user_name(number: int) -> str:
    """The name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def unmapped_user(number: int) -> bool:
    """Whether this stands for users that the container does not know, such as the machine's root.

    In a user namespace that maps few users, files of all others appear as the overflow user's.
    """
    try:
        overflow = int(Path("/proc/sys/kernel/overflowuid").read_text())
        mapped = Path("/proc/self/uid_map").read_text().split()
    except (OSError, ValueError):
        return False
    everybody = mapped == ["0", "0", str(2**32 - 1)]
    return number == overflow and not everybody


def _refuse_foreign(path: Path) -> None:
    """UsageError if the file belongs to somebody else. It cannot be opened."""
    with contextlib.suppress(OSError):
        _refuse_owner(path, path.lstat().st_uid)


def _refuse_owner(path: Path, owner: int) -> None:
    if owner != os.geteuid():
        name = user_name(owner)
        raise UsageError(
            f"{path} belongs to user {name}, not to you ({user_name(os.geteuid())}), so this "
            f"folder is theirs; ask {name} to remove the file once no job of theirs writes here, "
            "or choose another folder"
        )


def _untrusted(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} {what}, so writing to it is not safe; remove it if nobody needs it, or choose "
        "another folder"
    )


def tail_text(path: Path, limit: int = TAIL_BYTES) -> str:
    """The last `limit` bytes of a file as text; raises OSError. Bytes that are not UTF-8 are
    replaced."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - limit))
        return file.read(limit).decode(errors="replace")


def last_lines(path: Path, count: int) -> str:
    """The last lines of a file, at most `TAIL_BYTES` of them; raises OSError."""
    return "".join(tail_text(path).splitlines(keepends=True)[-count:])
