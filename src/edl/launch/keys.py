"""The launcher's side of a job's keys in the store: what it watches, writes and clears away.

A call of a store may block for seconds while its server is away, so a thread of its own makes
them. Owns: the store's clients, and the key `current`, which says where a job's keys are and who
launched it. Holds: each run of a job has keys of its own, so one that is started again, or under a
used name, never meets old ones; when the job is over its keys are gone, if the store can be
reached.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from edl.errors import StoreError
from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.election import LEADER_KEY
from edl.protocol.leader import STATE_KEY
from edl.store.base import Lasting, Store, Versioned, open_store
from edl.store.url import with_run
from edl.types import Address
from edl.wire.tls import Tls

__all__ = ["CURRENT_KEY", "Keys", "read_current", "write_current"]

log = logging.getLogger("edl.launch")

CURRENT_KEY = "current"
AGAIN_S = 0.5
PROBE_S = 1.0
CLOSE_S = 8.0
# Between two attempts to remove `current` while a job ends.
RELEASE_AGAIN_S = 0.1

OnKey = Callable[[str, str, Versioned], None]


def write_current(run: str, launcher: Address) -> bytes:
    return json.dumps({"run": run, "launcher": str(launcher)}).encode()


def read_current(value: bytes) -> tuple[str, Address]:
    """The inverse of `write_current`."""
    try:
        fields = json.loads(value)
        return str(fields["run"]), Address.parse(str(fields["launcher"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the key {CURRENT_KEY!r} holds {value[:80]!r}, not a job") from error


class Keys:
    """`on_key` is called from other threads, with the run, the key and what stands there."""

    def __init__(
        self,
        *,
        url: str,
        job: str,
        secret: bytes,
        launcher: Address,
        on_key: OnKey,
        tls: Tls | None = None,
    ) -> None:
        self._url = url
        self._launcher = launcher
        self._on_key = on_key
        self._open = partial(open_store, job=job, secret=secret, tls=tls)
        self._home: Store = self._open(url)
        self._run: tuple[str, Store] | None = None
        self._closing = threading.Event()
        self._answered = time.monotonic()
        self._close_by = 0.0  # no call of the store is made again after this
        self._errands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="edl-launch-keys", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """StoreError unless the store answers now."""
        self._home.get(CURRENT_KEY)

    def start_probe(self) -> None:
        """Ask the store something every second, so that its silence is noticed."""
        threading.Thread(target=self._probe, name="edl-launch-probe", daemon=True).start()

    @property
    def silent_s(self) -> float:
        """Seconds since the store last answered a probe. From any thread."""
        return time.monotonic() - self._answered

    # -- from the hub's thread -------------------------------------------------------------

    def begin(self, run: str) -> None:
        """Watch the keys of this run, and leave those of the run before."""
        self._errands.put(partial(self._begin, run))

    def fence(self, run: str, revision: int, done: Callable[[], None]) -> None:
        """Delete the run's generation if it is still that of `revision`, then call `done`.

        Its members stop when they see it gone. If the job has ended or gone on meanwhile, `on_key`
        gets what stands there instead, and `done` is not called.
        """
        self._errands.put(partial(self._fence, run, revision, done))

    def revoke(self, lease: str) -> None:
        self._errands.put(partial(self._revoke, lease))

    def close(self) -> None:
        """Clear the keys away and let go of the store; do not wait for it for ever."""
        self._close_by = time.monotonic() + CLOSE_S
        self._closing.set()
        self._errands.put(self._end)
        self._errands.put(None)
        self._thread.join(CLOSE_S)
        for store in [self._home, *([self._run[1]] if self._run else [])]:
            store.close()

    # -- the thread ------------------------------------------------------------------------

    def _work(self) -> None:
        while (errand := self._errands.get()) is not None:
            while True:
                try:
                    errand()
                    break
                except StoreError as error:
                    log.warning("launch.store %s", error)
                    if self._closing.wait(AGAIN_S):
                        break

    def _probe(self) -> None:
        while not self._closing.wait(PROBE_S):
            try:
                self._home.get(CURRENT_KEY)
                self._answered = time.monotonic()
            except StoreError as error:
                log.info("launch.store silent for %.0f s: %s", self.silent_s, error)

    def _begin(self, run: str) -> None:
        if self._closing.is_set():
            return
        if self._run is not None and self._run[0] != run:
            old, self._run = self._run[1], None
            self._clear(old)
        if self._run is None:
            self._run = run, self._open(with_run(self._url, run))
        store = self._run[1]
        self._point(run)
        for key in (LEADER_KEY, GENERATION_KEY, STATE_KEY):
            store.watch(key, partial(self._on_key, run, key))

    def _fence(self, run: str, revision: int, done: Callable[[], None]) -> None:
        if self._run is None or self._run[0] != run:
            done()  # its keys were never opened, so nothing stands there
            return
        store = self._run[1]
        state = store.get(STATE_KEY)
        if state.value is not None:
            self._on_key(run, STATE_KEY, state)
            return
        found = store.get(GENERATION_KEY)
        if found.value is not None and found.revision != revision:
            self._on_key(run, GENERATION_KEY, found)
            return
        if found.value is not None:
            swap = store.compare_and_swap(GENERATION_KEY, expected=revision, value=None)
            if not swap.done and swap.current.value is not None:
                self._on_key(run, GENERATION_KEY, swap.current)
                return
            # The job may have recorded its end since the state was read.
            state = store.get(STATE_KEY)
            if state.value is not None:
                self._on_key(run, STATE_KEY, state)
                return
        done()

    def _point(self, run: str) -> None:
        """Whatever stood there is of a job that is over, or was killed."""
        value, found = write_current(run, self._launcher), self._home.get(CURRENT_KEY)
        while found.value != value:
            swap = self._home.compare_and_swap(CURRENT_KEY, expected=found.revision, value=value)
            if swap.done:
                return
            found = swap.current

    def _revoke(self, lease: str) -> None:
        if self._run is not None:
            self._run[1].keep_alive(lease, 0.0)

    def _end(self) -> None:
        if self._run is None:
            return
        run, store = self._run
        self._run = None
        self._clear(store)
        self._release(write_current(run, self._launcher))

    def _release(self, mine: bytes) -> None:
        """Remove `current` if it is still ours.

        A swap whose answer is lost may or may not have been carried out, so the key is read again.
        """
        while True:
            try:
                found = self._home.get(CURRENT_KEY)
                if found.value != mine:
                    return
                self._home.compare_and_swap(CURRENT_KEY, expected=found.revision, value=None)
            except StoreError as error:
                if time.monotonic() >= self._close_by:
                    raise
                log.info("launch.store removing %s again: %s", CURRENT_KEY, error)
                time.sleep(RELEASE_AGAIN_S)

    def _clear(self, store: Store) -> None:
        """Fence the run first, unless its job recorded its end: nobody goes on in it then."""
        try:
            found = store.get(GENERATION_KEY)
            while found.value is not None and store.get(STATE_KEY).value is None:
                expected = found.revision
                swap = store.compare_and_swap(GENERATION_KEY, expected=expected, value=None)
                found = swap.current
            if isinstance(store, Lasting):
                store.clear()
        except StoreError as error:
            log.warning("launch.store keys of an ended run are left: %s", error)
        finally:
            store.close()
