"""SIGTERM is a preemption notice: this worker asks to leave at the next boundary.

A second one is an order, and so is the end of the grace that was given (`edl run --grace`): a
forced exit, which the others survive. Before training has begun there is no boundary to wait for.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from edl.runtime.session import Session

__all__ = ["install_signals"]

_STATUS = 128 + signal.SIGTERM


def install_signals(session: Session) -> None:
    """Only for workers of a job, and only where Python lets us: on the main thread."""
    if session.agent is None or threading.current_thread() is not threading.main_thread():
        return

    def on_sigterm(number: int, frame: FrameType | None) -> None:
        if session.leave_wish or session.gone:
            os._exit(_STATUS)
        if session.progress is None:
            session.abandon()
            raise SystemExit(_STATUS)
        session.leave_wish = True
        if grace_s > 0:
            # A thread of its own: the main one may be in a step that takes longer than that.
            late = threading.Timer(grace_s, os._exit, (_STATUS,))
            late.daemon = True
            late.start()

    grace_s = session.agent.identity.settings.grace_s
    signal.signal(signal.SIGTERM, on_sigterm)
