"""How a client asks for an adjustment: of the launcher the slots, of the leader the change.

Owns: one request's time. Holds: a request that is told to retry, finds no leader or hears nothing
is asked again under the same id until its time is up; slots are given back unless it was granted.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from edl.errors import (
    AdjustmentFailed,
    EdlError,
    JobFinished,
    PeerError,
    Refused,
    TimedOut,
    WrongSecret,
)
from edl.launch.access import Access
from edl.launch.messages import (
    AskOutcome,
    AwaitGone,
    Release,
    Reserve,
    Reserved,
    StartWorkers,
    Unsettled,
)
from edl.protocol import messages as m
from edl.types import Gpu, WorkerId, workers_said
from edl.wire.channel import Channel

__all__ = ["Adjuster"]

# A leader that says nothing for so long is looked up again and asked once more.
SILENCE_S = 5.0
PAUSE_S = 0.1
# How often whoever wants to be told how it goes on is told.
PROGRESS_S = 0.5
# How long whoever pressed Ctrl-C is kept waiting for what became of it.
TAKE_BACK_S = 10.0
# A leaver has its allowance (30 s by default) and is killed after it.
LEAVE_S = 60.0

Final = m.Adjusted | m.Undone | m.Refusal | m.Finished
# How long something has lasted is other every time.
_SECONDS = re.compile(r"\bfor [\d.]+ s")


class Adjuster:
    """`check_running` raises when the job is over."""

    def __init__(
        self,
        access: Access,
        *,
        job: str,
        request_id: str,
        timeout_s: float,
        wait: bool,
        check_running: Callable[[], None],
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._access = access
        self._job = job
        self._request_id = request_id
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._wait = wait
        self._check_running = check_running
        self._what = ""
        self._last = "nobody answered"
        self._taken = False  # by the leader
        self._accepted = False  # and by the launcher
        self._interrupted = False
        self._progress = progress
        self._told = ""

    def scale_out(
        self, count: int, gpus: tuple[Gpu, ...], *, for_s: float
    ) -> m.AdjustmentRecord | None:
        self._what = "scale_out"

        def reserve() -> m.ScaleOut | m.Adjusted:
            answer = self._reserve(count, gpus, for_s)
            if isinstance(answer, m.Adjusted):
                return answer
            return m.ScaleOut(request_id=self._request_id, joiners=answer.joiners)

        record = self._with_newcomers(reserve)
        if record is not None:
            self._await_gone(record)
        return record

    def scale_in(self, request: m.ScaleIn) -> m.AdjustmentRecord | None:
        """Returns when the leavers' processes have ended and their slots are free."""
        self._what = "scale_in"

        def prepare() -> m.ScaleIn | m.Adjusted:
            answer = self._ask_launcher(AskOutcome(request_id=self._request_id))
            if not isinstance(answer, m.Adjusted | Unsettled):
                raise PeerError(f"the launcher answered with a {type(answer).__name__}")
            return answer if isinstance(answer, m.Adjusted) else request

        record = self._until_settled(prepare, on_accepted=None)
        if record is not None:
            self._await_gone(record)
        return record

    def migrate(
        self,
        workers: tuple[WorkerId, ...],
        leave: tuple[Gpu, ...],
        count: int,
        gpus: tuple[Gpu, ...],
    ) -> m.AdjustmentRecord | None:
        """Returns when the newcomers train and the leavers' processes have ended."""
        self._what = "migrate"

        def reserve() -> m.Migrate | m.Adjusted:
            answer = self._reserve(count, gpus, 0.0)
            if isinstance(answer, m.Adjusted):
                return answer
            return m.Migrate(
                request_id=self._request_id, joiners=answer.joiners, workers=workers, gpus=leave
            )

        record = self._with_newcomers(reserve)
        if record is not None:
            self._await_gone(record)
        return record

    # -- newcomers ---------------------------------------------------------------------------

    def _reserve(self, count: int, gpus: tuple[Gpu, ...], for_s: float) -> Reserved | m.Adjusted:
        """`Adjusted`: an earlier run of the job carried out this request already."""
        wish = Reserve(request_id=self._request_id, count=count, gpus=gpus, for_s=for_s)
        answer = self._ask_launcher(wish)
        if not isinstance(answer, Reserved | m.Adjusted):
            raise PeerError(f"the launcher answered with a {type(answer).__name__}")
        return answer

    def _with_newcomers(
        self, reserve: Callable[[], m.ScaleOut | m.Migrate | m.Adjusted]
    ) -> m.AdjustmentRecord | None:
        """Their processes start once the leader has accepted; in vain, their slots are free."""

        def start() -> None:
            self._ask_launcher(StartWorkers(request_id=self._request_id))

        try:
            return self._until_settled(reserve, on_accepted=start)
        except BaseException:
            self._release()
            raise

    # -- asking ----------------------------------------------------------------------------

    def _until_settled(
        self,
        prepare: Callable[[], m.ScaleOut | m.ScaleIn | m.Migrate | m.Adjusted],
        *,
        on_accepted: Callable[[], None] | None,
    ) -> m.AdjustmentRecord | None:
        try:
            return self._ask_until_settled(prepare, on_accepted)
        except KeyboardInterrupt as pressed:
            if pressed.args or not self._taken:
                raise
            # Between two messages: whoever pressed it hears all the same what stands.
            told = f"{self._what} of job {self._job} is interrupted; {self._unfinished()}"
            raise KeyboardInterrupt(told) from None

    def _ask_until_settled(
        self,
        prepare: Callable[[], m.ScaleOut | m.ScaleIn | m.Migrate | m.Adjusted],
        on_accepted: Callable[[], None] | None,
    ) -> m.AdjustmentRecord | None:
        while time.monotonic() < self._deadline:
            self._check_running()
            pause_s = PAUSE_S
            try:
                # The leader first: if it is of a new run, the launcher knows what earlier ones did.
                leader = self._access.leader()
                request = prepare()
                if isinstance(request, m.Adjusted):
                    return self._settle(request)
                if leader is None:
                    self._last = "the job has no leader yet"
                else:
                    with self._access.connect(leader.address) as channel:
                        channel.send(request)
                        answer = self._hear(channel, on_accepted)
                    if isinstance(answer, m.Undone) and not self._interrupted:
                        with suppress(KeyboardInterrupt):  # it ends the wait, and is told below
                            self._await_told(())
                    if isinstance(answer, Final):
                        return self._settle(answer)
                    if answer is None:
                        return None
                    pause_s = answer
            except WrongSecret:
                raise
            except PeerError as error:
                self._last = str(error)
            # Whoever asks again after an interruption would begin anew.
            self._check_interrupted()
            if pause_s and not self._accepted:
                self._tell(f"waiting: {self._last}")
            elif pause_s:
                self._tell("the leader has changed; asking the next one")
            self._pause(pause_s)
        raise TimedOut(
            f"{self._what} of job {self._job} (request {self._request_id}) is not done after "
            f"{self._timeout_s:g} s: {self._last}"
        )

    def _unfinished(self) -> str:
        """What becomes of an accepted request whose requester goes away."""
        if self._what != "scale_in":
            return (
                "accepted, but not complete; it is withdrawn now unless its switch has begun "
                "(`edl events` tells)"
            )
        return "accepted, but not complete; it will be, at the next batch boundary"

    def _hear(
        self, channel: Channel, on_accepted: Callable[[], None] | None
    ) -> Final | float | None:
        """A final answer, or after how many seconds to ask again; None: accepted, no waiting."""
        heard = time.monotonic()
        while True:
            now = time.monotonic()
            left = min(heard + SILENCE_S, self._deadline) - now
            asks = self._progress is not None and self._accepted
            try:
                message = channel.receive(max(0.0, min(left, PROGRESS_S) if asks else left))
                if isinstance(message, m.Status):
                    if self._on_status(message):
                        heard = time.monotonic()
                    continue
            except TimedOut as silence:
                if asks and left > PROGRESS_S:
                    channel.send(m.AskStatus(request_id=self._request_id))
                    continue
                self._last = self._unfinished() if self._accepted else str(silence)
                return 0.0
            except KeyboardInterrupt:
                self._take_back(channel)
                continue
            heard = time.monotonic()
            match message:
                case m.Accepted():
                    self._taken = True
                    if on_accepted is not None:
                        self._begin(channel, on_accepted)
                    if not self._accepted:
                        self._tell("accepted")
                    self._accepted = True
                    if not self._wait:
                        return None
                case m.Retry(reason=reason, after_s=after_s):
                    self._last = reason
                    return after_s
                case m.NotLeader():
                    self._last = "the leader is changing"
                    return PAUSE_S
                case m.Adjusted() | m.Undone() | m.Refusal() | m.Finished():
                    return message

    def _begin(self, channel: Channel, start: Callable[[], None]) -> None:
        """Newcomers that are never started are not waited for."""
        try:
            start()
        except (KeyboardInterrupt, Refused, JobFinished):
            with suppress(PeerError):  # a leader that is gone waits for nobody
                channel.send(self._withdrawal())
            raise

    def _withdrawal(self) -> m.Withdraw:
        return m.Withdraw(request_id=self._request_id, why="its requester gave up")

    def _take_back(self, channel: Channel) -> None:
        """Ctrl-C: nothing half done is left behind, and whoever pressed it hears what stands."""
        if self._interrupted or not self._accepted:
            told = f"; {self._unfinished()}" if self._accepted else ""
            raise KeyboardInterrupt(f"{self._what} of job {self._job} is interrupted{told}")
        self._interrupted = True
        self._tell("interrupted: it is taken back, unless its switch has begun")
        channel.send(self._withdrawal())
        if self._what != "scale_in":
            self._release()
        self._deadline = time.monotonic() + TAKE_BACK_S

    def _check_interrupted(self, record: m.AdjustmentRecord | None = None, why: str = "") -> None:
        if not self._interrupted:
            return
        how = f"was undone ({why})" if why else f"is not undone yet: {self._unfinished()}"
        if record is not None:
            how = f"was complete before it could be taken back: {workers_said(record.size)}"
        raise KeyboardInterrupt(f"{self._what} of job {self._job} {how}")

    def _on_status(self, status: m.Status) -> bool:
        """Whether the leader is at work on this request: then it need not be asked again."""
        doing = status.adjustment
        if doing is None or doing.request_id != self._request_id:
            return False
        self._tell(f"{doing.phase}: {doing.detail}" if doing.detail else doing.phase)
        return True

    def _tell(self, line: str) -> None:
        """Once, however often it is so, and for however long."""
        said = _SECONDS.sub("", line)
        if self._progress is not None and line and said != self._told:
            self._told = said
            self._progress(f"{self._what}: {line}")

    def _ask_launcher(self, message: object) -> object:
        """A refusal by the launcher settles the adjustment too."""
        try:
            answer = self._access.ask_launcher(message)
        except TimedOut as silence:
            raise PeerError(str(silence)) from silence
        if isinstance(answer, m.Refusal | m.Finished):
            self._settle(answer)
        if isinstance(answer, m.Retry):
            raise PeerError(answer.reason)
        return answer

    def _settle(self, answer: Final) -> m.AdjustmentRecord:
        subject = f"{self._what} of job {self._job}"
        match answer:
            case m.Adjusted(record=record):
                self._check_interrupted(record)
                return record
            case m.Undone(reason=reason):
                self._check_interrupted(why=reason)
                raise AdjustmentFailed(
                    f"{subject} was undone, and the job trains on without it: {reason}"
                )
            case m.Refusal(reason=reason):
                raise Refused(f"{subject} refused: {reason}")
            case m.Finished(reason=reason):
                raise JobFinished(f"{subject}: {reason}")

    # -- afterwards ------------------------------------------------------------------------

    def _release(self) -> None:
        try:
            self._access.ask_launcher(Release(request_id=self._request_id))
        except EdlError:
            return  # it lapses by itself, and a launcher that is gone holds nothing

    def _await_gone(self, record: m.AdjustmentRecord) -> None:
        leavers = ", ".join(record.left)
        try:
            if leavers:
                self._tell(f"waiting for the end of {leavers}")
            self._await_told(record.left)
        except KeyboardInterrupt:
            done = f"{self._what} of job {self._job} is complete: {workers_said(record.size)}"
            if leavers:
                done += f"; whether the processes of {leavers} have ended was not waited for"
            raise KeyboardInterrupt(done) from None

    def _await_told(self, leavers: tuple[WorkerId, ...]) -> None:
        """Until they have ended, and whoever asked can read in the history what was done."""
        message = AwaitGone(request_id=self._request_id, workers=leavers, timeout_s=LEAVE_S)
        try:
            self._access.ask_launcher(message, timeout_s=LEAVE_S + SILENCE_S)
        except WrongSecret:
            raise
        except EdlError:
            return  # the job ended meanwhile, or cannot be asked; what was done stands all the same

    def _pause(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        if seconds > 0 and left > 0:
            threading.Event().wait(min(seconds, left))
