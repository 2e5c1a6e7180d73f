"""The store that needs nothing installed: a small server, and the client that speaks to it.

The client outlives the server: it connects again by itself, and its watches are set up anew. What
a call may do while the server is away depends on the verb: get, keep_alive and watch are asked
again within their time; a compare-and-swap that was under way fails at once, because it may or may
not have been done, and only its caller can tell by reading the key.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from edl.errors import PeerError, StoreError, StoreRefused, WrongSecret
from edl.store.base import EMBEDDED_SCHEME, Swap, Versioned
from edl.store.service import (
    MESSAGES,
    EmbeddedService,
    StoreAnswer,
    StoreChanged,
    StoreGet,
    StoreKeepAlive,
    StoreSwap,
    StoreUnwatch,
    StoreWatch,
)
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.codec import Codec
from edl.wire.hello import check_secret
from edl.wire.hub import Hub
from edl.wire.tls import Tls

__all__ = ["MESSAGES", "EmbeddedServer", "EmbeddedService", "EmbeddedStore"]

log = logging.getLogger("edl.store")

TICK_S = 0.05
TIMEOUT_S = 5.0
JOIN_S = 1.0
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 0.02, 1.0


class EmbeddedServer:
    """A hub with nothing but the store on it. The port is bound when it is made."""

    def __init__(
        self,
        *,
        job: str,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Tls | None = None,
    ) -> None:
        self._service = EmbeddedService(
            lambda peer, news: self._hub.send(peer, news), tick_s=TICK_S
        )
        self._hub = Hub(
            name="edl-store",
            job=job,
            secret=secret,
            codec=Codec(MESSAGES),
            on_message=self._service.on_message,
            on_closed=lambda peer, why: self._service.on_closed(peer),
            on_tick=self._service.on_tick,
            tick_s=TICK_S,
            tls=tls,
        )
        try:
            self.address = self._hub.listen(host, port)
        except BaseException:
            self._hub.stop()
            raise
        self.url = f"{EMBEDDED_SCHEME}://{self.address}"

    def start(self) -> None:
        self._hub.start()

    def stop(self) -> None:
        self._hub.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class _EmbeddedWatch:
    def __init__(
        self, store: EmbeddedStore, key: str, notify: Callable[[Versioned], None], number: int
    ) -> None:
        self.key = key
        self.notify = notify
        self.number = number
        self.cancelled = False
        self._store = store

    def cancel(self) -> None:
        self.cancelled = True
        self._store.forget(self)


class EmbeddedStore:
    """The client. Made at once, also while the server is away; a call then waits its time."""

    def __init__(
        self,
        address: Address,
        job: str,
        secret: bytes,
        *,
        timeout_s: float = TIMEOUT_S,
        run: str = "",
        tls: Tls | None = None,
    ) -> None:
        check_secret(secret)
        self._address = address
        # Each run of a job has keys of its own.
        self._folder = f"{run}/" if run else ""
        self._job = job
        self._secret = secret
        self._timeout_s = timeout_s
        self._tls = tls
        self._codec = Codec(MESSAGES)
        self._numbers = itertools.count(1)
        # Guards what follows; notified when the connection comes, goes or is refused.
        self._changed = threading.Condition()
        self._channel: Channel | None = None
        self._problem = "not connected yet"
        self._refused = False
        self._closed = False
        self._pending: dict[int, Future[StoreAnswer]] = {}
        self._watches: dict[int, _EmbeddedWatch] = {}
        self._news: queue.SimpleQueue[tuple[_EmbeddedWatch, Versioned] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._stay_connected, name="edl-store-read", daemon=True),
            # A thread of its own, so that a notification may call the store.
            threading.Thread(target=self._tell, name="edl-store-tell", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # --- the four verbs ---

    def get(self, key: str) -> Versioned:
        name = self._folder + key
        answer = self._call(lambda number: StoreGet(request_id=number, key=name))
        return Versioned(answer.value, answer.revision)

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        name = self._folder + key
        answer = self._call(
            lambda number: StoreSwap(
                request_id=number, key=name, expected=expected, value=value, lease=lease
            ),
            repeatable=False,
        )
        return Swap(answer.done, Versioned(answer.value, answer.revision))

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        self._call(
            lambda number: StoreKeepAlive(request_id=number, lease=lease, ttl_s=float(ttl_s))
        )

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> _EmbeddedWatch:
        name = self._folder + key
        watch = _EmbeddedWatch(self, name, notify, next(self._numbers))
        try:
            self._call(lambda number: StoreWatch(request_id=number, key=name), watch=watch)
        except BaseException:
            watch.cancel()
            raise
        return watch

    def close(self) -> None:
        with self._changed:
            self._closed = True
            channel = self._channel
            self._watches.clear()
            self._changed.notify_all()
        if channel is not None:
            channel.close()
        self._news.put(None)
        for thread in self._threads:
            # Bounded: a notification may be busy, or may be the one who closes.
            if thread is not threading.current_thread():
                thread.join(JOIN_S)

    # --- a call ---

    def _call(
        self,
        make: Callable[[int], object],
        *,
        repeatable: bool = True,
        watch: _EmbeddedWatch | None = None,
    ) -> StoreAnswer:
        deadline = time.monotonic() + self._timeout_s
        while True:
            request_id = next(self._numbers) if watch is None else watch.number
            future: Future[StoreAnswer] = Future()
            channel = self._await_channel(deadline, request_id, future, watch)
            try:
                channel.send(make(request_id))
                answer = future.result(max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                # It may be half open; a fresh connection finds out.
                channel.close()
                raise StoreError(
                    f"store {self._address} did not answer within {self._timeout_s} s"
                ) from None
            except PeerError as error:
                if not repeatable:
                    raise StoreError(
                        f"lost store {self._address} during a compare-and-swap ({error}): it may "
                        "or may not have been done; read the key again"
                    ) from error
                with self._changed:
                    # Else this loop would take the dead one again until the reader noticed.
                    if self._channel is channel:
                        self._channel = None
                channel.close()
                continue
            finally:
                with self._changed:
                    self._pending.pop(request_id, None)
            if answer.error is not None:
                raise StoreError(answer.error)
            return answer

    def _await_channel(
        self,
        deadline: float,
        request_id: int,
        future: Future[StoreAnswer],
        watch: _EmbeddedWatch | None,
    ) -> Channel:
        """Wait for a connection, and be listed as waiting for its answer before it can be lost."""
        with self._changed:
            while self._channel is None:
                left = deadline - time.monotonic()
                if self._closed:
                    raise StoreError(f"this client of store {self._address} is closed")
                # A wrong secret does not become right by waiting.
                if self._refused:
                    raise StoreRefused(
                        f"store {self._address} refused the connection: {self._problem}"
                    )
                if left <= 0:
                    raise StoreError(f"store {self._address} is unreachable: {self._problem}")
                self._changed.wait(left)
            if self._closed:
                raise StoreError(f"this client of store {self._address} is closed")
            self._pending[request_id] = future
            if watch is not None:
                # Not before: a connection that came meanwhile would ask for it a second time.
                self._watches[watch.number] = watch
            return self._channel

    def forget(self, watch: _EmbeddedWatch) -> None:
        with self._changed:
            known = self._watches.pop(watch.number, None)
            channel = self._channel
        if known is not None and channel is not None:
            try:
                channel.send(StoreUnwatch(request_id=watch.number))
            except PeerError as error:
                log.debug("store.unwatch not sent why=%r", str(error))

    # --- the thread that reads ---

    def _stay_connected(self) -> None:
        back_off_s = BACK_OFF_S_MIN
        while not self._closed:
            try:
                with Channel(
                    self._address,
                    job=self._job,
                    secret=self._secret,
                    codec=self._codec,
                    timeout_s=self._timeout_s,
                    tls=self._tls,
                ) as channel:
                    back_off_s = BACK_OFF_S_MIN
                    self._serve(channel)
            except PeerError as error:
                self._on_lost(error)
            with self._changed:
                if not self._closed:
                    # Not all at the same moment: many clients lose a server together.
                    self._changed.wait(back_off_s * random.uniform(0.5, 1.0))
            back_off_s = min(back_off_s * 2, BACK_OFF_S_MAX)

    def _serve(self, channel: Channel) -> None:
        with self._changed:
            if self._closed:
                return
            self._channel, self._refused = channel, False
            watches = list(self._watches.values())
            self._changed.notify_all()
        for watch in watches:
            channel.send(StoreWatch(request_id=watch.number, key=watch.key))
        while True:
            self._on_message(channel.receive(None))

    def _on_message(self, message: object) -> None:
        if not isinstance(message, StoreAnswer | StoreChanged):
            raise PeerError(f"the store sent a {type(message).__name__}")
        with self._changed:
            watch = self._watches.get(message.request_id)
            future = self._pending.get(message.request_id)
        if watch is not None and not (isinstance(message, StoreAnswer) and message.error):
            self._news.put((watch, Versioned(message.value, message.revision)))
        if isinstance(message, StoreAnswer) and future is not None and not future.done():
            future.set_result(message)

    def _on_lost(self, error: PeerError) -> None:
        with self._changed:
            lost, self._channel = self._channel, None
            self._problem, self._refused = str(error), isinstance(error, WrongSecret)
            pending = list(self._pending.values())
            self._changed.notify_all()
            closed = self._closed
        if lost is not None and not closed:
            log.warning("store.lost address=%s why=%r", self._address, str(error))
        for future in pending:
            if not future.done():
                future.set_exception(error)

    # --- the thread that notifies ---

    def _tell(self) -> None:
        while (item := self._news.get()) is not None:
            watch, news = item
            if watch.cancelled:
                continue
            try:
                watch.notify(news)
            except Exception:
                log.exception("store.notify failed key=%s", watch.key)
