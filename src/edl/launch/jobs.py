"""The folders of jobs: what is known of a job from any directory, while it runs and afterwards.

`$EDL_HOME/jobs/NAME/` (default ~/.edl) holds job.json, secret, store, run, lock, logs/, failures/,
events.jsonl and, at the end, result.json. Only its user may read it: the secret is in it.

Owns: names and files. Holds: one running job per name, for the lock is held as long as the
launcher lives, however it ends; a folder appears under its name complete, or not at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edl.errors import Refused, UnknownJob, UsageError
from edl.launch.files import unmapped_user, user_name, writing
from edl.protocol.tale import AdjustmentRecord, Parts

__all__ = [
    "OLD",
    "Claim",
    "Failure",
    "JobFolder",
    "JobInfo",
    "Result",
    "all_jobs",
    "claim",
    "find_job",
    "home",
    "write_json",
]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
OLD = ".old"
# Blocks of the disk that are kept for the job's end, and how long a short result's texts may be: a
# character may take six bytes in JSON.
RESERVE = "result.reserved"
RESERVE_BYTES = 32 * 1024
SHORT_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """job.json: what a job is, fixed when it starts."""

    name: str
    pid: int
    script: str
    args: tuple[str, ...]
    store: str
    created: float
    backend: str
    workers: int
    min: int
    max: int
    slots: int
    python: str
    launcher: str = ""  # where it listens; empty in a folder of an older version


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker that failed."""

    worker: str
    status: int
    reason: str
    traceback: str
    log: str
    step: int | None = None  # steps done when its script raised, if it did
    error: str = ""  # the exception that its script raised: class and message

    @property
    def story(self) -> str:
        """What happened to the worker, in a few words."""
        if not self.error:
            return f"{self.worker} was lost ({self.reason})"
        step = "" if self.step is None else f" at step {self.step}"
        return f"{self.worker} failed{step} ({self.error})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """result.json: how a job ended. `state` is finished, failed or stopped."""

    state: str
    exit_status: int
    why: str
    first_failure: Failure | None
    steps: int
    seconds: float
    adjustments: tuple[AdjustmentRecord, ...]
    # Every worker that was lost, in the order in which they were; of many, the first ones.
    failures: tuple[Failure, ...] = ()
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One job's files."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def secret_file(self) -> Path:
        return self.path / "secret"

    @property
    def events_file(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def store_file(self) -> Path:
        """The store's URL with its password; only its user may read it."""
        return self.path / "store"

    def store(self) -> str:
        """The URL of the job's store, as it can be opened."""
        try:
            return self.store_file.read_text().strip()
        except FileNotFoundError:
            return self.info().store

    def run(self) -> str:
        """Which run of the job is on; each has keys of its own in the store."""
        try:
            return (self.path / "run").read_text().strip()
        except FileNotFoundError:
            return ""

    def write_run(self, run: str) -> None:
        part = self.path / "run.part"
        with writing(self.path / "run"):
            part.write_text(run + "\n")
            part.replace(self.path / "run")

    def write_store(self, url: str) -> None:
        with writing(self.store_file):
            descriptor = os.open(self.store_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(url + "\n")

    def log(self, worker: str) -> Path:
        return self.logs / f"{worker}.log"

    def workers(self) -> list[str]:
        """Every worker that ever had a log, in the order of their ids."""
        names = [path.stem for path in self.logs.glob("*.log")]
        return sorted(names, key=lambda name: (len(name), name))

    def failure_file(self, worker: str) -> Path:
        return self.path / "failures" / f"{worker}.txt"

    def note_file(self, worker: str) -> Path:
        return self.path / "failures" / f"{worker}.json"

    def secret(self) -> bytes:
        with _reading(self.secret_file):
            secret = bytes.fromhex(self.secret_file.read_text().strip())
            if not secret:
                raise ValueError("it is empty")
            return secret

    def info(self) -> JobInfo:
        path = self.path / "job.json"
        with _reading(path):
            fields = json.loads(path.read_text())
            return JobInfo(**{**fields, "args": tuple(fields["args"])})

    def result(self) -> Result | None:
        """How the job ended; None while it runs, and when its launcher was killed."""
        path = self.path / "result.json"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        with _reading(path):
            fields = json.loads(text)
            failure = fields["first_failure"]
            return Result(
                **{
                    **fields,
                    "first_failure": Failure(**failure) if failure else None,
                    "adjustments": tuple(_record(each) for each in fields["adjustments"]),
                    "failures": tuple(Failure(**each) for each in fields.get("failures", ())),
                }
            )

    def write_lost(self, failures: Sequence[Failure]) -> None:
        """lost.json: the workers that a running job has lost."""
        write_json(self.path / "lost.json", {"lost": [asdict(each) for each in failures]})

    def lost(self) -> tuple[Failure, ...]:
        """The workers that the job has lost since its launcher started, the latest last."""
        path = self.path / "lost.json"
        try:
            text = path.read_text()
        except FileNotFoundError:
            return ()
        with _reading(path):
            return tuple(Failure(**each) for each in json.loads(text)["lost"])

    def running(self) -> bool:
        """Whether a launcher holds the lock."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def write_info(self, info: JobInfo) -> None:
        with writing(self.path / "job.json"):
            write_json(self.path / "job.json", asdict(info))

    def write_result(self, result: Result) -> None:
        """On a disk that is full: a short result, in blocks that were reserved for it at first."""
        path = self.path / "result.json"
        try:
            write_json(path, asdict(result))
        except OSError as error:
            path.with_name(path.name + ".part").unlink(missing_ok=True)
            self._write_short(result, f"cannot write {path} in full: {error.strerror or error}")
        (self.path / RESERVE).unlink(missing_ok=True)

    def _write_short(self, result: Result, problem: str) -> None:
        short = _shortened(result, problem)
        text = json.dumps(asdict(short)).encode()
        if len(text) > RESERVE_BYTES:  # the log has a very long path
            text = json.dumps(asdict(replace(short, first_failure=None))).encode()
        with writing(self.path / "result.json"):
            # Not truncated before it is written: the blocks would be given back.
            with open(self.path / RESERVE, "r+b", buffering=0) as file:
                file.write(text)
                os.fsync(file.fileno())
                file.truncate(len(text))
            (self.path / RESERVE).replace(self.path / "result.json")


class Claim:
    """A folder whose lock this process holds."""

    def __init__(self, folder: JobFolder, lock: int) -> None:
        self.folder = folder
        self._lock = lock

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def withdraw(self) -> None:
        """The job never began: leave nothing behind."""
        shutil.rmtree(self.folder.path, ignore_errors=True)
        self.release()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A file of a job that is lost or altered is told by its name."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"job {path.parent.name}: {path} cannot be read ({type(error).__name__}: {error}); "
            "put it back as it was, or end the job's process and remove its folder"
        ) from error


def home() -> Path:
    """Absolute, for a worker's script may change its directory."""
    chosen = os.environ.get("EDL_HOME")
    return (Path(chosen).expanduser() if chosen else Path.home() / ".edl").absolute()


def _jobs_folder(*, make: bool = False) -> Path:
    """The folder of all jobs. UsageError if another user could change what lies in it.

    Who can rename a job's folder can put a secret of his own in its place.
    """
    jobs = home() / "jobs"
    _check_way(home().parent)
    for folder in (home(), jobs):
        try:
            if make:
                _make_private(folder)
            found = folder.stat()
        except FileNotFoundError:
            return jobs
        if found.st_uid != os.geteuid():
            raise UsageError(
                f"{folder} belongs to user {found.st_uid}, not to you ({os.geteuid()}), who could "
                "replace the secrets of jobs; set EDL_HOME to a folder of your own"
            )
        if found.st_mode & 0o022:
            raise UsageError(
                f"others may write to {folder} (mode {found.st_mode & 0o7777:04o}) and replace the "
                f"secrets of jobs; run `chmod go-w {folder}`, or set EDL_HOME to a folder of your "
                "own"
            )
    _check_way(jobs)  # and those above the folders that links lead to
    return jobs


def _make_private(folder: Path) -> None:
    """Also its parents: the umask may leave them writable for a group."""
    for each in (*reversed(folder.parents), folder):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)


