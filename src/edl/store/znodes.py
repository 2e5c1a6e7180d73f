"""Sessions with ZooKeeper, and the few things that the store asks of its tree. The room of kazoo.

kazoo connects again by itself and may wait for ever; here every wait has an end, and every error
is one of ours. Holds: what may be asked twice is asked again after a lost connection until its
deadline; what may not is asked once, and a lost answer is told as unknown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from edl.errors import StoreError
from edl.store.base import Versioned
from edl.store.url import StoreUrl

__all__ = ["Session", "SessionGone", "Slot", "Stat"]

log = logging.getLogger("edl.store")

T = TypeVar("T")

ABSENT = Versioned(None, 0)
VALUE = "value"
# A server that is just starting may take a connection and never answer on it.
HANDSHAKE_S = 2.0
RECONNECT = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}
LOST = (ConnectionLoss, ConnectionClosedError, OperationTimeoutError, SessionExpiredError)
CONFLICTS = (BadVersionError, NoNodeError, NodeExistsError)
# What a transaction says of the changes before and after the one that failed.
BYSTANDERS = (RolledBackError, RuntimeInconsistency)


class SessionGone(Exception):
    """The session of a lease has expired, and all that it held with it; or its mark is gone."""


@dataclass(frozen=True, slots=True)
class Stat:
    """A node's version, and the session whose end deletes it (0: none's)."""

    version: int
    owner: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A key as it was read: its folder's version (None: no folder yet), its value, whose it is."""

    version: int | None
    current: Versioned
    owner: int


