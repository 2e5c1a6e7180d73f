"""The handle of one job: what is asked of its leader, its launcher and its folder."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from edl.errors import (
    JobFailed,
    JobFinished,
    PeerError,
    TimedOut,
    UsageError,
    WrongSecret,
)
from edl.launch import profiling
from edl.launch.access import Access
from edl.launch.adjusting import Adjuster
from edl.launch.jobs import Failure, JobFolder, Result, find_job
from edl.launch.messages import EndJob, LauncherStatus
from edl.launch.seen import Seen, bare_status, last_status
from edl.launch.slots import listed, parse_slots
from edl.launch.told import Event, audited, events_of, lines_of
from edl.launch.transient import time_left
from edl.protocol import messages as m
from edl.protocol.profiling import Profile
from edl.redaction import redact_url
from edl.runtime.auditing import Audit
from edl.runtime.standing import Noted, read_noted
from edl.types import Address, Gpu, WorkerId

__all__ = ["Job", "Slots"]

# How long a question that only reads may take.
ANSWER_S = 5.0
ASK_AGAIN_S = 1.0  # of a leader that may have frozen since
PAUSE_S = 0.1
# The launcher asks the store every second; one that is slow now and then is not away.
STORE_AWAY_S = 3.0

Progress = Callable[[str], None]
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
            self._store = store or folder.store()
            known = folder.info().launcher
            self._access = Access(
                job=handle,
                store=self._store,
                secret=folder.secret(),
                launcher=Address.parse(known) if known else None,
                run=folder.run,
            )
        else:
            secret = _secret_from(Path(os.environ["EDL_SECRET_FILE"]))
            self._store = store
            self._access = Access(job=handle, store=store, secret=secret)

    def __repr__(self) -> str:
        return f"Job({self.name!r})"

    # -- reading ---------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where the job's files are: logs/, events.jsonl, result.json."""
        return self._files().path

    @property
    def store(self) -> str:
        """The URL of the job's store, without a password."""
        return redact_url(self._store)

    def running(self) -> bool:
        return self._folder is None or self._folder.running()

    def result(self) -> Result | None:
        """How the job ended; None while it runs, or when its launcher was killed."""
        return self._folder.result() if self._folder else None

    def status(self) -> m.Status:
        """The leader's view of the job now; of an ended job what is left to tell.

        A job with a store of others is asked through its launcher, so that the answer does not
        wait for a store that is away: see `store_silence`.
        """
        deadline = time.monotonic() + min(self.timeout_s, ANSWER_S)
        while True:
            what = "no status"
            if not self.running():
                return last_status(self._files(), self.result())
            try:
                address = self._leader_address()
                if address is None:
                    return self._leaderless()
                with self._access.connect(address, ASK_AGAIN_S) as channel:
                    channel.send(m.AskStatus(request_id=_new_id()))
                    answer = channel.receive(min(ASK_AGAIN_S, self.timeout_s))
                if isinstance(answer, m.Status):
                    return answer
            except WrongSecret:
                raise
            except PeerError:
                if self._waits_for_store():
                    return self._leaderless()
                if time.monotonic() > deadline and self.running():
                    raise
            except TimedOut:
                if self._waits_for_store():
                    return self._leaderless()
                # It may be frozen, and another one leads by now.
                what = "no answer from the leader"
            self._pause(deadline, what)

    def store_silence(self) -> float | None:
        """Seconds for which the job's store has not answered its launcher; None while it does.

        Training continues meanwhile, but nobody joins or leaves, and lost workers are not replaced.
        """
        known = self._from_launcher()
        if known is None or known.store_silent_s < STORE_AWAY_S:
            return None
        return known.store_silent_s

    def _from_launcher(self) -> LauncherStatus | None:
        return self._access.launcher_status() if self._access.outside and self.running() else None

    def _leader_address(self) -> Address | None:
        known = self._from_launcher()
        if known is not None and known.leader is not None:
            return known.leader
        if known is not None and known.store_silent_s >= STORE_AWAY_S:
            return None
        leader = self._access.leader()
        return None if leader is None else leader.address

    def _waits_for_store(self) -> bool:
        """The leader does not answer, and without the store nobody can take its place."""
        return self.store_silence() is not None

    def _leaderless(self) -> m.Status:
        """Nobody leads yet, or, once it has trained, nobody leads at the moment."""
        seen = Seen.read(self._folder) if self._folder else Seen()
        # A launcher looks now and then; the last checkpoint may be of a later step.
        noted = self.checkpoint()
        step = max(seen.step, (noted.step or 0) if noted is not None else 0)
        return bare_status("recovering", seen=seen, step=step) if step else bare_status("starting")

    def restarts(self) -> int:
        """How often the job began again because no worker was left."""
        return Seen.read(self._folder).restarts if self._folder else 0

    def waiting(self) -> str:
        """Which members on other machines the launcher waits for, if none of them answers."""
        return Seen.read(self._folder).waiting if self._folder and self.running() else ""

    def failures(self) -> tuple[Failure, ...]:
        """The workers that the job has lost so far, or that it ended with."""
        if self._folder is None:
            return ()
        result = None if self.running() else self._folder.result()
        return self._folder.lost() if result is None else result.failures

    def transients(self) -> dict[WorkerId, float]:
        """Workers that were added for a time, and how many seconds of it are left."""
        return time_left(self._folder) if self._folder and self.running() else {}

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
        self,
        gpus: Slots,
        *,
        for_s: float | None = None,
        wait: bool = True,
        request_id: str | None = None,
        progress: Progress | None = None,
    ) -> m.AdjustmentRecord | None:
        """Add workers: a number, or the slots they are to sit on (`["localhost:2"]`).

        Returns when they carry their share, or with `wait=False` when the leader has accepted.
        `for_s`: so many seconds from now they have left again by themselves, and their slots are
        free, whether this process lives or not.
        """
        slots = () if isinstance(gpus, int) else tuple(parse_slots(gpus))
        count = gpus if isinstance(gpus, int) else len(slots)
        if count < 1:
            raise UsageError(f"scale_out of {count} workers; give at least one")
        if for_s is not None and not 0 < for_s < math.inf:
            raise UsageError(f"scale_out for {for_s} s; give a time above 0, or None for good")
        adjuster = self._adjuster(request_id or _new_id(), wait, progress)
        return adjuster.scale_out(count, slots, for_s=for_s or 0.0)

    def scale_in(
        self,
        workers_or_gpus: Slots,
        *,
        wait: bool = True,
        request_id: str | None = None,
        progress: Progress | None = None,
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
        return self._adjuster(request.request_id, wait, progress).scale_in(request)

    def migrate(
        self,
        remove: str | Sequence[str | Gpu],
        add: Slots,
        *,
        wait: bool = True,
        request_id: str | None = None,
        progress: Progress | None = None,
    ) -> m.AdjustmentRecord | None:
        """Move: `remove` these workers (`["w1"]`) or slots, `add` so many, or on these slots.

        All of it happens, or nothing: if a new worker does not come, the others stay. Returns when
        the leavers' slots are free, or with `wait=False` when the leader has accepted.
        """
        names = [str(name) for name in listed(remove)]
        leave = tuple(parse_slots([name for name in names if ":" in name]))
        slots = () if isinstance(add, int) else tuple(parse_slots(add))
        count = add if isinstance(add, int) else len(slots)
        if not names or count < 1:
            other = "scale_out adds, scale_in removes" if names or count > 0 else "name the workers"
            raise UsageError(
                f"migrate of {len(names)} workers to {count} slots; give at least one of each "
                f"({other})"
            )
        both = [str(slot) for slot in leave if slot in slots]
        if both:
            raise UsageError(f"migrate from {both[0]} to {both[0]}; name a slot that is free")
        workers = tuple(WorkerId(name) for name in names if ":" not in name)
        for named in (leave, slots, workers):
            twice = next((each for each in named if named.count(each) > 1), None)
            if twice is not None:
                raise UsageError(f"migrate names {twice} twice; name each worker and slot once")
        adjuster = self._adjuster(request_id or _new_id(), wait, progress)
        return adjuster.migrate(workers, leave, count, slots)

    def profile(
        self,
        min_p: int | None = None,
        max_p: int | None = None,
        *,
        steps: int = 20,
        warm_up: int = 5,
        restore: bool = True,
        progress: Progress = lambda line: None,
    ) -> Profile:
        """Throughput and GPU efficiency with max_p workers, and fewer, down to min_p.

        At each, `steps` mini-batches after `warm_up` that do not count; then, and after an
        interruption, the job is put back. `progress` hears lines for the user, some of them from
        another thread. Without a range: the present parallelism at once, disturbing nothing.
        """
        self._check_running()
        if min_p is None and max_p is None:
            return profiling.present(self, self._folder)
        low = 1 if min_p is None else min_p
        plan = profiling.Plan(min_p=low, max_p=max_p, steps=steps, warm_up=warm_up, restore=restore)
        return profiling.measure(self, plan, folder=self._folder, progress=progress)

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

    def _adjuster(self, request_id: str, wait: bool, progress: Progress | None) -> Adjuster:
        return Adjuster(
            self._access,
            job=self.name,
            request_id=request_id,
            timeout_s=self.timeout_s,
            wait=wait,
            check_running=self._check_running,
            progress=progress,
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
