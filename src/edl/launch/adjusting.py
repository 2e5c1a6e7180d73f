"""How a client asks for an adjustment: of the launcher the slots, of the leader the change.

Owns: one request's time. Holds: a request that is told to retry, finds no leader or hears nothing
is asked again under the same id until its time is up; slots are given back unless it was granted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

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
from edl.launch.messages import AwaitGone, Release, Reserve, Reserved, StartWorkers
from edl.protocol import messages as m
from edl.types import Gpu, WorkerId
from edl.wire.channel import Channel

__all__ = ["Adjuster"]

# A leader that says nothing for so long is looked up again and asked once more.
SILENCE_S = 5.0
PAUSE_S = 0.1
# A leaver has its allowance (30 s by default) and is killed after it.
LEAVE_S = 60.0

Final = m.Adjusted | m.Undone | m.Refusal | m.Finished


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
        self._accepted = False

    def scale_out(self, count: int, gpus: tuple[Gpu, ...]) -> m.AdjustmentRecord | None:
        self._what = "scale_out"

        def reserve() -> m.ScaleOut:
            wish = Reserve(request_id=self._request_id, count=count, gpus=gpus)
            answer = self._ask_launcher(wish)
            if isinstance(answer, m.Retry):
                raise PeerError(answer.reason)
            if not isinstance(answer, Reserved):
                raise PeerError(f"the launcher answered with a {type(answer).__name__}")
            return m.ScaleOut(request_id=self._request_id, joiners=answer.joiners)

        def start() -> None:
            self._ask_launcher(StartWorkers(request_id=self._request_id))

        try:
            return self._until_settled(reserve, on_accepted=start)
        except BaseException:
            self._release()
            raise

    def scale_in(self, request: m.ScaleIn) -> m.AdjustmentRecord | None:
        """Returns when the leavers' processes have ended and their slots are free."""
        self._what = "scale_in"
        record = self._until_settled(lambda: request, on_accepted=None)
        if record is not None:
            self._await_gone(record.left)
        return record

    # -- asking ----------------------------------------------------------------------------

    def _until_settled(
        self,
        prepare: Callable[[], m.ScaleOut | m.ScaleIn],
        *,
        on_accepted: Callable[[], None] | None,
    ) -> m.AdjustmentRecord | None:
        while time.monotonic() < self._deadline:
            self._check_running()
            pause_s = PAUSE_S
            try:
                request = prepare()
                leader = self._access.leader()
                if leader is None:
                    self._last = "the job has no leader yet"
                else:
                    with self._access.connect(leader.address) as channel:
                        channel.send(request)
                        answer = self._hear(channel, on_accepted)
                    if isinstance(answer, Final):
                        return self._settle(answer)
                    if answer is None:
                        return None
                    pause_s = answer
            except WrongSecret:
                raise
            except PeerError as error:
                self._last = str(error)
            self._pause(pause_s)
        raise TimedOut(
            f"{self._what} of job {self._job} (request {self._request_id}) is not done after "
            f"{self._timeout_s:g} s: {self._last}"
        )

    def _unfinished(self) -> str:
        """What becomes of an accepted request whose requester goes away."""
        if self._what == "scale_out":
            return (
                "accepted, but not complete; it is withdrawn now unless its switch has begun "
                "(`edl events` tells)"
            )
        return "accepted, but not complete; it will be, at the next batch boundary"

    def _hear(
        self, channel: Channel, on_accepted: Callable[[], None] | None
    ) -> Final | float | None:
        """A final answer, or after how many seconds to ask again; None: accepted, no waiting."""
        while True:
            left = self._deadline - time.monotonic()
            try:
                message = channel.receive(max(0.0, min(SILENCE_S, left)))
            except TimedOut as silence:
                self._last = self._unfinished() if self._accepted else str(silence)
                return 0.0
            match message:
                case m.Accepted():
                    if on_accepted is not None:
                        on_accepted()
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

    def _ask_launcher(self, message: object) -> object:
        """A refusal by the launcher settles the adjustment too."""
        try:
            answer = self._access.ask_launcher(message)
        except TimedOut as silence:
            raise PeerError(str(silence)) from silence
        if isinstance(answer, m.Refusal | m.Finished):
            self._settle(answer)
        return answer

    def _settle(self, answer: Final) -> m.AdjustmentRecord:
        subject = f"{self._what} of job {self._job}"
        match answer:
            case m.Adjusted(record=record):
                return record
            case m.Undone(reason=reason):
                raise AdjustmentFailed(
                    f"{subject} was undone, and the job trains on as it was: {reason}"
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

    def _await_gone(self, workers: tuple[WorkerId, ...]) -> None:
        message = AwaitGone(request_id=self._request_id, workers=workers, timeout_s=LEAVE_S)
        try:
            self._access.ask_launcher(message, timeout_s=LEAVE_S + SILENCE_S)
        except WrongSecret:
            raise
        except PeerError:
            return  # the job ended meanwhile, and took its last processes with it

    def _pause(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        if seconds > 0 and left > 0:
            threading.Event().wait(min(seconds, left))
