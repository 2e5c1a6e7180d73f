"""Commands and launchers that are interrupted before they have begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.launch import detached
from edl.launch.base import JobSpec
from edl.launch.jobs import find_job
from edl.launch.local import LocalLauncher

pytestmark = pytest.mark.paired

PATIENCE_S = 30.0


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that waits, for jobs whose folders are the test's own."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    path = tmp_path / "waits.py"
    path.write_text("import threading\nthreading.Event().wait(600)\n")
    return str(path)


def test_a_signal_before_the_first_worker_starts_none(script: str) -> None:
    launcher = LocalLauncher(JobSpec(script=script, args=(), workers=1, name="j"))
    launcher.interrupt(signal.SIGTERM)
    launcher.start()
    try:
        result = launcher.wait(30.0)
    finally:
        launcher.close()
    assert result is not None
    assert (result.state, result.exit_status) == ("stopped", 143)
    assert not list(launcher.folder.workers())


def test_a_launcher_hears_a_signal_that_another_thread_was_given(script: str) -> None:
    folder = find_job(detached.start(JobSpec(script=script, workers=1)))
    launcher = folder.info().pid
    try:
        other = max(int(each) for each in os.listdir(f"/proc/{launcher}/task"))
        assert other != launcher
        until(lambda: asleep(launcher, launcher) and asleep(launcher, other))
        # The kernel gives it to the thread that is named, as it may by itself when several could.
        os.kill(other, signal.SIGTERM)
        until(lambda: not folder.running())
    finally:
        if folder.running():
            os.kill(launcher, signal.SIGKILL)
    result = folder.result()
    assert result is not None
    assert (result.state, result.exit_status) == ("stopped", 143)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "in vain"
        threading.Event().wait(0.02)


def asleep(process: int, thread: int) -> bool:
    """It waits for something, and would go on waiting if it were not told."""
    fields = Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return fields[0] == "S"


# Ctrl-C as soon as a module is asked for, be it in the middle of another's import.
CTRL_C = """
import os, signal, sys

wanted, sys.argv[1:] = sys.argv[1], ["ps"]

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
from edl.cli.start import main
sys.exit(main())
"""


def interrupted(module: str, tmp_path: Path, handler: signal.Handlers) -> tuple[int, str, str]:
    """`edl ps` that hears Ctrl-C while it loads this module."""
    process = subprocess.run(
        [sys.executable, "-c", CTRL_C, module],
        env={**os.environ, "EDL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.parametrize("module", ["edl.cli.main", "edl.cli.run", "rich.table", "msgspec"])
def test_ctrl_c_while_a_command_loads_is_told_in_a_line(module: str, tmp_path: Path) -> None:
    found = interrupted(module, tmp_path, signal.SIG_DFL)
    assert found == (130, "", "edl: interrupted\n")


def test_a_command_that_is_not_to_hear_ctrl_c_does_not(tmp_path: Path) -> None:
    """As a shell without job control has it for what runs in the background."""
    status, out, err = interrupted("edl.cli.main", tmp_path, signal.SIG_IGN)
    assert (status, err) == (0, "")
    assert out.startswith("no jobs")
