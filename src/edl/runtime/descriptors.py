"""How many descriptors this process may open.

A worker has a connection to each other worker for each of its groups, and its leader one more to
each of them; a launcher has one to each worker. The usual soft limit of 1,024 ends that at about
200 workers, while the hard limit, up to which a process may raise its own, is far higher.
"""

from __future__ import annotations

import logging
import resource

__all__ = ["raise_descriptor_limit"]

_log = logging.getLogger("edl.descriptors")

# Some programs close every descriptor up to the limit before they run another one; they inherit it.
_ENOUGH = 1 << 20


def raise_descriptor_limit() -> int:
    """Raise the soft limit of RLIMIT_NOFILE to the hard one, at most to `_ENOUGH`.

    Never lowers it. Returns the limit in force. Processes started from now on inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        # A sandbox may forbid it. A small job does well with what there is.
        _log.warning("descriptors.limit stays at %d, hard limit %d: %s", soft, hard, error)
        return soft
    return wanted