def _check_way(folder: Path) -> None:
    """UsageError if another user could put a folder of his own in the place of this one.

    As ssh does it, each folder from the root on must belong to root or to this user and be writable
    by its owner alone, unless its sticky bit keeps others from renaming what lies there. Links are
    followed, and must not be another user's either. What cannot be looked at is passed over.
    """
    pending, seen = [folder], set()
    while pending:
        way = pending.pop()
        for each in (way, *way.parents):
            if each in seen:
                continue
            seen.add(each)
            try:
                found = each.lstat()
                if stat.S_ISLNK(found.st_mode):
                    pending.append(each.parent / each.readlink())
            except OSError:
                continue
            _check_part(each, found, of=folder)


def _check_part(part: Path, found: os.stat_result, *, of: Path) -> None:
    if found.st_uid not in (0, os.geteuid()) and not unmapped_user(found.st_uid):
        raise UsageError(
            f"{part}, on the way to {of}, belongs to user {user_name(found.st_uid)}, who could "
            "replace the secrets of jobs; set EDL_HOME to a folder below folders of your own or "
            "of root"
        )
    writable = stat.S_ISDIR(found.st_mode) and found.st_mode & 0o022
    if writable and not found.st_mode & stat.S_ISVTX:
        raise UsageError(
            f"others may write to {part} (mode {found.st_mode & 0o7777:04o}), on the way to {of}, "
            f"and replace the secrets of jobs; run `chmod go-w {part}`, or set EDL_HOME to a "
            "folder below folders that only you or root may write to"
        )


