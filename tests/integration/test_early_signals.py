"""A launcher that is interrupted before it has anybody to tell it to."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from edl.launch.base import JobSpec
from edl.launch.local import LocalLauncher

pytestmark = pytest.mark.paired


def test_a_signal_before_the_first_worker_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    script = tmp_path / "waits.py"
    script.write_text("import threading\nthreading.Event().wait(600)\n")
    launcher = LocalLauncher(JobSpec(script=str(script), args=(), workers=1, name="j"))
    launcher.interrupt(signal.SIGTERM)
    launcher.start()
    try:
        result = launcher.wait(30.0)
    finally:
        launcher.close()
    assert result is not None
    assert (result.state, result.exit_status) == ("stopped", 143)
    assert not list(launcher.folder.workers())
