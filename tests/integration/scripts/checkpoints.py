"""Saves one checkpoint after another until it is killed, by others or by itself.

Arguments: folder, bytes of each, first step, how many, and the number of the file operation at
which it kills itself (0: never). Prints each step that is complete.
"""

from __future__ import annotations

import os
import signal
import sys

from edl.runtime.checkpoint import CheckpointFolder
from edl.runtime.tensorfile import Array

OPERATIONS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir"}


def kill_at(number: int) -> None:
    """Kill this process when Python is about to do its n-th operation on files."""
    seen = 0

    def count(event: str, args: tuple[object, ...]) -> None:
        nonlocal seen
        if event in OPERATIONS:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def main() -> None:
    root, size, first, count, fatal = sys.argv[1], *(int(text) for text in sys.argv[2:])
    folder = CheckpointFolder(root, keep=1)
    if fatal:
        kill_at(fatal)
    for step in range(first, first + count):
        row = step.to_bytes(8, "little") * (size // 8)
        array = Array("I64", (size // 8,), row)
        folder.save(step, {"model": {"row": array}, "state": {"row": array}}, {"step": step})
        print(step, flush=True)


main()
