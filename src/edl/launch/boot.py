"""The first thing that runs in a worker's process: `python -m edl.launch.boot SCRIPT ARGS`.

It sees to it that no worker outlives its launcher, then becomes the user's script. It imports
little: whatever it loads is time before the script begins, and could shadow the script's own.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType

__all__ = ["main"]

PR_SET_PDEATHSIG = 1
# How long a worker whose peer vanished waits to be ended.
PATIENCE_S = 10.0


def die_with_launcher() -> None:
    """Ask the kernel to kill this process when its launcher ends, however it ends."""
    launcher = int(os.environ.get("EDL_LAUNCHER_PID", "0"))
    if not launcher:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # It may have ended before the kernel was asked.
    if os.getppid() != launcher:
        os._exit(1)


def own_frames_off(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's first frame on: ours and runpy's tell the user nothing."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and file != runpy.__file__ and file != "<frozen runpy>":
            return trace
        trace = trace.tb_next
    return None


def report(error: BaseException) -> None:
    """To the worker's log as Python would, and to a file that `edl` shows when the job failed."""
    error = error.with_traceback(own_frames_off(error.__traceback__))
    # As Python itself does: whoever runs at exit can tell that the script failed.
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    folder, worker = os.environ.get("EDL_JOB_DIR"), os.environ.get("EDL_WORKER")
    if not folder or not worker:
        return
    target = Path(folder, "failures", f"{worker}.txt")
    try:
        target.parent.mkdir(exist_ok=True)
        part = target.with_suffix(".part")
        part.write_text("".join(traceback.format_exception(error)))
        part.replace(target)
    except OSError as problem:
        print(f"edl: {target} could not be written: {problem}", file=sys.stderr)  # noqa: T201


def yield_to_culprit(error: BaseException) -> None:
    """A worker that lost its peer is not the one that failed: let the launcher see that one first.

    The launcher ends this process as soon as it has seen who it was.
    """
    from edl.errors import PeerError

    if isinstance(error, PeerError):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Event().wait(PATIENCE_S)


def main() -> None:
    die_with_launcher()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        report(error)
        sys.exit(128 + signal.SIGINT)
    except BaseException as error:
        report(error)
        yield_to_culprit(error)
        sys.exit(1)


if __name__ == "__main__":
    main()
