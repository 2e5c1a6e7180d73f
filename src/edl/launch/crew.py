"""Starts a job's workers: what each finds in its environment, and which process it is.

Owns: the pids of those that run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

from edl.config import Settings
from edl.launch.base import Backend, JobSpec, WorkerPlan
from edl.launch.environment import checkpoint_environment, worker_environment
from edl.launch.jobs import JobFolder
from edl.launch.slots import SlotBook
from edl.protocol.messages import Joiner
from edl.runtime.standing import read_noted
from edl.types import WorkerId

__all__ = ["Crew"]

log = logging.getLogger("edl.launch")


class Crew:
    """`environment`: how the job's store is reached."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        settings: Settings,
        folder: JobFolder,
        slots: SlotBook,
        processes: Backend,
        environment: dict[str, str],
    ) -> None:
        self._spec = spec
        self._settings = settings
        self._folder = folder
        self._slots = slots
        self._processes = processes
        self._environment = environment
        self._pids: dict[WorkerId, int] = {}

    def start(
        self, joiners: Sequence[Joiner], request_id: str, *, run: str, founders: int, attempt: int
    ) -> Iterator[WorkerId]:
        """One after the other; raises whatever keeps one from starting.

        `attempt`: restarts so far.
        """
        together = len(self._processes.alive()) + len(joiners)
        noted = read_noted(self._folder.path)
        data = checkpoint_environment(
            self._spec, again=attempt > 0, saved=noted.step if noted is not None else None
        )
        if not self._spec.audit:
            data["EDL_AUDIT"] = "0"
        for joiner in joiners:
            environment = worker_environment(
                {**os.environ, **self._spec.env, **data, **self._environment},
                folder=self._folder,
                run=run,
                attempt=attempt,
                settings=self._settings,
                joiner=joiner,
                request_id=request_id,
                founders=founders,
                together=together,
                device=self._slots.device(joiner.slot),
                gpus=self._spec.gpus,
            )
            plan = WorkerPlan(
                worker=joiner.worker,
                slot=joiner.slot,
                request_id=request_id,
                environment=environment,
            )
            pid = self._pids[joiner.worker] = self._processes.start(plan)
            log.info("launch.started worker=%s pid=%d slot=%s", joiner.worker, pid, joiner.slot)
            yield joiner.worker

    def lease_of(self, worker: WorkerId) -> str:
        """The lease of one that has ended, as the worker named it."""
        return f"{worker}-{self._pids.pop(worker)}"
