"""Worker processes on this machine.

Owns: the child processes of one job. Holds: each is the leader of its own process group, so that
Ctrl-C at the terminal reaches the launcher alone, and nothing that a worker started outlives it.
`start` must be called from a thread that lives as long as the job: the kernel kills the workers
when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from edl.launch.base import ColdStart, Ended, WorkerPlan
from edl.launch.files import writing
from edl.launch.jobs import JobFolder
from edl.types import WorkerId

__all__ = ["LocalProcesses", "how_it_ended"]


class LocalProcesses:
    """A `Backend`: plain child processes with a log file each."""

    def __init__(self, folder: JobFolder, command: Sequence[str]) -> None:
        self._folder = folder
        self._command = [sys.executable, "-m", "edl.launch.boot", *command]
        self._children: dict[WorkerId, int] = {}

    def start(self, plan: WorkerPlan) -> int:
        environment = {
            **plan.environment,
            "EDL_LAUNCHER_PID": str(os.getpid()),
            "EDL_SPAWNED_AT": repr(time.time()),
        }
        path = self._folder.log(plan.worker)
        with writing(path):
            log = open(path, "ab")  # noqa: SIM115
        with log:
            pid = self._children[plan.worker] = self._spawn(plan.worker, environment, log.fileno())
        return pid

    def close(self) -> None:
        """No more will be started."""

    def alive(self) -> tuple[WorkerId, ...]:
        return tuple(self._children)

    def ended(self) -> list[Ended]:
        found = []
        for worker, pid in list(self._children.items()):
            # Looked at before it is reaped: until then its group's number cannot be used again.
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, pid, flags) is None:
                continue
            self._kill_group(pid)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            del self._children[worker]
            found.append(Ended(worker=worker, status=status, at=self._failed_at(worker, status)))
        self._reap_others()
        return sorted(found, key=lambda each: (each.status == 0, each.at))

    def terminate(self, worker: WorkerId) -> None:
        pid = self._children.get(worker)
        if pid is not None:
            # The process alone: its helpers would report their own death as an error of its.
            os.kill(pid, signal.SIGTERM)

    def kill(self, worker: WorkerId) -> None:
        pid = self._children.get(worker)
        if pid is not None:
            self._kill_group(pid)

    def cold_starts(self) -> list[ColdStart]:
        return []

    def _spawn(self, worker: WorkerId, environment: Mapping[str, str], output: int) -> int:
        """Start the process, what it says going to that file; returns its pid."""
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
        ]
        return os.posix_spawn(
            self._command[0],
            self._command,
            environment,
            file_actions=actions,
            setpgroup=0,
            # Python ignores these two for itself alone.
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )

    def _reap_others(self) -> None:
        """A kind of backend that has more children takes note of their ends here."""

    def _kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)

    def _failed_at(self, worker: WorkerId, status: int) -> float:
        """A worker whose peer died may end in the same moment: who failed first counts."""
        now = time.time()
        if status > 0:
            # It may be absent, or lie on a file system that does not answer.
            with contextlib.suppress(OSError):
                return self._folder.failure_file(worker).stat().st_mtime
        # A signal leaves no note, and others fail after it.
        return now - 1.0 if status < 0 else now


def how_it_ended(status: int) -> str:
    """A process's end in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
