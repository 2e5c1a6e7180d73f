"""Whose end the leader is being told of, and whom the others took for dead though it runs.

Owns: both lists of one run. Holds: a leader, also the next one, hears of an end until a generation
stands without that worker, or until its adjustment is settled.
"""

from __future__ import annotations

from edl.launch.census import Census
from edl.launch.follow import Follower
from edl.protocol.messages import ProcessEnded, Withdraw
from edl.types import WorkerId

__all__ = ["Departures"]


class Departures:
    """See the module."""

    def __init__(self, follower: Follower, census: Census) -> None:
        self._follower = follower
        self._census = census
        self._told: set[WorkerId] = set()
        self._expelled: set[WorkerId] = set()

    def tell(self, worker: WorkerId, request_id: str, why: str) -> None:
        gone = ProcessEnded(request_id=request_id, worker=worker, why=why)
        self._follower.tell(f"gone-{worker}", gone)
        self._told.add(worker)

    def withdrawn(self, request_id: str, why: str) -> None:
        """A requester gave up."""
        self._follower.tell(_key(request_id), Withdraw(request_id=request_id, why=why))

    def settled(self, request_id: str) -> None:
        """An adjustment is over; of newcomers that joined by it that says nothing."""
        self._follower.withdraw(_key(request_id))
        newcomers = self._census.started_for(request_id)
        self._withdraw([each for each in newcomers if not self._census.is_member(each)])

    def tidy(self) -> None:
        """Who is in no generation any more need not be reported to the next leader."""
        self._withdraw([each for each in self._told if self._census.has_left(each)])

    def newly_expelled(self) -> list[WorkerId]:
        """Each is told once."""
        found = sorted(self._census.expelled() - self._expelled)
        self._expelled.update(found)
        return found

    def was_expelled(self, worker: WorkerId) -> bool:
        return worker in self._expelled

    def _withdraw(self, workers: list[WorkerId]) -> None:
        for worker in workers:
            self._told.discard(worker)
            self._follower.withdraw(f"gone-{worker}")


def _key(request_id: str) -> str:
    return f"withdraw-{request_id}"
