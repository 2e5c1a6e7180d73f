"""The way from a client to a running job: to its launcher, and through its store to its leader.

Owns: nothing that lasts; every question has a connection of its own, so a leader or a launcher
that was replaced between two questions, or a job that began again, is no special case.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

from edl.errors import PeerError, StoreError, TimedOut, WrongSecret
from edl.launch.keys import CURRENT_KEY, read_current
from edl.launch.messages import AskLauncher, LauncherStatus, port_codec
from edl.protocol.election import LEADER_KEY, Known, read_leader
from edl.store.base import EMBEDDED_SCHEME, Versioned, open_store
from edl.store.service import StoreAnswer, StoreGet
from edl.store.url import with_run
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.tls import Tls

__all__ = ["Access"]

CONNECT_S = 5.0
LAUNCHER_S = 0.5  # for what the launcher answers from memory


class Access:
    """PeerError when nobody is there, WrongSecret when they are somebody else's.

    `launcher` and `run` are in the job's folder; without it they are asked of the store.
    """

    def __init__(
        self,
        *,
        job: str,
        store: str,
        secret: bytes,
        launcher: Address | None = None,
        run: Callable[[], str] | None = None,
    ) -> None:
        self._store = store
        self._job = job
        self._secret = secret
        self._run = run
        self._tls = Tls.from_environment(os.environ)
        self._codec = port_codec()
        self._numbers = itertools.count(1)
        scheme, _, rest = store.partition("://")
        # Our own store is served by the launcher, on its port.
        self._served = Address.parse(rest.rstrip("/")) if scheme == EMBEDDED_SCHEME else None
        self._address = launcher or self._served
        if self._served is None:
            # Whatever is wrong with the URL is told now.
            open_store(store, job=job, secret=secret, tls=self._tls).close()

    def launcher(self) -> Channel:
        return self.connect(self._address or self._current()[1])

    def connect(self, address: Address, timeout_s: float = CONNECT_S) -> Channel:
        return Channel(
            address,
            job=self._job,
            secret=self._secret,
            codec=self._codec,
            timeout_s=timeout_s,
            tls=self._tls,
        )

    def ask_launcher(self, message: object, timeout_s: float = CONNECT_S) -> object:
        """One question, one answer; TimedOut when there is none in time."""
        with self.launcher() as channel:
            channel.send(message)
            return channel.receive(timeout_s)

    @property
    def outside(self) -> bool:
        """Whether the store is served by others, not by the launcher."""
        return self._served is None

    def launcher_status(self) -> LauncherStatus | None:
        """What the launcher knows without the store; None if it does not answer at once.

        The store is never asked, so this takes no time while the store is away.
        """
        if self._address is None:
            return None
        try:
            with self.connect(self._address, LAUNCHER_S) as channel:
                channel.send(AskLauncher(request_id=str(next(self._numbers))))
                answer = channel.receive(LAUNCHER_S)
        except WrongSecret:
            raise
        except (PeerError, TimedOut):
            return None
        return answer if isinstance(answer, LauncherStatus) else None

    def leader(self) -> Known | None:
        """Whom the store names as the leader; None while nobody leads."""
        run = self._run() if self._run is not None else self._current()[0]
        if not run:
            # Not begun yet: what stands there without a run would be somebody else's.
            return None
        found = self._read(run, LEADER_KEY)
        return read_leader(found.value, found.revision) if found.value is not None else None

    def _current(self) -> tuple[str, Address]:
        found = self._read("", CURRENT_KEY)
        if found.value is None:
            raise PeerError(f"the store knows of no job {self._job!r} that runs")
        return read_current(found.value)

    def _read(self, run: str, key: str) -> Versioned:
        if self._served is None:
            store = open_store(
                with_run(self._store, run), job=self._job, secret=self._secret, tls=self._tls
            )
            try:
                return store.get(key)
            finally:
                store.close()
        name = f"{run}/{key}" if run else key
        with self.connect(self._served) as channel:
            channel.send(StoreGet(request_id=next(self._numbers), key=name))
            answer = channel.receive(CONNECT_S)
        if not isinstance(answer, StoreAnswer):
            raise PeerError(f"the store answered with a {type(answer).__name__}")
        if answer.error:
            raise StoreError(answer.error)
        return Versioned(answer.value, answer.revision)
