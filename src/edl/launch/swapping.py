"""`edl run --stragglers replace`: another worker for one that the leader found to be too slow.

The leader finds stragglers and the launcher owns the slots, so the launcher acts upon the leader's
event, as any other requester would: it asks for a migration of the slow worker to a slot that is
free. Holds: one swap at a time; the job never has fewer workers for it, nor more than --max, and
where no slot is free the slow one stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from edl.launch.messages import Release, Reserve, Reserved
from edl.launch.service import LaunchService
from edl.protocol import messages as m
from edl.protocol.voice import STRAGGLER_REQUEST
from edl.types import WorkerId

__all__ = ["AGAIN_S", "Swaps"]

log = logging.getLogger("edl.launch")

# A slot may become free; nothing is lost by trying again.
AGAIN_S = 60.0
_OVER = ("straggler.gone", "straggler.removed", "straggler.replaced")


class Swaps:
    """`tell` says something to the leader until it is withdrawn; `note` adds to the history."""

    def __init__(
        self,
        service: LaunchService,
        *,
        tell: Callable[[str, m.Message], None],
        withdraw: Callable[[str], None],
        note: Callable[..., None],
    ) -> None:
        self._service = service
        self._tell = tell
        self._withdraw = withdraw
        self._note = note
        self._kept: dict[WorkerId, str] = {}  # why; told already
        self._slow: list[WorkerId] = []  # who is to be replaced, the first found first
        self._number = 0
        self._open = ""  # the request under way
        self._not_before = 0.0

    def on_event(self, event: m.Happened) -> None:
        worker = WorkerId(str(event.fields.get("worker", "")))
        if event.what == "straggler.found" and event.fields.get("policy") == "replace":
            if worker not in self._slow:
                self._slow.append(worker)
        elif event.what in _OVER and worker in self._slow:
            self._kept.pop(worker, None)
            # One that a newcomer is on its way for goes all the same.
            under_way = bool(self._open) and worker == self._slow[0]
            self._slow = [w for w in self._slow if w != worker or under_way]

    def on_tick(self, now: float) -> None:
        if self._open or not self._slow or now < self._not_before:
            return
        self._number += 1
        self._open = f"{STRAGGLER_REQUEST}{self._number}-swap"
        wish = Reserve(request_id=self._open, count=1, gpus=(), for_s=0.0)
        answer = self._service.reserve(wish, now)
        if not isinstance(answer, Reserved):
            self._failed(answer.reason, now)
            return
        slow = self._slow[0]
        move = m.Migrate(request_id=self._open, joiners=answer.joiners, workers=(slow,), gpus=())
        self._tell(self._open, move)

    def on_answer(self, message: object, now: float) -> None:
        """The leader's word on a request of ours."""
        if getattr(message, "request_id", "") != self._open or not self._open:
            return
        match message:
            case m.Accepted():
                self._service.start_reserved(self._open)
            case m.Adjusted() | m.Finished():
                self._settle()
                self._slow.pop(0)
            case m.Undone(reason=reason):
                # One that was lost is no straggler any more, whoever leads now.
                here = self._service.runs(self._slow[0])
                self._failed(reason, now, again=here)
                if not here:
                    self._slow.pop(0)
            case m.Refusal(reason=reason):
                # It has gone by itself, or cannot go: asking again would change nothing.
                self._failed(reason, now, again=False)
                self._slow.pop(0)

    def restart(self) -> None:
        """The whole job begins again; who is slow then has to be found again."""
        self._settle()
        self._slow.clear()
        self._kept.clear()

    def _failed(self, reason: str, now: float, *, again: bool = True) -> None:
        slow, request_id = self._slow[0], self._open
        self._service.release(Release(request_id=request_id))
        self._not_before = now + AGAIN_S
        self._settle()
        log.warning("launch.swap failed worker=%s why=%r", slow, reason)
        later = f"; tried again every {AGAIN_S:g} s" if again else ""
        if self._kept.get(slow) != reason:
            self._kept[slow] = reason
            self._note("straggler.kept", request_id, worker=slow, why=f"{reason}{later}")

    def _settle(self) -> None:
        if self._open:
            self._withdraw(self._open)
        self._open = ""
