"""A peer that is lost inside a step does not change what the step does, however much was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import SCRIPTS, Start

SCRIPT = SCRIPTS / "pairs.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What the same script makes of the same data by itself."""
    out = tmp_path_factory.mktemp("alone") / "out.json"
    environment = {name: value for name, value in os.environ.items() if "EDL" not in name}
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], check=True, env=environment, timeout=120
    )
    return list(json.loads(out.read_text()))


@pytest.mark.parametrize(
    ("worker", "point", "step"),
    [("w2", "between", 5), ("w0", "between", 5), ("w1", "commit", 0), ("w0", "commit", 0)],
)
def test_no_optimizer_steps_twice_on_the_same_samples(
    start: Start, tmp_path: Path, alone: list[float], worker: str, point: str, step: int
) -> None:
    out = tmp_path / "out.json"
    job = start("pairs.py", "--out", str(out), "--die", worker, point, str(step), workers=3)
    result = job.wait(120)
    assert result.state == "finished"
    recovered = [event for event in job.events() if event.what == "job.recovered"]
    assert [event.fields["lost"] for event in recovered] == [worker]
    assert json.loads(out.read_text()) == pytest.approx(alone, abs=1e-12)
