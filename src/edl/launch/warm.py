"""Worker processes that are forked off a template instead of being started from nothing.

Owns: the connection to this job's template. Holds: a worker is its launcher's child however it
was made, so its end is noticed and it dies with its launcher in the same way; when the template is
gone, workers are started as usual.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import socket
from collections.abc import Mapping, Sequence

from edl.errors import PeerError
from edl.launch.jobs import JobFolder
from edl.launch.processes import LocalProcesses
from edl.launch.template import Request, Template, ask
from edl.runtime.lifeline import die_with_parent

__all__ = ["WarmProcesses", "fork_template"]

log = logging.getLogger("edl.launch")

PR_SET_CHILD_SUBREAPER = 36


class WarmProcesses(LocalProcesses):
    """A `Backend`: children made by `template`, which is a connection to one."""

    def __init__(
        self, folder: JobFolder, command: Sequence[str], *, template: socket.socket
    ) -> None:
        super().__init__(folder, command)
        self._arguments = list(command)
        self._template = template

    def close(self) -> None:
        self._template.close()

    def _spawn(self, environment: Mapping[str, str], output: int) -> int:
        request = Request(
            module="edl.launch.boot",
            arguments=self._arguments,
            environment=environment,
            folder=os.getcwd(),
            apart=False,
        )
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            return ask(self._template, request, (nothing, output, output))
        except PeerError as error:
            log.warning("launch.cold %s", error)
            return super()._spawn(environment, output)
        finally:
            os.close(nothing)

    def _reap_others(self) -> None:
        """What workers left behind is ours too, since we take orphans in."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ours = set(self._children.values())
        # No child at all is an error to the system, and nothing to do here.
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, flags)) and found.si_pid not in ours:
                os.waitpid(found.si_pid, 0)


def fork_template() -> socket.socket:
    """Make a template of this process, which has one thread; returns the connection to it."""
    ours, theirs = socket.socketpair()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(code)}")
    launcher = os.getpid()
    if os.fork():
        theirs.close()
        return ours
    ours.close()
    die_with_parent(launcher)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)
    Template([theirs]).serve()
    os._exit(0)
