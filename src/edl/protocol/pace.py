"""How fast the job goes, from the leader's own committed steps.

Owns: step count, recent step times and what the workers' records said of themselves. The switch
of a generation is announced so many steps ahead as fit in the allowance at this pace.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from edl.config import Settings
from edl.protocol.events import StepCommitted
from edl.protocol.messages import AdjustmentStatus, Status, WorkerStatus
from edl.protocol.record import StepRecord
from edl.protocol.topology import Generation
from edl.types import Member, WorkerId

__all__ = ["Pace"]

_WINDOW = 20


class Pace:
    """Recent steps of the job."""

    def __init__(self) -> None:
        self.step = 0
        self.epoch = 0
        self.epochs = 0
        self.batch = 0
        self.ahead = 0
        self.report: dict[str, float] = {}
        self._records: tuple[StepRecord, ...] = ()
        self._seconds = 0.0
        self._samples = 0
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self._alike = 0  # how many of the recent steps were done by as many workers as the last

    def on_committed(self, event: StepCommitted) -> None:
        self.step = event.step
        self.epoch, self.epochs, self.batch = event.epoch, event.epochs, event.batch
        self.report = event.report or self.report
        self.ahead = max((record.ahead for record in event.records), default=0)
        same = len(event.records) == len(self._records)
        self._alike = min(_WINDOW, self._alike + 1) if same else 1
        self._records = event.records
        self._seconds += event.duration_s
        self._samples += event.samples
        self._recent.append((event.duration_s, event.samples))

    def step_s(self) -> float:
        """The recent steps' median duration; 0 before the first."""
        return median(duration for duration, _ in self._recent) if self._recent else 0.0

    def throughput(self) -> float:
        """Samples per second over the recent steps with as many workers as now."""
        alike = self._present()
        seconds = sum(duration for duration, _ in alike)
        return sum(samples for _, samples in alike) / seconds if seconds > 0 else 0.0

    def _present(self) -> list[tuple[float, int]]:
        """The recent steps that were done by as many workers as there are now."""
        return list(self._recent)[-self._alike :] if self._alike else []

    def switch_step(self, settings: Settings) -> int:
        """The step to switch at: T_a / T_b ahead, and at least what the loaders have fetched.

        With `switch_at_once`, where nothing is fetched ahead, as soon as a record can tell
        everybody. Before the first step nothing is fetched and nobody computes: the next one will
        do.
        """
        if not self._recent:
            return self.step
        if settings.switch_at_once and not self.ahead:
            return self.step + 2
        step_s = self.step_s()
        steps = math.ceil(settings.switch_allowance_s / step_s) if step_s > 0 else 1
        # A job of tiny steps must not wait for thousands of them: the allowance is an upper
        # bound on time, and the loaders' depth is what has to be covered.
        return self.step + 1 + max(1, self.ahead, min(steps, 1000))

    def status(
        self,
        *,
        request_id: str,
        state: str,
        leader: WorkerId,
        generation: Generation | None,
        arriving: Iterable[Member],
        adjustment: AdjustmentStatus | None,
        adjustments: int,
        settings: Settings,
    ) -> Status:
        """The job as `edl status` shows it."""
        members = generation.members if generation else ()
        known = {member.worker for member in members}
        workers = [self._worker(m, rank, leader, "training") for rank, m in enumerate(members)]
        workers += [
            self._worker(member, -1, leader, "joining")
            for member in arriving
            if member.worker not in known
        ]
        return Status(
            request_id=request_id,
            state=state,
            step=self.step,
            epoch=self.epoch,
            epochs=self.epochs,
            generation=generation.number if generation else 0,
            batch=self.batch,
            throughput=self.throughput(),
            step_s=median([duration for duration, _ in self._present()] or [0.0]),
            pace_steps=len(self._present()),
            workers=tuple(workers),
            adjustment=adjustment,
            report=dict(self.report),
            adjustments=adjustments,
            trained_s=self._seconds,
            trained_samples=self._samples,
            switch_steps=self.switch_step(settings) - self.step,
        )

    def _worker(self, member: Member, rank: int, leader: WorkerId, state: str) -> WorkerStatus:
        record = self._records[rank] if 0 <= rank < len(self._records) else None
        return WorkerStatus(
            id=member.worker,
            rank=rank,
            pid=member.pid,
            host=member.host,
            slot=str(member.slot),
            address=member.address,
            leader=member.worker == leader,
            state=state,
            samples=record.samples if record else 0,
            compute_s=record.compute_us / 1e6 if record else 0.0,
        )