def all_jobs(*, earlier: bool = False) -> list[JobFolder]:
    """Every job of this user that can be named, running or ended; `earlier`: NAME.old too."""
    folders = [JobFolder(path) for path in sorted(_jobs_folder().glob("*/"))]
    return [
        folder
        for folder in folders
        if (earlier or not folder.name.endswith(OLD))
        and NAME.fullmatch(folder.name)
        and (folder.path / "job.json").exists()
    ]


def find_job(name: str) -> JobFolder:
    if NAME.fullmatch(name):
        folder = JobFolder(_jobs_folder() / name)
        if (folder.path / "job.json").exists():
            return folder
    have = ", ".join(each.name for each in all_jobs())
    raise UnknownJob(
        f"there is no job {name!r} in {home() / 'jobs'}; "
        + (f"there is {have}" if have else "there are none, start one with `edl run SCRIPT`")
    )


def claim(name: str | None, *, stem: str) -> Claim:
    """A new folder of that name, or of a free one made from `stem`, with its lock and secret.

    An ended job of the same name is kept as NAME.old; a running one is not touched: Refused.
    """
    if name is not None and (not NAME.fullmatch(name) or name.endswith(OLD)):
        raise UsageError(
            f"job name {name!r} will not do; give up to 64 letters, digits, '.', '_' and '-', "
            f"beginning with a letter or digit, not ending in {OLD}"
        )
    jobs = home() / "jobs"
    try:
        _jobs_folder(make=True)
        fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=jobs))
    except OSError as error:
        raise UsageError(
            f"cannot write {jobs}: {error.strerror}; set EDL_HOME to a folder that you may write "
            "to, on a disk with free space"
        ) from error
    lock = -1
    try:
        with writing(fresh):
            lock = os.open(fresh / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            _fill(fresh)
        path = _named(fresh, jobs / name) if name else _first_free(fresh, jobs, stem)
    except BaseException:
        if lock >= 0:
            os.close(lock)
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return Claim(JobFolder(path), lock)


def _fill(fresh: Path) -> None:
    secret = os.open(fresh / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(secret, "w") as file:
        file.write(secrets.token_bytes(32).hex() + "\n")
    (fresh / "logs").mkdir()
    (fresh / "failures").mkdir()
    (fresh / "events.jsonl").touch()
    with open(fresh / RESERVE, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)


def _named(fresh: Path, path: Path) -> Path:
    while not _renamed(fresh, path):
        _put_aside(JobFolder(path))
    return path


def _first_free(fresh: Path, jobs: Path, stem: str) -> Path:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._")[:48] or "job"
    for path in _numbered(jobs, stem):
        if not path.exists() and _renamed(fresh, path):
            return path
    raise AssertionError("the numbers have no end")


def _numbered(jobs: Path, stem: str) -> Iterator[Path]:
    number = 1
    while True:
        yield jobs / f"{stem}-{number}"
        number += 1


def _renamed(fresh: Path, path: Path) -> bool:
    """Whether the name was free. The kernel decides, so two claims never both win."""
    try:
        fresh.rename(path)
    except OSError:
        if path.exists():
            return False
        raise
    return True


def _put_aside(folder: JobFolder) -> None:
    """Keep an ended job as NAME.old; Refused while it runs."""
    try:
        lock = os.open(folder.path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return  # another claim has just put it aside
    try:
        # With a result it is ending, or somebody looks at it: that lasts a moment only.
        ended = (folder.path / "result.json").exists()
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if ended else fcntl.LOCK_NB))
        if os.fstat(lock).st_ino != os.stat(folder.path / "lock").st_ino:
            return  # it was put aside while we waited
        old = folder.path.with_name(folder.name + OLD)
        shutil.rmtree(old, ignore_errors=True)
        folder.path.rename(old)
    except BlockingIOError:
        raise Refused(
            f"job {folder.name!r} is running already (process {_pid(folder)}); give another "
            f"--name, or end it with `edl stop {folder.name}`"
        ) from None
    except FileNotFoundError:
        return
    finally:
        os.close(lock)


def _pid(folder: JobFolder) -> str:
    try:
        return str(folder.info().pid)
    except UsageError:
        return "unknown"  # its launcher has not written it yet


def write_json(path: Path, fields: Mapping[str, object]) -> None:
    """Atomically: a reader sees the whole or nothing."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(fields, indent=2) + "\n")
    part.replace(path)


def _shortened(result: Result, problem: str) -> Result:
    """How the job ended, without lists and with the ends of long texts."""
    first = result.first_failure
    if first is not None:
        first = replace(
            first,
            reason=first.reason[-SHORT_CHARS:],
            traceback=first.traceback[-SHORT_CHARS:],
            error=first.error[-SHORT_CHARS:],
        )
    return replace(
        result,
        why="; ".join(text[:SHORT_CHARS] for text in (result.why, problem) if text),
        first_failure=first,
        adjustments=(),
        failures=(),
    )


def _record(fields: dict[str, Any]) -> AdjustmentRecord:
    return AdjustmentRecord(
        **{
            **fields,
            "joined": tuple(fields["joined"]),
            "left": tuple(fields["left"]),
            "parts": Parts(**fields["parts"]),
        }
    )
