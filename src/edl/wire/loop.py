"""One thread that waits for sockets, posted functions, timers and a tick.

The hub's ground floor: it knows nothing about messages. Owns: the thread, the selector and the
wake-up pair. Holds: everything that is registered, posted or timed runs in this one thread, and an
exception in any of it goes to `on_error` and never ends the thread. It waits without a time limit
when there is neither a tick nor a timer.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["READ", "WRITE", "Handler", "Loop"]

log = logging.getLogger("edl.wire")

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
Handler = Callable[[int], None]
# Messages come in conversations, and to wake a sleeping core costs as much as to answer three
# times; so the loop stays awake for this long after one. A few messages a second make that cheap.
AWAKE_S = 100e-6


class Loop:
    """See the module."""

    def __init__(
        self,
        *,
        name: str,
        on_error: Callable[[BaseException], None] | None,
        on_tick: Callable[[], None] | None,
        tick_s: float,
    ) -> None:
        self._on_error = on_error
        self.on_tick = on_tick
        self._tick_s = tick_s
        self._next_tick = 0.0
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._woken = False
        self._ending = False
        self._awake_until = 0.0  # 0: nothing happened of late
        self._wake_out, self._wake_in = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, READ, self._on_wake)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # --- any thread ---

    @property
    def thread_ident(self) -> int | None:
        return self._thread.ident

    @property
    def inside(self) -> bool:
        return threading.get_ident() == self._thread.ident

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def post(self, fn: Callable[[], None], *, wake: bool = True) -> None:
        """Run this in the loop, now or (without `wake`) when it next turns, a tick at most."""
        self._posted.append(fn)
        # The loop looks at the queue before it waits, so its own thread need not wake it.
        if not wake or self._woken or self.inside:
            return
        try:
            # Before the send: set after it, the loop could have cleared it in between.
            self._woken = True
            self._wake_out.send(b"\0")
        except BlockingIOError:
            pass  # the pair is full of wake-ups already
        except OSError:
            pass  # the loop has ended, and what is posted now never runs
        except BaseException:
            # Ctrl-C in between must not leave a wake-up pending that was never sent.
            self._woken = False
            raise

    # --- the loop's thread ---

    def call_later(self, delay_s: float, fn: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), fn))

    def register(self, sock: socket.socket, events: int, handler: Handler) -> None:
        self._selector.register(sock, events, handler)

    def modify(self, sock: socket.socket, events: int, handler: Handler) -> None:
        self._selector.modify(sock, events, handler)

    def unregister(self, sock: socket.socket) -> None:
        """Forget a socket, also one that was never registered."""
        if sock in self._selector.get_map():
            self._selector.unregister(sock)

    def end(self) -> None:
        """Leave after the present turn."""
        self._ending = True

    def dispose(self) -> None:
        """Close what the loop owns; for a loop that was never started, or has ended."""
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def guard(self, fn: Callable[[], None]) -> None:
        """Run foreign code; what it raises is reported and goes no further."""
        try:
            fn()
        except BaseException as error:
            self.report(error)

    def report(self, error: BaseException) -> None:
        """What foreign code raised, to whoever asked to be told."""
        if self._on_error is None:
            log.error("wire.callback failed", exc_info=error)
            return
        try:
            self._on_error(error)
        except BaseException:
            log.exception("wire.on_error failed itself")

    def _run(self) -> None:
        self._next_tick = time.monotonic() + self._tick_s
        try:
            while not self._ending:
                self._turn()
        finally:
            self.dispose()

    def _events(self) -> list[tuple[selectors.SelectorKey, int]]:
        """What the sockets have; looks a few times before it sleeps if something just happened."""
        while self._awake_until:
            events = self._selector.select(0)
            if events or self._posted:
                return events
            if time.monotonic() >= self._awake_until:
                self._awake_until = 0.0
        return self._selector.select(self._patience())

    def _turn(self) -> None:
        events = self._events()
        for key, mask in events:
            handler: Handler = key.data
            try:
                handler(mask)
            except BaseException as error:
                self.report(error)
        # A posted function is no conversation: the training thread posts after every step.
        if len(events) > 1 or (events and events[0][0].fileobj is not self._wake_in):
            self._awake_until = time.monotonic() + AWAKE_S
        if self._posted:
            # Only what is there now: one that posts itself again must not starve the sockets.
            for _ in range(len(self._posted)):
                self.guard(self._posted.popleft())
        if self.on_tick is None and not self._timers:
            return
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            self.guard(heapq.heappop(self._timers)[2])
        if self.on_tick is not None and now >= self._next_tick:
            # Ticks that were missed are not made up for.
            self._next_tick = now + self._tick_s
            self.guard(self.on_tick)

    def _patience(self) -> float | None:
        """How long the selector may wait; None is for ever."""
        if self._posted or self._ending:
            return 0.0
        if self.on_tick is not None:
            due = self._next_tick
            if self._timers and self._timers[0][0] < due:
                due = self._timers[0][0]
        elif self._timers:
            due = self._timers[0][0]
        else:
            return None
        return max(0.0, due - time.monotonic())

    def _on_wake(self, mask: int) -> None:
        self._wake_in.recv(4096)
        # Cleared before the queue is read: what is posted later sends a wake-up of its own.
        self._woken = False
