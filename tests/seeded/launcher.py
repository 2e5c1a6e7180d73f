"""The launcher of one world: it sees processes end, and tells whoever leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.protocol import messages as m
from edl.protocol.election import LEADER_KEY, read_leader
from edl.store.base import Versioned
from edl.types import WorkerId

if TYPE_CHECKING:
    from tests.seeded.world import World

__all__ = ["Launcher"]


class Launcher:
    """Says to every leader, also to the next one, which processes have ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.me = WorkerId("launcher")
        self.frozen = False
        self._ended: dict[WorkerId, str] = {}
        self._peer = 0
        self._linked = False
        self._leader = Versioned(None, 0)
        world.shelf.watch(LEADER_KEY, self._on_leader)

    def saw_end(self, worker: WorkerId, why: str) -> None:
        self._ended[worker] = why
        if self._linked:
            self._tell(worker)

    def _on_leader(self, seen: Versioned) -> None:
        self._leader = seen
        self._linked = False
        self._dial(seen.revision)

    def _dial(self, revision: int) -> None:
        if self._leader.value is None or self._leader.revision != revision or self.world.over:
            return
        self._peer += 1
        address = read_leader(self._leader.value, revision).address
        self.world.network.dial(self, self._peer, address)

    def opened(self, peer: int) -> None:
        if peer == self._peer:
            self._linked = True
            for worker in self._ended:
                self._tell(worker)

    def heard(self, peer: int, message: m.Message) -> None:
        if peer == self._peer and isinstance(message, m.NotLeader):
            self.world.network.close(self, peer)
            self.closed(peer, "not the leader")

    def closed(self, peer: int, why: str) -> None:
        if peer == self._peer:
            self._linked = False
            self.world.schedule.after(0.5, self._dial, self._leader.revision)

    def _tell(self, worker: WorkerId) -> None:
        ended = m.ProcessEnded(request_id="launcher", worker=worker, why=self._ended[worker])
        self.world.network.send(self, self._peer, ended)
