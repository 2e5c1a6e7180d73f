"""The demo as `make demo` runs it, only shorter: it must convince, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edl.client import Job

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
PATIENCE_S = 200.0


def started(out: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "EDL_HOME": str(out / "home"), "COLUMNS": "100"}
    command = [sys.executable, str(DEMO), "--quick", "--out", str(out / "demo-out")]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell ignores SIGINT in what it runs in the background, and so would the demo.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.slow
def test_the_demo_holds_what_it_claims(tmp_path: Path) -> None:
    demo = started(tmp_path)
    said, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 0, said
    assert said.count("\nyes  ") == 4, said
    assert "NO" not in said
    assert "scale out to 4" in said
    assert "scale in to 3" in said
    picture = (tmp_path / "demo-out" / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_an_interrupted_demo_ends_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    demo = started(tmp_path)
    until = time.monotonic() + PATIENCE_S
    try:
        while not (tmp_path / "home" / "jobs" / "elastic" / "job.json").exists():
            assert demo.poll() is None, demo.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        demo.send_signal(signal.SIGINT)
        said, _ = demo.communicate(timeout=PATIENCE_S)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 128 + signal.SIGINT, said
    assert "Traceback" not in said
    assert not Job("elastic").running()
