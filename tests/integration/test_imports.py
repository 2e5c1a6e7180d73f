"""Nobody pays for a framework that the script does not use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.paired

FRAMEWORKS = ("torch", "tensorflow", "keras")

ALONE = """
import numpy as np
import edl.plain as edl

edl.init()
w = np.zeros(3)
edl.share(w=w)
loader = edl.DataLoader(np.ones((10, 3)), 4)
for epoch in edl.epochs(2):
    for x in loader:
        w -= edl.average(x.mean(0))
        edl.notify_batch_end()
    edl.all_reduce(w)
edl.shutdown()
assert w.tolist() == [-6.0] * 3, w
"""


def loaded_by(code: str, **environment: str) -> set[str]:
    """The frameworks that this code has imported when it is done."""
    tell = f"\nimport sys; print(*[name for name in {FRAMEWORKS!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code + tell],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", ["edl", "edl.client", "edl.plain", "edl.data", "edl.cli.main"])
def test_an_import_brings_no_framework(name: str) -> None:
    assert loaded_by(f"import {name}") == set()


def test_torch_brings_torch_alone() -> None:
    assert loaded_by("import edl.torch") == {"torch"}


def test_a_job_of_one_worker_without_a_framework_trains_without_torch(tmp_path: Path) -> None:
    assert loaded_by(ALONE) == set()
    assert loaded_by(ALONE, EDL_CHECKPOINT=str(tmp_path)) == set()


def test_neither_does_one_worker_of_a_launcher(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        ALONE + f"\nimport sys; print([n for n in {FRAMEWORKS!r} if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-m", "edl.cli.main", "run", "-n", "1", str(script)],
        env={**os.environ, "EDL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "[]" in done.stdout.splitlines(), done.stdout


def test_several_workers_without_torch_are_told_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    code = "from edl.collective.build import load_collectives; load_collectives()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "UsageError" in done.stderr
    assert "pip install 'edl-elastic[torch]'" in done.stderr
