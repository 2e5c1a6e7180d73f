"""The first moment of the `edl` command: Ctrl-C is heard quietly before anything else is loaded.

To load the commands takes a third of a second, in which Python would tell of Ctrl-C by a traceback.
Holds: this room imports nothing of EDL before it hears Ctrl-C; a shell that has it ignored for a
command in the background still has.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> int:
    heard = signal.getsignal(signal.SIGINT)
    if heard is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    from edl.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, heard)
        return run()
    except KeyboardInterrupt:
        # Between two commands' rooms; whatever a command itself hears it has told.
        print("edl: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


def _leave(number: int, frame: object) -> NoReturn:
    """Nothing is begun yet, so there is nothing to end in order: not even a half loaded module."""
    os.write(2, b"edl: interrupted\n")
    os._exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
