"""How the first generation comes about.

Owns: the founders that have registered, become ready and built the first group. Holds: training
begins only when all of them have and the generation is in the store.
"""

from __future__ import annotations

from edl.protocol.rendezvous import Rendezvous
from edl.protocol.topology import Generation, draw_first
from edl.types import Member, WorkerId

__all__ = ["Founding"]


class Founding:
    """The founders of one job, until the first generation is recorded."""

    def __init__(self, *, leader: WorkerId, founders: int, token: int) -> None:
        self.leader = leader
        self.founders = founders
        self.token = token
        self.arrived: dict[WorkerId, Member] = {}
        self.generation: Generation | None = None
        self.keys = Rendezvous()
        self._ready: set[WorkerId] = set()
        self._unbuilt: set[WorkerId] = set()

    def on_registered(self, member: Member) -> None:
        self.arrived[member.worker] = member

    def on_ready(self, worker: WorkerId, *, number: int) -> Generation | None:
        """The founding generation, as soon as everyone is ready; None before and after."""
        self._ready.add(worker)
        if len(self._ready) < self.founders or self.generation is not None:
            return None
        return self._draw(number)

    def draw_again(self, *, number: int, without: WorkerId | None = None) -> Generation:
        """Replace a founding generation whose build failed; `without` is not part of it."""
        if without is not None:
            self.arrived.pop(without, None)
            self._ready.discard(without)
            self.founders -= 1
        self.keys = Rendezvous()
        return self._draw(number)

    def _draw(self, number: int) -> Generation:
        self.generation = draw_first(
            self.arrived.values(), number=number, leader=self.leader, token=self.token
        )
        self._unbuilt = set(self.generation.workers())
        return self.generation

    @property
    def unbuilt(self) -> list[WorkerId]:
        """Who has not built the first group yet."""
        return sorted(self._unbuilt)

    def on_built(self, worker: WorkerId) -> bool:
        """True when this was the last one."""
        waited = bool(self._unbuilt)
        self._unbuilt.discard(worker)
        return waited and not self._unbuilt
