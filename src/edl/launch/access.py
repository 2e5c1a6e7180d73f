"""The way from a client to a running job: to its launcher, and through its store to its leader.

Owns: nothing that lasts; every question has a connection of its own, so a leader or a launcher
that was replaced between two questions is no special case.
"""

from __future__ import annotations

import itertools
import os

from edl.errors import PeerError, StoreError, UsageError
from edl.launch.messages import port_codec
from edl.protocol.election import LEADER_KEY, Known, read_leader
from edl.store.service import StoreAnswer, StoreGet
from edl.types import Address
from edl.wire.channel import Channel
from edl.wire.tls import Tls

__all__ = ["Access"]

CONNECT_S = 5.0


class Access:
    """PeerError when nobody is there, WrongSecret when they are somebody else's."""

    def __init__(self, *, job: str, store: str, secret: bytes) -> None:
        scheme, _, rest = store.partition("://")
        if scheme != "edl":
            raise UsageError(f"store {store!r} is of no known kind; give edl://HOST:PORT")
        self._address = Address.parse(rest.rstrip("/"))
        self._job = job
        self._secret = secret
        self._tls = Tls.from_environment(os.environ)
        self._codec = port_codec()
        self._numbers = itertools.count(1)

    def launcher(self) -> Channel:
        return self.connect(self._address)

    def connect(self, address: Address) -> Channel:
        return Channel(
            address,
            job=self._job,
            secret=self._secret,
            codec=self._codec,
            timeout_s=CONNECT_S,
            tls=self._tls,
        )

    def ask_launcher(self, message: object, timeout_s: float = CONNECT_S) -> object:
        """One question, one answer; TimedOut when there is none in time."""
        with self.launcher() as channel:
            channel.send(message)
            return channel.receive(timeout_s)

    def leader(self) -> Known | None:
        """Whom the store names as the leader; None while nobody leads."""
        question = StoreGet(request_id=next(self._numbers), key=LEADER_KEY)
        answer = self.ask_launcher(question)
        if not isinstance(answer, StoreAnswer):
            raise PeerError(f"the store answered with a {type(answer).__name__}")
        if answer.error:
            raise StoreError(answer.error)
        return read_leader(answer.value, answer.revision) if answer.value is not None else None
