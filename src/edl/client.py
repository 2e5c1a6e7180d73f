"""The scheduler's side: change, measure and end a running job.

A job is found by its name among this user's job folders, from any directory:

    from edl.client import Job, run

    job = run("train.py", workers=2)
    job.scale_out(2)                    # two more workers, wherever there is a slot
    job.scale_in(["localhost:0"])       # whoever sits on that slot leaves
    print(job.status().throughput)
    job.stop()

A request that is told to retry, or hears nothing, is asked again under the same request id until
its time is up, so it is carried out at most once.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edl.errors import (
    JobFailed,
    JobFinished,
    PeerError,
    TimedOut,
    UsageError,
    WrongSecret,
)
from edl.launch import detached
from edl.launch.access import Access
from edl.launch.adjusting import Adjuster
from edl.launch.base import JobSpec
from edl.launch.jobs import JobFolder, Result, find_job
from edl.launch.messages import EndJob
from edl.launch.seen import Seen, bare_status, last_status
from edl.launch.slots import listed, parse_slots
from edl.launch.told import Event, audited, events_of, lines_of
from edl.protocol import messages as m
from edl.runtime.auditing import Audit
from edl.runtime.standing import Noted, read_noted
from edl.types import Address, Gpu, WorkerId

__all__ = ["Event", "Job", "parse_slots", "run", "scale_in", "scale_out"]

# How long a question that only reads may take.
ANSWER_S = 5.0
ASK_AGAIN_S = 1.0  # of a leader that may have frozen since
PAUSE_S = 0.1

Slots = int | str | Sequence[str | Gpu]


class Job:
    """A handle of one job, running or ended. Making it opens nothing.

    >>> job = Job("mnist-1")                                     # doctest: +SKIP
    >>> job.scale_out(1).size                                    # doctest: +SKIP
    3
    """

    def __init__(self, handle: str, *, store: str | None = None, timeout_s: float = 60.0) -> None:
        self.name = handle
        self.timeout_s = timeout_s
        self._folder: JobFolder | None = None
        if store is None or "EDL_SECRET_FILE" not in os.environ:
            folder = self._folder = find_job(handle)
            known = folder.info().launcher
            self._access = Access(
                job=handle,
                store=store or folder.store(),
                secret=folder.secret(),
                launcher=Address.parse(known) if known else None,
                run=folder.run,
            )
        else:
            secret = _secret_from(Path(os.environ["EDL_SECRET_FILE"]))
            self._access = Access(job=handle, store=store, secret=secret)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    # -- reading ---------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the job's files are: logs/, events.jsonl, result.json."""
        return self._files().path

    def running(self) -> bool:
        return self._folder is None or self._folder.running()

    def result(self) -> Result | None:
        """How the job ended; None while it runs, or when its launcher was killed."""
        return self._folder.result() if self._folder else None

    def status(self) -> m.Status:
        """The leader's view of the job now; of an ended job what is left to tell."""
        deadline = time.monotonic() + min(self.timeout_s, ANSWER_S)
        while True:
            what = "no status"
            if not self.running():
                return last_status(self._files(), self.result())
            try:
                leader = self._access.leader()
                if leader is None:
                    return self._leaderless()
                with self._access.connect(leader.address) as channel:
                    channel.send(m.AskStatus(request_id=_new_id()))
                    answer = channel.receive(min(ASK_AGAIN_S, self.timeout_s))
                if isinstance(answer, m.Status):
                    return answer
            except WrongSecret:
                raise
            except PeerError:
                if time.monotonic() > deadline and self.running():
                    raise
            except TimedOut:
                # It may be frozen, and another one leads by now.
                what = "no answer from the leader"
            self._pause(deadline, what)

    def _leaderless(self) -> m.Status:
        """Nobody leads yet, or, once it has trained, nobody leads at the moment."""
        seen = Seen.read(self._folder) if self._folder else Seen()
        if not seen.step:
            return bare_status("starting")
        return bare_status("recovering", seen=seen, step=seen.step)

    def restarts(self) -> int:
        """How often the job began again because no worker was left."""
        return Seen.read(self._folder).restarts if self._folder else 0

    def audit(self) -> Audit:
        """Whether each sample of each epoch was used exactly once, by the job's own log."""
        return audited(self._files())

    def checkpoint(self) -> Noted | None:
        """How it stands with the job's checkpoints; None while there is nothing to tell."""
        return read_noted(self._folder.path) if self._folder else None

    def events(self, since: int = 0, follow: bool = False) -> Iterator[Event]:
        """The job's history after event number `since`; `follow`: until the job is over."""
        return events_of(self._files(), since=since, follow=follow)

    def logs(self, worker: str | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of one worker's output, or of everybody's with the worker's id before each."""
        return lines_of(self._files(), worker=worker, follow=follow)

    # -- changing --------------------------------------------------------------------------

    def scale_out(
        self, gpus: Slots, *, wait: bool = True, request_id: str | None = None
    ) -> m.AdjustmentRecord | None:
        """Add workers: a number, or the slots they are to sit on (`["localhost:2"]`).

        Returns when they carry their share, or with `wait=False` when the leader has accepted.
        """
        slots = () if isinstance(gpus, int) else tuple(parse_slots(gpus))
        count = gpus if isinstance(gpus, int) else len(slots)
        if count < 1:
            raise UsageError(f"scale_out of {count} workers; give at least one")
        return self._adjuster(request_id or _new_id(), wait).scale_out(count, slots)

    def scale_in(
        self, workers_or_gpus: Slots, *, wait: bool = True, request_id: str | None = None
    ) -> m.AdjustmentRecord | None:
        """Remove workers: a number, their ids (`["w1"]`) or their slots (`["localhost:1"]`).

        Returns when they have left and their slots are free, or with `wait=False` when the leader
        has accepted.
        """
        names = [] if isinstance(workers_or_gpus, int) else listed(workers_or_gpus)
        count = workers_or_gpus if isinstance(workers_or_gpus, int) else 0
        if not names and count < 1:
            raise UsageError(f"scale_in of {count} workers; give at least one")
        request = m.ScaleIn(
            request_id=request_id or _new_id(),
            workers=tuple(WorkerId(str(n)) for n in names if ":" not in str(n)),
            gpus=tuple(Gpu.parse(str(n)) for n in names if ":" in str(n)),
            count=count,
        )
        return self._adjuster(request.request_id, wait).scale_in(request)

    def stop(self, force: bool = False, *, wait: bool = True) -> Result | None:
        """Everybody leaves at the step's end; `force`: everybody is killed now."""
        self._check_running()
        request = EndJob(request_id=_new_id(), why="edl stop", force=force)
        deadline = time.monotonic() + self.timeout_s
        try:
            with self._access.launcher() as channel:
                channel.send(request)
                while wait:
                    answer = channel.receive(max(0.0, deadline - time.monotonic()))
                    if isinstance(answer, m.Finished):
                        break
                else:
                    channel.receive(max(0.0, deadline - time.monotonic()))
                    return None
        except WrongSecret:
            raise
        except PeerError:
            if self.running():
                raise
        except TimedOut:
            raise TimedOut(
                f"job {self.name} is still ending after {self.timeout_s:g} s; wait longer, or "
                f"kill it with `edl stop --force {self.name}`"
            ) from None
        return self.wait()

    def wait(self, timeout_s: float | None = None) -> Result:
        """Until the job is over; raises JobFailed only if nobody knows how it ended."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.running():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"job {self.name} still runs after {timeout_s:g} s")
            try:
                # The launcher says nothing unasked: what ends this is its end.
                with self._access.launcher() as channel:
                    channel.receive(left)
            except WrongSecret:
                raise
            except (PeerError, TimedOut):
                threading.Event().wait(PAUSE_S)
        result = self.result()
        if result is None:
            raise JobFailed(f"job {self.name}: its launcher was killed, and its workers with it")
        return result

    def await_leader(self) -> None:
        """Until somebody leads; JobFailed, with the traceback, if it ended before that."""
        deadline = time.monotonic() + self.timeout_s
        while self.running():
            try:
                if self._access.leader() is not None:
                    return
            except WrongSecret:
                raise
            except PeerError:
                if self.running() and time.monotonic() > deadline:
                    raise
            self._pause(deadline, "no leader")
        result = self.result()
        if result is None or result.state == "failed":
            raise JobFailed(f"job {self.name} failed: {_how(result)}")

    # -- small things ----------------------------------------------------------------------

    def _files(self) -> JobFolder:
        if self._folder is None:
            raise UsageError(f"job {self.name} was given by its store, so its files are not known")
        return self._folder

    def _adjuster(self, request_id: str, wait: bool) -> Adjuster:
        return Adjuster(
            self._access,
            job=self.name,
            request_id=request_id,
            timeout_s=self.timeout_s,
            wait=wait,
            check_running=self._check_running,
        )

    def _check_running(self) -> None:
        if not self.running():
            raise self._over()

    def _pause(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise TimedOut(f"{what} of job {self.name} in time; try again")
        threading.Event().wait(PAUSE_S)

    def _over(self) -> JobFinished:
        result = self.result()
        how = result.state if result else "its launcher was killed"
        return JobFinished(f"job {self.name} is over ({how})")


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
    checkpoint: str = "",
    resume: bool = False,
    max_restarts: int | None = None,
    keep: int = 0,
    grace_s: float = 0.0,
    store: str = "",
    host: str = "127.0.0.1",
    audit: bool = True,
    env: dict[str, str] | None = None,
    timeout_s: float = 60.0,
) -> Job:
    """Start a job that lives on in a process of its own; returns when it has a leader.

    >>> job = run("train.py", "--lr", "0.1", workers=4)          # doctest: +SKIP

    JobFailed, with the first failing worker's traceback, if it ended before that.
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
        checkpoint=checkpoint,
        resume=resume,
        max_restarts=max_restarts,
        keep=keep,
        grace_s=grace_s,
        store=store,
        host=host,
        audit=audit,
        env=env or {},
    )
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


def _job(handle: Job | str, timeout_s: float) -> Job:
    return handle if isinstance(handle, Job) else Job(handle, timeout_s=timeout_s)


def _new_id() -> str:
    return secrets.token_hex(4)


def _how(result: Result | None) -> str:
    if result is None:
        return "its launcher was killed"
    failure = result.first_failure
    if failure is None:
        return result.why
    return f"worker {failure.worker}, {failure.reason} (log: {failure.log})\n{failure.traceback}"


def _secret_from(path: Path) -> bytes:
    try:
        return bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise UsageError(f"no secret can be read from EDL_SECRET_FILE={path}: {error}") from error
