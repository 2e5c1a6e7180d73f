"""Launcher and workers raise the limit of open files, whatever their shell set."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

LOW = 300
PATIENCE_S = 120.0
_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
RAISED = min(HARD, 1 << 20) if HARD != resource.RLIM_INFINITY else 1 << 20

SCRIPT = """
import json, os, resource, sys
import edl.plain as edl

def limit():
    return resource.getrlimit(resource.RLIMIT_NOFILE)

inherited = limit()
resource.setrlimit(resource.RLIMIT_NOFILE, ({low}, inherited[1]))
edl.init()
with open(os.path.join(sys.argv[1], os.environ["EDL_WORKER"]), "w") as file:
    json.dump([inherited, limit()], file)
edl.shutdown()
"""

pytestmark = pytest.mark.skipif(RAISED <= LOW, reason="the hard limit is too low to raise to")


def low_limit(
    arguments: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with a low soft limit and the usual hard one."""
    command = ["sh", "-c", f'ulimit -S -n {LOW}; exec "$0" "$@"', sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_the_soft_limit_becomes_the_hard_one() -> None:
    program = (
        "import resource\n"
        "from edl.runtime.descriptors import raise_descriptor_limit\n"
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "print(*before, raise_descriptor_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))\n"
    )
    done = low_limit(["-c", program])
    assert done.stdout.split() == [str(each) for each in (LOW, HARD, RAISED, RAISED, HARD)]


def test_the_launcher_and_each_worker_raise_it(tmp_path: Path) -> None:
    script, told = tmp_path / "train.py", tmp_path / "told"
    script.write_text(SCRIPT.format(low=LOW))
    told.mkdir()
    environment = {**os.environ, "EDL_HOME": str(tmp_path / "home")}
    arguments = ["-m", "edl.cli.main", "run", "-n", "2", "--gpus", "none", str(script), str(told)]
    done = low_limit(arguments, environment)
    assert done.returncode == 0, done.stderr
    limits = {path.name: json.loads(path.read_text()) for path in told.iterdir()}
    # What a worker inherits is the launcher's; it had lowered its own before `init`.
    assert limits == {worker: [[RAISED, HARD], [RAISED, HARD]] for worker in ("w0", "w1")}
