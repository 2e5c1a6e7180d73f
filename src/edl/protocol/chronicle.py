"""What the leader tells of a job: numbered events, finished adjustments, and who listens.

Holds: numbers grow by one and go on under the next leader, so a listener that reconnects asks
for what it missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

from edl.protocol.messages import AdjustmentRecord, Happened

__all__ = ["KEPT_RECORDS", "Chronicle"]

_KEPT = 1000
# Finished adjustments, as many as answers are remembered; all of them travel in a hand-over.
KEPT_RECORDS = 512


class Chronicle:
    """The job's recent past, for operators."""

    def __init__(self) -> None:
        self.seq = 0
        # This leader's predecessor died: only listeners know how far it had counted.
        self.orphaned = False
        self.records: deque[AdjustmentRecord] = deque(maxlen=KEPT_RECORDS)
        self._recent: deque[Happened] = deque(maxlen=_KEPT)
        self._listeners: dict[int, str] = {}

    def write(
        self,
        *,
        what: str,
        request_id: str,
        generation: int,
        step: int,
        fields: Mapping[str, str | int | float],
    ) -> Happened:
        self.seq += 1
        happened = Happened(
            seq=self.seq,
            what=what,
            request_id=request_id,
            generation=generation,
            step=step,
            fields=dict(fields),
        )
        self._recent.append(happened)
        return happened

    def count_from(self, seq: int) -> None:
        """A listener heard this much of a leader that died: its numbers go on from there."""
        if not self.orphaned:
            return
        self.orphaned = False
        self.seq += seq
        shifted = (replace(happened, seq=happened.seq + seq) for happened in self._recent)
        self._recent = deque(shifted, maxlen=_KEPT)

    def since(self, seq: int) -> tuple[Happened, ...]:
        return tuple(happened for happened in self._recent if happened.seq > seq)

    def subscribe(self, peer: int, request_id: str) -> None:
        self._listeners[peer] = request_id

    def unsubscribe(self, peer: int) -> None:
        self._listeners.pop(peer, None)

    def subscribers(self) -> list[tuple[int, str]]:
        return list(self._listeners.items())

    def restore(
        self, seq: int, recent: Iterable[Happened], records: Iterable[AdjustmentRecord]
    ) -> None:
        """Go on where the old leader stopped."""
        self.seq = seq
        self._recent = deque(recent, maxlen=_KEPT)
        self.records = deque(records, maxlen=KEPT_RECORDS)
