"""Asking processes to go, and killing those that do not.

Runs in the hub's thread. Owns: nothing that lasts. Holds: whoever was asked is killed when its
time is up; one whose script has failed, and only waits to be ended, is asked until it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from functools import partial

from edl.launch.base import Backend
from edl.launch.jobs import JobFolder
from edl.types import WorkerId
from edl.wire.hub import Hub

__all__ = ["Dismissal"]

log = logging.getLogger("edl.launch")

# Between asking a process to go and killing it.
TERMINATE_S = 3.0
REMIND_S = 0.3


class Dismissal:
    """`stopped` says that nobody is to be asked any more."""

    def __init__(
        self, hub: Hub, processes: Backend, folder: JobFolder, stopped: Callable[[], bool]
    ) -> None:
        self._hub = hub
        self._processes = processes
        self._folder = folder
        self._stopped = stopped

    def one(self, worker: WorkerId) -> None:
        log.info("launch.dismissed worker=%s", worker)
        self._processes.terminate(worker)
        self._hub.call_later(TERMINATE_S, partial(self._processes.kill, worker))

    def everybody(self) -> None:
        """Nothing is left to save: do not wait long."""
        workers = self._processes.alive()
        for worker in workers:
            self._processes.terminate(worker)
        self._hub.call_later(TERMINATE_S, partial(self.kill, workers))
        self._hub.call_later(REMIND_S, partial(self._remind, workers))

    def kill(self, workers: Iterable[WorkerId]) -> None:
        for worker in workers:
            self._processes.kill(worker)

    def _remind(self, workers: tuple[WorkerId, ...]) -> None:
        """Ask those again whose script has failed: they only wait to be ended.

        While it failed, the first request was to them a wish to leave at the step's end.
        """
        alive = set(self._processes.alive())
        for worker in workers:
            if worker in alive and os.path.exists(self._folder.failure_file(worker)):
                self._processes.terminate(worker)
        if alive & set(workers) and not self._stopped():
            self._hub.call_later(REMIND_S, partial(self._remind, workers))
