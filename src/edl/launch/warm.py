"""Worker processes that are forked off a template instead of being started from nothing.

`edl run --warm N` has a template of the job's own, which keeps N workers forked and waiting; a
launcher that was itself forked off a template forks another for its workers.

Owns: the connection to this job's template. Holds: a worker is its launcher's child however it
was made, so its end is noticed and it dies with its launcher in the same way; the template and its
spares end with the launcher, however it ends. A template that is gone or silent, or whose new
processes do not answer, is ended at its first failure, which takes `ANSWER_S` at most; from then on
workers are started from nothing. A template that the machine refuses a process answers at once and
is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.errors import PeerError
from edl.launch.base import ColdStart
from edl.launch.jobs import JobFolder
from edl.launch.processes import LocalProcesses
from edl.launch.template import Request, Template, TemplateSilent, ask, await_ready, preload
from edl.runtime.lifeline import die_with_parent
from edl.types import WorkerId

__all__ = ["TemplateProcess", "WarmProcesses", "fork_template", "start_template"]

log = logging.getLogger("edl.launch")

PR_SET_CHILD_SUBREAPER = 36
# What PyTorch's first step would load, for jobs that have PyTorch at hand.
REHEARSALS = {"torch": "edl.torch.rehearsal"}


@dataclass(frozen=True, slots=True)
class TemplateProcess:
    """A template that is a child of this process, and the connection to it."""

    connection: socket.socket
    process: int  # a pidfd, for its number may be another's once it has been reaped

    def close(self) -> None:
        """It ends by itself when it sees that."""
        self.connection.close()
        os.close(self.process)

    def kill(self) -> None:
        """Also one that is stopped, with the spares that wait for it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process, signal.SIGKILL)


class WarmProcesses(LocalProcesses):
    """A `Backend`: children made by `template`, and from nothing when that cannot."""

    def __init__(
        self, folder: JobFolder, command: Sequence[str], *, template: TemplateProcess
    ) -> None:
        super().__init__(folder, command)
        self._arguments = list(command)
        self._template: TemplateProcess | None = template
        self._cold_starts: list[ColdStart] = []

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None

    def cold_starts(self) -> list[ColdStart]:
        found, self._cold_starts = self._cold_starts, []
        return found

    def _spawn(self, worker: WorkerId, environment: Mapping[str, str], output: int) -> int:
        if self._template is None:
            return super()._spawn(worker, environment, output)
        request = Request(
            module="edl.launch.boot",
            arguments=self._arguments,
            environment=environment,
            folder=os.getcwd(),
            apart=False,
        )
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            return ask(self._template.connection, request, (nothing, output, output))
        except PeerError as error:
            log.warning("launch.cold worker=%s %s", worker, error)
            self._cold_starts.append(ColdStart(worker=worker, why=str(error)))
            if isinstance(error, TemplateSilent):
                self._template.kill()
                self.close()
        finally:
            os.close(nothing)
        return super()._spawn(worker, environment, output)

    def _reap_others(self) -> None:
        """What workers left behind is ours too, since we take orphans in."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ours = set(self._children.values())
        # No child at all is an error to the system, and nothing to do here.
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, flags)) and found.si_pid not in ours:
                os.waitpid(found.si_pid, 0)


def start_template(
    folder: JobFolder,
    *,
    environment: Mapping[str, str],
    modules: Sequence[str],
    beside: str,
    spares: int,
) -> TemplateProcess:
    """Start one, and wait until it has imported everything.

    `beside`: the script's folder, where modules are looked for first. UsageError names a module
    that cannot be imported.
    """
    _take_orphans_in()
    ours, theirs = socket.socketpair()
    names = [name for needs, name in REHEARSALS.items() if importlib.util.find_spec(needs)]
    command = [sys.executable, "-m", "edl.launch.template", "--connection", str(theirs.fileno())]
    command += ["--folder", beside, "--spares", str(spares)]
    command += [f"--preload={name}" for name in [*modules, *names]]
    theirs.set_inheritable(True)
    with open(folder.path / "template.log", "ab") as output:
        template = os.posix_spawn(
            command[0],
            command,
            {**environment, "EDL_LAUNCHER_PID": str(os.getpid())},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, output.fileno(), 2),
            ],
            setsid=True,
            setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
        )
    theirs.close()
    made = TemplateProcess(ours, os.pidfd_open(template))
    try:
        await_ready(ours)
    except BaseException:
        made.kill()
        made.close()
        os.waitpid(template, 0)
        raise
    return made


def fork_template(modules: Sequence[str] = (), *, spares: int = 0) -> TemplateProcess:
    """Make a template of this process, which has one thread."""
    if modules:
        preload(modules)
    ours, theirs = socket.socketpair()
    _take_orphans_in()
    launcher = os.getpid()
    template = os.fork()
    if template:
        theirs.close()
        return TemplateProcess(ours, os.pidfd_open(template))
    ours.close()
    die_with_parent(launcher)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    Template([theirs], spares=spares).serve()
    os._exit(0)


def _take_orphans_in() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")
