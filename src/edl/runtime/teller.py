"""What the training thread tells its agent after a commit.

Owns: recent step times, the script's own reports and what moving the state cost. The stop of an
adjustment is what its first step took beyond the usual: beyond the longer of the steps before it
and the one after it, since fewer workers make longer steps by themselves. So a change of
generation is told one step late, or when the loop ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from edl.protocol.events import Entered, StepCommitted
from edl.protocol.progress import Progress, Round
from edl.protocol.record import StepRecord
from edl.runtime.agent import Agent
from edl.runtime.clock import now
from edl.runtime.framework import Transfer

__all__ = ["Teller"]

_NO_TRANSFER = Transfer(seconds=0.0, bytes=0)
_RECENT = 20


class Teller:
    """One worker's news about its steps."""

    def __init__(self, agent: Agent | None) -> None:
        self._agent = agent
        self.reports: dict[str, float] = {}
        self.epochs = 0  # as the script says; 0: it has not
        self.transfer = _NO_TRANSFER
        self.arrived = False  # a newcomer whose first step is not committed yet
        self._last = now()
        self._durations: deque[float] = deque(maxlen=_RECENT)
        self._news: Entered | None = None
        self._first_s = 0.0
        self._usual_s = 0.0

    def entered(self, transfer: Transfer, *, arrived: bool) -> None:
        """The worker is in; its first step begins now."""
        self.transfer, self.arrived, self._last = transfer, arrived, now()

    def mended(self) -> None:
        """The next commit is the first one in a generation of survivors."""
        self._news, self.transfer, self.arrived = None, _NO_TRANSFER, False

    def committed(
        self,
        progress: Progress,
        records: Sequence[StepRecord],
        decided: Round,
        *,
        entering: bool,
    ) -> None:
        duration = now() - self._last
        self._last += duration
        self.flush(duration)
        usual = median(self._durations) if entering and self._durations else 0.0
        self._durations.append(duration)
        agent = self._agent
        if agent is None:
            return
        agent.committed = progress.step
        if agent.leads:
            agent.post(self._commit(progress, records, decided, duration), urgent=False)
        if entering:
            self._first_s = duration
            self._usual_s = usual if usual > 0.0 and not self.arrived else duration
            self._news = Entered(
                generation=progress.generation.number,
                step=progress.step,
                transfer_s=self.transfer.seconds,
                transfer_bytes=self.transfer.bytes,
                stop_s=0.0,
            )
            self.transfer, self.arrived = _NO_TRANSFER, False

    def flush(self, next_s: float = 0.0) -> None:
        """Tell of a change of generation, now that the step after it is known, or none comes."""
        news, self._news = self._news, None
        if news is not None and self._agent is not None:
            stop_s = max(0.0, self._first_s - max(self._usual_s, next_s))
            self._agent.post(replace(news, stop_s=stop_s))

    def _commit(
        self,
        progress: Progress,
        records: Sequence[StepRecord],
        decided: Round,
        duration: float,
    ) -> StepCommitted:
        ledger = progress.ledger
        return StepCommitted(
            step=progress.step,
            epoch=ledger.epoch,
            epochs=ledger.epochs or self.epochs,
            batch=ledger.batch,
            samples=sum(decided.samples.values()),
            duration_s=duration,
            records=tuple(records),
            report=dict(self.reports),
            weights=dict(ledger.weights),
        )
