"""The server side of the embedded store, as a guest on a hub.

It is no server by itself, so that a launcher can serve the store beside its own messages on one
port. Owns: the core and who watches what. Holds: leases end only in `on_tick`, which notices when
the whole process slept (Ctrl-Z, a laptop's lid) and then renews all: nobody could have renewed
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl.errors import StoreError
from edl.store.base import Versioned
from edl.store.memory import StoreCore
from edl.wire.hub import Peer

__all__ = [
    "MESSAGES",
    "EmbeddedService",
    "StoreAnswer",
    "StoreChanged",
    "StoreGet",
    "StoreKeepAlive",
    "StoreSwap",
    "StoreUnwatch",
    "StoreWatch",
]

SLEPT_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreGet:
    request_id: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSwap:
    request_id: int
    key: str
    expected: int
    value: bytes | None
    lease: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreKeepAlive:
    request_id: int
    lease: str
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWatch:
    """The request id names the watch from then on."""

    request_id: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUnwatch:
    """Ends the watch of that request id. It gets no answer."""

    request_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreAnswer:
    """What stands at the key now; `error` is None unless the request could not be carried out."""

    request_id: int
    done: bool
    value: bytes | None
    revision: int
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChanged:
    """The request id is the watch's."""

    request_id: int
    value: bytes | None
    revision: int


Request = StoreGet | StoreSwap | StoreKeepAlive | StoreWatch
REQUESTS = (StoreGet, StoreSwap, StoreKeepAlive, StoreWatch)
MESSAGES: tuple[type, ...] = (*REQUESTS, StoreUnwatch, StoreAnswer, StoreChanged)


class EmbeddedService:
    """Answers store requests in the hub's thread; `send` is the hub's."""

    def __init__(
        self,
        send: Callable[[Peer, object], None],
        *,
        tick_s: float = 0.05,
        clock: Callable[[], float] = time.monotonic,
        first_revision: int | None = None,
    ) -> None:
        if first_revision is None:
            # A server that was restarted forgot its counter. Microseconds since 1970 lie above
            # all that its forerunner gave out, so a client's old revision never fits by accident.
            first_revision = time.time_ns() // 1000
        self._core = StoreCore(first_revision=first_revision)
        self._send = send
        self._tick_s = tick_s
        self._clock = clock
        self._last_tick = clock()
        self._watchers: dict[str, dict[tuple[Peer, int], None]] = {}

    def handles(self, message: object) -> bool:
        return isinstance(message, (*REQUESTS, StoreUnwatch))

    def on_message(self, peer: Peer, message: object) -> None:
        if isinstance(message, StoreUnwatch):
            for key in list(self._watchers):
                self._forget(key, (peer, message.request_id))
            return
        assert isinstance(message, REQUESTS)
        try:
            done, found, changed = self._carry_out(peer, message)
        except StoreError as error:
            done, found, changed = False, Versioned(None, 0), []
            problem: str | None = str(error)
        else:
            problem = None
        answer = StoreAnswer(
            request_id=message.request_id,
            done=done,
            value=found.value,
            revision=found.revision,
            error=problem,
        )
        self._send(peer, answer)
        self._publish(changed)

    def on_closed(self, peer: Peer) -> None:
        for key, watchers in list(self._watchers.items()):
            for watcher in [each for each in watchers if each[0] is peer]:
                self._forget(key, watcher)

    def on_tick(self) -> None:
        now = self._clock()
        slept = now - self._last_tick > self._tick_s + SLEPT_S
        self._last_tick = now
        if slept:
            self._core.renew_all(now)
        self._publish(self._core.expire(now))

    def revoke(self, lease: str) -> None:
        """Its holder is known to be gone: nobody need wait until it lapses."""
        self._publish(self._core.keep_alive(lease, 0.0, self._clock()))

    def _carry_out(self, peer: Peer, request: Request) -> tuple[bool, Versioned, list[str]]:
        match request:
            case StoreGet():
                return True, self._core.get(request.key), []
            case StoreSwap():
                swap = self._core.compare_and_swap(
                    request.key,
                    expected=request.expected,
                    value=request.value,
                    lease=request.lease,
                )
                return swap.done, swap.current, [request.key] if swap.done else []
            case StoreKeepAlive():
                changed = self._core.keep_alive(request.lease, request.ttl_s, self._clock())
                return True, Versioned(None, 0), changed
            case StoreWatch():
                self._watchers.setdefault(request.key, {})[peer, request.request_id] = None
                return True, self._core.get(request.key), []

    def _publish(self, keys: Iterable[str]) -> None:
        for key in keys:
            now = self._core.get(key)
            for peer, request_id in list(self._watchers.get(key, ())):
                news = StoreChanged(request_id=request_id, value=now.value, revision=now.revision)
                self._send(peer, news)

    def _forget(self, key: str, watcher: tuple[Peer, int]) -> None:
        watchers = self._watchers.get(key, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(key, None)
