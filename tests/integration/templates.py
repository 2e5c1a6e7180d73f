"""A template for many short jobs: imports would be most of their time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from edl.launch.environment import KEEP_MEMORY

__all__ = ["running_template"]

PRELOADED = ("edl.launch.detached", "edl.torch.rehearsal")


@contextlib.contextmanager
def running_template(folder: Path) -> Iterator[str]:
    """Run one; its socket's path is what EDL_TEMPLATE is to be."""
    path = str(folder / "template")
    command = [sys.executable, "-m", "edl.launch.template", "--listen", path]
    for module in PRELOADED:
        command += ["--preload", module]
    environment = {**os.environ, **KEEP_MEMORY, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()
            if said != b"ready\n":
                raise RuntimeError(f"the template said {said!r}; its errors are above")
            yield path
        finally:
            process.kill()
