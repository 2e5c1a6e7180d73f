"""The store in ZooKeeper, for those who run one already.

ZooKeeper has neither revisions that it compares nor leases. So each key is a folder with the value
in it (`PREFIX/JOB/KEY/value`): the folder stays, and every swap raises its version, which a
transaction can compare; the value comes and goes. A key's revision is the transaction's number
(zxid). Holds: while a folder's version stands still, its value is the same one or has lapsed.

A lease is a session of its own and a mark that lives as long (`PREFIX/JOB/%leases/NAME@SESSION`);
keys under a lease are ephemeral nodes of that session. Every swap under a lease touches its mark,
so whoever revokes it, in whatever process, deletes mark and keys in one transaction. The client
ends the session when the lease was not renewed in time; if the client dies, ZooKeeper does so
after the session's timeout: the lease's first time, as far as the server's limits allow. Only the
client that made a lease can write under it, and closing that client ends it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from edl.errors import StoreError
from edl.store.base import Swap, Versioned
from edl.store.teller import Teller, ToldWatch
from edl.store.terms import Terms, check_ttl
from edl.store.url import StoreUrl, segment
from edl.store.znodes import Session, SessionGone

__all__ = ["ZooKeeperStore"]

log = logging.getLogger("edl.store")

ABSENT = Versioned(None, 0)
TIMEOUT_S = 5.0
JOIN_S = 1.0
SESSION_S = 10.0
# A shorter session would be lost by a hiccup; in a longer one, a dead server is left too late.
LEASE_SESSION_S_MIN, LEASE_SESSION_S_MAX = 2.0, 40.0
# No key has this name: see `segment`.
LEASES = "%leases"


@dataclass(slots=True)
class _Lease:
    session: Session
    owner: int
    mark: str
    deadline: float


@dataclass(frozen=True, slots=True)
class _Stirred:
    """What ZooKeeper calls. Two of one watch are equal, so it is never called twice for one."""

    store: ZooKeeperStore
    watch: ToldWatch

    def __call__(self, event: object) -> None:
        self.store.stir(self.watch)


class ZooKeeperStore:
    """The client. Made at once, also while the server is away; a call then waits its time."""

    def __init__(self, url: StoreUrl, *, job: str, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url
        self._folder = url.folder(job)
        self._timeout_s = timeout_s
        self._teller = Teller()
        self._terms = Terms(self._on_alarm)
        # Guards the two below.
        self._lock = threading.Lock()
        self._leases: dict[str, _Lease] = {}
        self._closed = False
        self._main = Session(
            url, timeout_s=SESSION_S, lasting=True, on_connected=self._on_connected
        )

    # --- the four verbs ---

    def get(self, key: str) -> Versioned:
        return self._main.read(self._path(key), self._deadline()).current

    def compare_and_swap(
        self, key: str, *, expected: int, value: bytes | None, lease: str | None = None
    ) -> Swap:
        deadline, path = self._deadline(), self._path(key)
        held = None if lease is None else self._held(lease)
        try:
            while True:
                session = self._main if held is None else held.session
                slot = session.read(path, deadline)
                refused = slot.current.revision != expected
                if refused or (value is None and expected == 0):
                    # Where nothing is written, nothing else shows that the lease is gone.
                    if held is not None and not self._stands(held, deadline):
                        raise SessionGone
                    return Swap(not refused, slot.current)
                if slot.version is None:
                    self._main.make(path, deadline)
                    continue
                if held is None:
                    revision = session.swap(path, slot, value, deadline)
                else:
                    revision = session.swap(
                        path, slot, value, deadline, mark=held.mark, owner=held.owner
                    )
                if revision is not None:
                    return Swap(True, ABSENT if value is None else Versioned(value, revision))
                # Somebody else changed it meanwhile: look again, and mostly find it changed.
        except SessionGone:
            raise _no_lease(str(lease)) from None

    def keep_alive(self, lease: str, ttl_s: float) -> None:
        check_ttl(lease, ttl_s)
        deadline = self._deadline()
        with self._terms.alone(lease):
            if ttl_s == 0:
                try:
                    self._revoke(lease, deadline)
                finally:
                    self._let_go(lease)
                return
            held = self._leases.get(lease)
            if held is not None and not self._stands(held, deadline):
                self._let_go(lease)
                held = None
            if held is None:
                held = self._hold(lease, ttl_s, deadline)
            held.deadline = time.monotonic() + ttl_s
            self._terms.set(lease, held.deadline)

    def watch(self, key: str, notify: Callable[[Versioned], None]) -> ToldWatch:
        # Not added before, for a connection tells whatever there is once more.
        self._main.await_up(self._deadline())
        watch = self._teller.add(key, notify)
        try:
            self._refresh(watch)
        except BaseException:
            watch.cancel()
            raise
        return watch

    def clear(self) -> None:
        self._main.remove_tree(self._folder, self._deadline())

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sessions = [self._main, *(held.session for held in self._leases.values())]
            self._leases.clear()
        ends = [session.end() for session in sessions]
        self._terms.close()
        self._teller.close()
        deadline = time.monotonic() + JOIN_S
        for thread in ends:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout_s

    def _path(self, key: str) -> str:
        return f"{self._folder}/{segment(key)}"

    # --- leases ---

    def _held(self, lease: str) -> _Lease:
        self._main.check()
        with self._lock:
            held = self._leases.get(lease)
        if held is None or held.session.expired:
            raise _no_lease(lease)
        return held

    def _hold(self, lease: str, ttl_s: float, deadline: float) -> _Lease:
        """A session for it, and the mark by which others find it."""
        folder = f"{self._folder}/{LEASES}"
        self._main.make(folder, deadline)
        session_s = min(max(ttl_s, LEASE_SESSION_S_MIN), LEASE_SESSION_S_MAX)
        session = Session(self._url, timeout_s=session_s, lasting=False)
        try:
            owner = session.owner(deadline)
            # The session is part of the name, so the mark of a lapsed one is never another's.
            mark = f"{folder}/{segment(lease)}@{owner & (2**64 - 1):x}"
            session.mark(mark, deadline)
            held = _Lease(session, owner, mark, deadline)
            with self._lock:
                if self._closed:
                    self._main.check()
                self._leases[lease] = held
        except SessionGone:
            session.end()
            raise StoreError(f"store {self._url} was lost while lease {lease!r} was made") from None
        except BaseException:
            session.end()
            raise
        return held

    def _stands(self, held: _Lease, deadline: float) -> bool:
        """Whether its session lives and nobody revoked it."""
        if held.session.expired:
            return False
        try:
            return held.session.has(held.mark, deadline) and not held.session.expired
        except SessionGone:
            return False

    def _let_go(self, lease: str) -> None:
        self._terms.drop(lease)
        with self._lock:
            held = self._leases.pop(lease, None)
        if held is not None:
            # While there is an answer to be had, what it held is gone when this returns.
            held.session.end().join(JOIN_S)

    def _revoke(self, lease: str, deadline: float) -> None:
        """Delete its marks, whosever they are, each in one transaction with the keys under it."""
        folder = f"{self._folder}/{LEASES}"
        start = f"{folder}/{segment(lease)}@"
        while True:
            marks = self._main.stats(folder, deadline)
            if not any(path.startswith(start) for path in marks):
                return
            keys = self._main.stats(self._folder, deadline, values=True)
            for mark, stat in marks.items():
                if mark.startswith(start):
                    under = [path for path, key in keys.items() if key.owner == stat.owner]
                    # False if a swap under this lease came between: then all is read again.
                    self._main.remove(mark, stat.version, under, deadline)

    def _on_alarm(self, lease: str) -> None:
        with self._terms.alone(lease):
            held = self._leases.get(lease)
            if held is None:
                return
            if held.deadline > time.monotonic():
                self._terms.set(lease, held.deadline)
            else:
                self._let_go(lease)

    # --- watches ---

    def stir(self, watch: ToldWatch, *, again: bool = False) -> None:
        """Have its key read again. In kazoo's threads, which must not wait, so it is posted."""
        self._teller.post(partial(self._refresh_posted, watch, again=again))

    def _on_connected(self) -> None:
        for watch in self._teller.watches():
            self.stir(watch, again=True)

    def _refresh_posted(self, watch: ToldWatch, *, again: bool) -> None:
        try:
            self._refresh(watch, again=again)
        except StoreError as error:
            log.info("store.watch key=%s not read yet: %s", watch.key, error)
            # Without a connection, the next one sees to it.
            if self._main.up:
                self.stir(watch, again=again)

    def _refresh(self, watch: ToldWatch, *, again: bool = False) -> None:
        """Be called at the next change, read the key, and post what is new."""
        with watch.lock:
            if watch.cancelled:
                self._main.check()
                return
            deadline, path = self._deadline(), self._path(watch.key)
            # Before the value is read, so that no change slips through between the two.
            self._main.listen(path, _Stirred(self, watch), deadline)
            found = self._main.read(path, deadline).current
            if again or found != watch.last:
                watch.last = found
                self._teller.post(partial(watch.tell, found))


def _no_lease(lease: str) -> StoreError:
    return StoreError(
        f"lease {lease!r} does not exist in this client or has expired; call keep_alive first"
    )