class Session:
    """One session with the servers. Every method may be called from any thread.

    `lasting`: it holds nothing, so when it expires a new one takes its place unnoticed.
    `on_connected` is called in kazoo's thread just before the session is up, and must not wait.
    """

    def __init__(
        self,
        url: StoreUrl,
        *,
        timeout_s: float,
        lasting: bool,
        on_connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = url
        self._lasting = lasting
        self._on_connected = on_connected
        self._ended = False
        self._expired = False
        # Set while connected, and for good once ended, so that nobody waits on.
        self._up = threading.Event()
        # kazoo divides the session's time by the number of servers, and waits so long for each to
        # answer; said several times over, they are given up soon enough for the session to live.
        times = max(1, round(timeout_s / HANDSHAKE_S / len(url.servers)))
        self._client = KazooClient(
            hosts=",".join(str(server) for server in url.servers * times),
            timeout=timeout_s,
            connection_retry=RECONNECT,
        )
        self._client.add_listener(self._on_state)
        self._client.start_async()

    # --- its life ---

    @property
    def up(self) -> bool:
        return self._up.is_set() and not self._ended

    @property
    def expired(self) -> bool:
        return self._expired and not self._lasting

    def check(self) -> None:
        if self._ended:
            raise StoreError(f"this client of store {self._url} is closed")

    def await_up(self, deadline: float) -> None:
        if not self._up.wait(max(0.0, deadline - time.monotonic())):
            raise StoreError(f"store {self._url} is unreachable: no server took the connection")
        self.check()

    def owner(self, deadline: float) -> int:
        """The session's number, once there is one."""
        self.await_up(deadline)
        identity = self._client.client_id
        if identity is None:
            raise StoreError(f"store {self._url} was lost as soon as it was connected")
        return int(identity[0])

    def end(self) -> threading.Thread:
        """Begin to end it, and say who does: without an answer from the server it takes long."""
        self._ended = True
        self._up.set()
        thread = threading.Thread(target=self._end, name="edl-store-end", daemon=True)
        thread.start()
        return thread

    def _end(self) -> None:
        try:
            self._client.stop()
            self._client.close()
        except KazooException as error:
            # The server ends the session after its time.
            log.warning("store.end address=%s not confirmed: %r", self._url, error)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            # In this order: whoever waited for the connection is not among those who had lost it.
            self._on_connected()
            self._up.set()
        elif not self._ended:
            self._up.clear()
        # kazoo goes on with a new session of its own accord; what the old one held is gone.
        self._expired = self._expired or state == KazooState.LOST

    # --- what may be asked twice ---

    def read(self, path: str, deadline: float) -> Slot:
        def question() -> Slot:
            # In this order, all sent at once: the folder's version is never newer than the value.
            # The first makes a follower catch up, lest it answer with the past.
            self._client.sync_async(path)
            folder = self._client.exists_async(path)
            value = self._client.get_async(f"{path}/{VALUE}")
            stat = self._result(folder, deadline)
            version = None if stat is None else int(stat.version)
            try:
                data, stat = self._result(value, deadline)
            except NoNodeError:
                return Slot(version, ABSENT, 0)
            return Slot(version, Versioned(data, int(stat.mzxid)), int(stat.ephemeralOwner))

        return self._ask(question, deadline)

    def listen(self, path: str, on_event: Callable[[object], None], deadline: float) -> None:
        """Call `on_event` once, when the value of that folder changes or the connection is lost.

        Equal ones are called once, however often they were given.
        """

        def question() -> None:
            # Its answer tells nothing; if it is lost, so is the connection.
            self._client.exists_async(f"{path}/{VALUE}", watch=on_event)

        self._ask(question, deadline)

    def make(self, path: str, deadline: float) -> None:
        """A folder and all above it; harmless where there is one."""

        def question() -> None:
            self._result(self._client.ensure_path_async(path), deadline)

        self._ask(question, deadline)

    def mark(self, path: str, deadline: float) -> None:
        """An empty node that lives as long as this session."""

        def question() -> None:
            try:
                self._result(self._client.create_async(path, ephemeral=True), deadline)
            except NodeExistsError:
                # The name has the session in it: it was made before an answer was lost.
                return

        self._ask(question, deadline)

    def has(self, path: str, deadline: float) -> bool:
        def question() -> bool:
            return self._result(self._client.exists_async(path), deadline) is not None

        return self._ask(question, deadline)

    def stats(self, folder: str, deadline: float, *, values: bool = False) -> dict[str, Stat]:
        """Of each node in a folder, or of the values of the folders in it, by path."""
        below = f"/{VALUE}" if values else ""

        def question() -> dict[str, Stat]:
            self._client.sync_async(folder)
            try:
                names = self._result(self._client.get_children_async(folder), deadline)
            except NoNodeError:
                return {}
            paths = [f"{folder}/{name}{below}" for name in sorted(names)]
            pending = [self._client.exists_async(path) for path in paths]
            found = [self._result(each, deadline) for each in pending]
            return {
                path: Stat(int(stat.version), int(stat.ephemeralOwner))
                for path, stat in zip(paths, found, strict=True)
                if stat is not None
            }

        return self._ask(question, deadline)

    def remove(self, path: str, version: int, others: list[str], deadline: float) -> bool:
        """Delete a node of that version together with others; False if something had changed.

        A lost answer makes a second try find them gone, which is told as a change.
        """

        def question() -> bool:
            change = self._client.transaction()
            change.delete(path, version=version)
            for other in others:
                change.delete(other)
            return self._done(self._result(change.commit_async(), deadline))

        return self._ask(question, deadline)

    def remove_tree(self, path: str, deadline: float) -> None:
        """Delete a node and all below it; harmless where there is none."""

        def question() -> None:
            try:
                names = self._result(self._client.get_children_async(path), deadline)
            except NoNodeError:
                return
            for name in names:
                self.remove_tree(f"{path}/{name}", deadline)
            try:
                self._result(self._client.delete_async(path), deadline)
            except NoNodeError:
                return  # an ephemeral one, whose session has just ended

        self._ask(question, deadline)

    # --- what may not ---

    def swap(
        self,
        path: str,
        slot: Slot,
        value: bytes | None,
        deadline: float,
        *,
        mark: str | None = None,
        owner: int = 0,
    ) -> int | None:
        """Change what was read: the new revision, or None if somebody else was faster.

        With a mark, the value becomes this session's (`owner`), and SessionGone says that the
        mark is gone.
        """
        node = f"{path}/{VALUE}"
        change = self._client.transaction()
        change.set_data(path, b"", version=slot.version)
        if mark is not None:
            change.set_data(mark, b"")
        if slot.current.value is not None and value is not None and slot.owner == owner:
            change.set_data(node, value)
        else:
            # A node never changes its owner.
            if slot.current.value is not None:
                change.delete(node)
            if value is not None:
                change.create(node, value, ephemeral=mark is not None)
        self.await_up(deadline)
        try:
            results = self._result(change.commit_async(), deadline)
        except (StoreError, *LOST) as error:
            self.check()
            if isinstance(error, SessionExpiredError) and not self._lasting:
                raise SessionGone from error
            raise StoreError(
                f"lost store {self._url} during a compare-and-swap ({error!r}): it may or may not "
                "have been done; read the key again"
            ) from error
        if mark is not None and isinstance(results[1], NoNodeError):
            raise SessionGone
        return int(results[0].mzxid) if self._done(results) else None

    def _done(self, results: list[Any]) -> bool:
        """Of a transaction; False on a conflict."""
        errors = [each for each in results if isinstance(each, Exception)]
        causes = [each for each in errors if not isinstance(each, BYSTANDERS)]
        if any(not isinstance(each, CONFLICTS) for each in causes):
            raise StoreError(f"store {self._url} refused a change: {causes!r}")
        return not errors

    # --- waiting ---

    def _result(self, pending: Any, deadline: float) -> Any:
        try:
            return pending.get(timeout=max(0.0, deadline - time.monotonic()))
        except KazooTimeoutError:
            raise StoreError(f"store {self._url} did not answer in time") from None

    def _ask(self, question: Callable[[], T], deadline: float) -> T:
        while True:
            self.await_up(deadline)
            try:
                return question()
            except LOST as error:
                self.check()
                if isinstance(error, SessionExpiredError) and not self._lasting:
                    raise SessionGone from error
                if time.monotonic() >= deadline:
                    raise StoreError(f"store {self._url} is unreachable: {error!r}") from error
            except KazooException as error:
                raise StoreError(f"store {self._url} refused: {error!r}") from error
