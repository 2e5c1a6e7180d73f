"""Processes that end with the one that started them, however that one ends.

A forked process has its parent's sockets. While it lives the peers see no closed connection, so a
parent that was killed would seem to be alive. Holds: whoever is tied is gone as soon as the kernel
has ended the other one; nobody has to look now and then.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading

__all__ = ["die_with_parent", "die_with_process"]

_PR_SET_PDEATHSIG = 1
# Found here and not where it is called: after a fork another thread's lock may be held for good.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends.

    To be exact, when that thread ends which started this process: it should be the main one.
    """
    if _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # It may have ended before the kernel was asked.
    if os.getppid() != parent:
        os._exit(1)


def die_with_process(process: int) -> None:
    """End this process when another one does, which need not be its parent.

    Where the kernel is too old to tell, nothing happens.
    """
    try:
        file = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:
        return

    def watch() -> None:
        # Not `select`, which fails for descriptors from 1,024 on.
        poll = select.poll()
        poll.register(file, select.POLLIN)
        poll.poll()
        os._exit(1)

    threading.Thread(target=watch, name="edl-lifeline", daemon=True).start()
