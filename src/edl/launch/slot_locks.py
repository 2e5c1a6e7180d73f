"""Locks on the slots of one machine, shared by all jobs of all users.

Each slot has a file in one directory, `/tmp/edl-slots` unless EDL_SLOTS_DIR names another. A
launcher holds an flock on the file while a worker of its job uses the slot, and writes its job,
user and process into it for others to read. The kernel drops the lock when the launcher ends,
however it ends: descriptors are close-on-exec, so no worker inherits one.

The directory is world-writable, so nothing in it is trusted. A file is opened without following
links and used only if it is a regular file with one name; what it says about its holder is only
displayed. Owns: the descriptors of the locked files.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from edl.launch.files import user_name

__all__ = [
    "DIRECTORY_VARIABLE",
    "HeldSlot",
    "Holder",
    "SlotLocks",
    "directory_of",
    "held_slots",
]

log = logging.getLogger("edl.launch")

DIRECTORY_VARIABLE = "EDL_SLOTS_DIR"
# Not $TMPDIR, which may differ between users.
DIRECTORY = Path("/tmp/edl-slots")
# What a file says about its holder is cut here: anybody may have written it.
LONGEST = 1000
# Not O_CREAT: the kernel refuses it for another user's file in a sticky directory.
FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_ATTEMPTS = 10
LOCKS = Path("/proc/locks")
MOUNTS = Path("/proc/self/mountinfo")
# The device and the inode of a locked file, such as fe:00:2375706.
LOCKED_FILE = re.compile(r"([0-9a-f]+):([0-9a-f]+):([0-9]+)")
# How the kernel refuses to open what is no file that we may lock, in a directory that works.
FILE_REFUSALS = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.EACCES, errno.EPERM)


def directory_of(environment: Mapping[str, str]) -> Path:
    """Where the slots of this machine are locked."""
    chosen = environment.get(DIRECTORY_VARIABLE, "")
    return Path(chosen).expanduser().absolute() if chosen else DIRECTORY


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a slot, as the holder itself says."""

    job: str
    user: str
    pid: int

    def __str__(self) -> str:
        return f"job {self.job} of user {self.user} (process {self.pid})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSlot:
    """A slot in use, and by whom; `?` where the file does not say."""

    slot: str
    holder: Holder


def held_slots(directory: Path) -> list[HeldSlot]:
    """The slots of this machine that any job of any user holds now.

    The kernel's list of locks is read instead of trying each lock: a lock taken for a look, however
    briefly, could refuse a job its GPU. The list leaves out locks of processes that this process
    cannot see, such as those of another container.
    """
    try:
        locked = _locked_inodes(LOCKS.read_text(), *_device(directory))
        paths = sorted(directory.glob("*.lock"), key=_by_number)
    except OSError as error:
        log.debug("slots.unknown why=%r", str(error))
        return []
    found = []
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY | FLAGS)
        except OSError:
            continue  # a link, or removed meanwhile
        try:
            about = os.fstat(file)
            if stat.S_ISREG(about.st_mode) and about.st_ino in locked:
                found.append(HeldSlot(slot=path.stem, holder=_holder(file)))
        finally:
            os.close(file)
    return found


def _locked_inodes(text: str, major: int, minor: int) -> set[int]:
    """The inodes of that device which are locked by flock, from the text of /proc/locks."""
    found = set()
    for line in text.splitlines():
        file = LOCKED_FILE.search(line)
        # A line with an arrow is about a process that waits for the lock.
        if file is None or " FLOCK " not in line or " -> " in line:
            continue
        if (int(file[1], 16), int(file[2], 16)) == (major, minor):
            found.add(int(file[3]))
    return found


def _device(directory: Path) -> tuple[int, int]:
    """The device of the directory's file system, as /proc/locks has it.

    That is the device of the mount. `st_dev` may differ, as it does in a subvolume of btrfs.
    """
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        device = os.fstat(folder).st_dev
        about = Path(f"/proc/self/fdinfo/{folder}").read_text()
        mounts = MOUNTS.read_text().splitlines()
    finally:
        os.close(folder)
    mount = re.search(r"^mnt_id:\s*([0-9]+)$", about, re.MULTILINE)
    for line in mounts:
        fields = line.split(maxsplit=3)
        if mount is not None and fields[0] == mount[1]:
            major, _, minor = fields[2].partition(":")
            return int(major), int(minor)
    return os.major(device), os.minor(device)


