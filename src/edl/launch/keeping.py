"""`edl run --keep N`: a new worker for each one that was lost, while there are fewer than N.

`Keeping` is pure and says when to ask for how many; `Replacer` asks, as any other requester would:
slots of the launcher, a scale-out of the leader. Workers that are too slow are replaced through it
too (`swapping.py`). Holds: one request at a time; a worker that was
told to leave is not replaced; replacements that keep crashing come later and later, and at once
again when one has lasted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from edl.launch.messages import Release, Reserve, Reserved
from edl.launch.service import LaunchService
from edl.launch.swapping import Swaps
from edl.protocol import messages as m
from edl.types import WorkerId

__all__ = ["Keeping", "Replacer"]

log = logging.getLogger("edl.launch")

# The first replacement comes at once; after a crash of one, so long, doubled up to the most.
PAUSE_S, PAUSE_S_MAX = 1.0, 300.0
# A replacement that has lived so long is sound.
STEADY_S = 60.0


class Keeping:
    """See the module. `now` is monotonic seconds."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._missing = 0  # lost, and not replaced yet
        self._asking = 0
        self._crashes = 0
        self._not_before = 0.0
        self._young: dict[WorkerId, float] = {}

    def on_lost(self, worker: WorkerId, now: float) -> None:
        self._missing += 1
        if self._young.pop(worker, None) is not None:
            self._crashed(now)

    def wanted(self, members: int, now: float) -> int:
        """How many to ask for now; they count as asked for until `on_joined` or `on_undone`."""
        if any(now - born >= STEADY_S for born in self._young.values()):
            self._young.clear()
            self._crashes = 0
        if members >= self._target:
            self._missing = 0
        count = min(self._missing, self._target - members)
        if self._asking or count <= 0 or now < self._not_before:
            return 0
        self._asking = count
        return count

    @property
    def lost(self) -> int:
        """How many of those that are to be kept are lost, and not replaced yet."""
        return min(self._missing, self._target)

    def on_joined(self, workers: Iterable[WorkerId], now: float) -> None:
        joined = list(workers)
        self._asking = 0
        self._missing = max(0, self._missing - len(joined))
        self._young |= dict.fromkeys(joined, now)

    def on_undone(self, now: float) -> float:
        """They did not come; returns how long to wait."""
        self._asking = 0
        return self._crashed(now)

    def restart(self) -> None:
        """The whole job begins again, with everybody."""
        self._missing = self._asking = 0
        self._young.clear()

    def _crashed(self, now: float) -> float:
        pause_s = min(PAUSE_S * 2.0**self._crashes, PAUSE_S_MAX)
        self._crashes += 1
        self._not_before = now + pause_s
        return pause_s


class Replacer:
    """`tell` says something to the leader until it is withdrawn; `say` reaches the user, and `note`
    adds to the history."""

    def __init__(
        self,
        keeping: Keeping,
        service: LaunchService,
        *,
        tell: Callable[[str, m.Message], None],
        withdraw: Callable[[str], None],
        say: Callable[[str], None],
        note: Callable[..., None],
    ) -> None:
        self._keeping = keeping
        self._service = service
        self._tell = tell
        self._withdraw = withdraw
        self._say = say
        self._number = 0
        self._open = ""
        self._swaps = Swaps(service, tell=tell, withdraw=withdraw, note=note)

    def on_event(self, event: m.Happened) -> None:
        self._swaps.on_event(event)

    def on_lost(self, worker: WorkerId, now: float) -> None:
        self._keeping.on_lost(worker, now)

    @property
    def lost(self) -> int:
        return self._keeping.lost

    def on_tick(self, members: int, now: float) -> None:
        self._swaps.on_tick(now)
        count = self._keeping.wanted(members, now)
        if not count:
            return
        self._number += 1
        self._open = f"keep-{self._number}"
        wish = Reserve(request_id=self._open, count=count, gpus=(), for_s=0.0)
        answer = self._service.reserve(wish, now)
        if isinstance(answer, Reserved):
            self._tell(self._open, m.ScaleOut(request_id=self._open, joiners=answer.joiners))
        else:
            self._failed(answer.reason, now)

    def on_answer(self, message: object, now: float) -> None:
        """The leader's word on a request of ours."""
        self._swaps.on_answer(message, now)
        if getattr(message, "request_id", "") != self._open or not self._open:
            return
        match message:
            case m.Accepted():
                self._service.start_reserved(self._open)
            case m.Adjusted(record=record):
                self._settle()
                self._keeping.on_joined(record.joined, now)
            case m.Undone(reason=reason) | m.Refusal(reason=reason):
                self._failed(reason, now)
            case m.Finished():
                self._settle()

    def restart(self) -> None:
        self._settle()
        self._swaps.restart()
        self._keeping.restart()

    def _failed(self, reason: str, now: float) -> None:
        self._service.release(Release(request_id=self._open))
        self._settle()
        pause_s = self._keeping.on_undone(now)
        log.warning("launch.keep failed why=%r pause_s=%g", reason, pause_s)
        self._say(f"no replacement for a lost worker: {reason}; tried again in {pause_s:g} s")

    def _settle(self) -> None:
        if self._open:
            self._withdraw(self._open)
        self._open = ""
