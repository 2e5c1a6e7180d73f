"""The first thing that runs in a worker's process: `python -m edl.launch.boot SCRIPT ARGS`.

It sees to it that no worker outlives its launcher, then becomes the user's script. It imports
little: whatever it loads is time before the script begins, and could shadow the script's own.
When the script has ended so has the process: Python would take torch apart piece by piece, for
half a second of a core that the other workers compute on.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from edl.launch.log_streams import drop_what_does_not_fit
from edl.runtime.lifeline import die_with_parent

__all__ = ["main"]

# How long a worker whose peer vanished waits, so that the launcher sees that one's end first.
PATIENCE_S = 1.0
FILES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def die_with_launcher() -> None:
    """Ask the kernel to kill this process when its launcher ends, however it ends."""
    launcher = int(os.environ.get("EDL_LAUNCHER_PID", "0"))
    if launcher:
        die_with_parent(launcher)


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
    leave_note(error, "".join(traceback.format_exception(error)))


def leave_note(error: BaseException, trace: str) -> None:
    """For the launcher: the traceback, if there is one to show, and what failed at which step."""
    folder, worker = os.environ.get("EDL_JOB_DIR"), os.environ.get("EDL_WORKER")
    if not folder or not worker:
        return
    note = {
        "kind": type(error).__name__,
        "message": str(error),
        "step": present_step(),
        "own": not lost_peer(error),
        "pieces": present_pieces(),
    }
    files = {f"{worker}.json": json.dumps(note), f"{worker}.txt": trace}
    for name, text in files.items():
        target = Path(folder, "failures", name)
        if not text:
            continue
        try:
            target.parent.mkdir(exist_ok=True)
            part = target.with_suffix(".part")
            # The launcher reads UTF-8, whatever the locale is here.
            part.write_text(text, encoding="utf-8", errors="backslashreplace")
            part.replace(target)
        except OSError as problem:
            print(f"edl: {target} could not be written: {problem}", file=sys.stderr)  # noqa: T201


def present_step() -> int | None:
    """How many steps are done here, if this script ever began to train."""
    entry = sys.modules.get("edl.runtime.entry")
    return None if entry is None else entry.present_step()


def present_pieces() -> list[tuple[int, int, int, int]]:
    """The samples in hand, if they are of partitions."""
    entry = sys.modules.get("edl.runtime.entry")
    return [] if entry is None else list(entry.present_pieces())


def lost_peer(error: BaseException) -> bool:
    from edl.errors import PeerError

    return isinstance(error, PeerError)


def yield_to_culprit(error: BaseException) -> None:
    """A worker that lost its peer is not the one that failed: let that one end first.

    The launcher may end this process meanwhile.
    """
    if lost_peer(error):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Event().wait(PATIENCE_S)


def exit_status(end: SystemExit) -> int:
    """As Python reads it: nothing is 0, a number itself, and anything else is told and is 1."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code
    print(end.code, file=sys.stderr)  # noqa: T201
    return 1


def flush_files() -> None:
    """Write out what the script left in files that it did not close."""
    # By its type alone: to ask a foreign object for its class may run foreign code.
    files = [each for each in gc.get_objects() if issubclass(type(each), FILES)]
    # Those of a forked process are older than its collector's memory.
    files += [each for each in (sys.stdout, sys.stderr) if isinstance(each, FILES)]
    # Text before bytes, which it becomes.
    for file in sorted(files, key=lambda each: not isinstance(each, io.TextIOWrapper)):
        try:
            file.flush()
        except (OSError, ValueError, RuntimeError):
            continue  # closed, detached or not for writing: there is nothing to write out


def leave(status: int) -> NoReturn:
    """Do what Python promises at a script's end, and go: threads, exit functions, files."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_files()
    os._exit(status & 0xFF)


def run(script: str) -> int:
    """The script's exit status."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = exit_status(end)
        if status & 0xFF:
            leave_note(end, "")
        return status
    except KeyboardInterrupt as error:
        report(error)
        return 128 + signal.SIGINT
    except BaseException as error:
        report(error)
        yield_to_culprit(error)
        return 1
    return 0


def main() -> None:
    die_with_launcher()
    drop_what_does_not_fit()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    leave(run(script))


if __name__ == "__main__":
    main()