class SlotLocks:
    """The slots that one job holds. `problem`: why the directory cannot be used; empty if it can.

    Called from one thread.
    """

    def __init__(self, directory: Path, *, job: str) -> None:
        self._directory = directory
        self._holder = Holder(job=job, user=user_name(os.geteuid()), pid=os.getpid())
        self._held: dict[str, tuple[int, bool]] = {}  # descriptor, and whether it is shared
        self._wanted: set[str] = set()  # shared locks that an exclusive holder keeps us from
        self._lost: set[str] = set()  # their files were removed, and they could not be locked again
        self.problem = self._prepare()

    def acquire(self, name: str, *, shared: bool = False, alone: bool = False) -> str:
        """Lock one slot; returns who keeps us from it, or an empty string once it is ours.

        With `shared`, other jobs that also share may hold it too, unless it is to be ours `alone`
        for now. OSError if the directory cannot be used, or its file system has no locks.
        """
        if name in self._held:
            return ""
        try:
            lock = self._opened(name)
        except _Unusable as unusable:
            return str(unusable)
        try:
            if alone or not shared:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if shared:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if shared and not alone:
                self._wanted.add(name)
            try:
                return _read_holder(lock)
            finally:
                os.close(lock)
        except BaseException:
            os.close(lock)
            raise
        self._held[name] = lock, shared
        self._wanted.discard(name)
        self._sign(name, lock)
        return ""

    def release(self, name: str) -> None:
        self._wanted.discard(name)
        self._lost.discard(name)
        lock, _ = self._held.pop(name, (-1, False))
        if lock >= 0:
            os.close(lock)

    def close(self) -> None:
        for name in [*self._held, *self._wanted]:
            self.release(name)

    def refresh(self) -> None:
        """Keep lock files young, replace removed ones, and take shared locks that became free.

        Programs that clean /tmp remove files that were not touched for days.
        """
        for name, (lock, shared) in list(self._held.items()):
            try:
                os.utime(lock)
            except OSError as error:  # it belongs to another user
                log.debug("slots.refresh slot=%s why=%r", name, str(error))
            try:
                removed = os.fstat(lock).st_nlink == 0
            except OSError:  # a file server has forgotten it
                removed = True
            if removed:
                self._replace(name, lock, shared)
        for name in list(self._wanted):
            with contextlib.suppress(OSError):  # asked again at the next refresh
                self.acquire(name, shared=True)

    def _replace(self, name: str, lock: int, shared: bool) -> None:
        """The file was removed, so others would lock a new one: lock that one too."""
        del self._held[name]
        try:
            taken_by = self.acquire(name, shared=shared)
        except OSError as error:
            taken_by = str(error)
        if not taken_by:
            os.close(lock)
            log.info("slots.locked_again slot=%s", name)
            self._lost.discard(name)
            return
        self._held[name] = lock, shared
        if name not in self._lost:  # tried again at each refresh, and logged once
            self._lost.add(name)
            log.warning("slots.lost slot=%s file removed, and now: %s", name, taken_by)

    # -- files -----------------------------------------------------------------------------

    def _prepare(self) -> str:
        path = self._directory
        try:
            with contextlib.suppress(FileExistsError):
                path.mkdir(parents=True)
                path.chmod(0o1777)  # mkdir's mode is subject to the umask
            found = path.lstat()
        except OSError as error:
            return f"{path} cannot be made ({error.strerror})"
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is not a directory"
        owner = user_name(found.st_uid)
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"{path} of user {owner} is world-writable without the sticky bit"
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            return f"{path} belongs to user {owner} and is closed to you"
        return ""

    def _opened(self, name: str) -> int:
        """The slot's file, whichever user made it.

        _Unusable if it is not one that we may lock; OSError if the directory cannot be used. A
        directory that was removed is made again.
        """
        path = self._directory / f"{_file_name(name)}.lock"
        for _ in range(OPEN_ATTEMPTS):
            try:
                lock = os.open(path, os.O_RDWR | FLAGS)
            except FileNotFoundError:
                try:
                    return _created(path)
                except FileExistsError:
                    continue  # somebody else has just made it
                except FileNotFoundError:
                    self.problem = self._prepare()
                    if self.problem:
                        raise OSError(self.problem) from None
                    continue
            except OSError as error:
                if error.errno not in FILE_REFUSALS:
                    raise
                path.lstat()  # OSError where it is the directory that refuses
                raise _Unusable(path, error.strerror or "unusable") from error
            found = os.fstat(lock)
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                return lock
            os.close(lock)
            if found.st_nlink:
                raise _Unusable(path, "not a regular file with one name")
        raise OSError(errno.ENOENT, "removed again and again", str(path))

    def _sign(self, name: str, lock: int) -> None:
        text = json.dumps({**asdict(self._holder), "slot": name}) + "\n"
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, text.encode(), 0)
        except OSError as error:  # the lock counts without it
            log.warning("slots.unsigned slot=%s why=%r", name, str(error))


class _Unusable(Exception):
    """What stands in the place of a lock file cannot be locked."""

    def __init__(self, path: Path, why: str) -> None:
        owner = ""
        with contextlib.suppress(OSError):
            owner = f" of user {user_name(path.lstat().st_uid)}"
        super().__init__(f"{path}{owner}, which cannot be locked ({why}); have it removed")


def _created(path: Path) -> int:
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | FLAGS, 0o666)
    try:
        os.fchmod(lock, 0o666)  # whatever the umask: other users lock this file too
    except BaseException:
        os.close(lock)
        raise
    return lock


def _read_holder(lock: int) -> str:
    holder = _holder(lock)
    if not holder.pid:
        return "a process that does not say who it is (see `lslocks`)"
    return str(holder)


def _holder(lock: int) -> Holder:
    """What the file says, made safe to print; process 0 if it says nothing that can be read."""
    try:
        fields = json.loads(os.pread(lock, LONGEST, 0))
        return Holder(
            job=_printable(fields["job"]), user=_printable(fields["user"]), pid=int(fields["pid"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return Holder(job="?", user="?", pid=0)


def _by_number(path: Path) -> tuple[str, int]:
    """Sorts cpu-2 before cpu-10."""
    kind, _, number = path.stem.rpartition("-")
    return (kind, int(number)) if number.isdecimal() else (path.stem, 0)


def _printable(text: object) -> str:
    return re.sub(r"[^\x21-\x7e]", "?", str(text))[:80] or "?"


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200]
