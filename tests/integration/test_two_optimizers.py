"""A peer that is lost inside a step does not change what the step does, however much was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.client import Job
from tests.integration.conftest import SCRIPTS, Start

SCRIPT = SCRIPTS / "pairs.py"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """What the same script makes of the same data by itself."""
    out = tmp_path_factory.mktemp("alone")
    environment = {name: value for name, value in os.environ.items() if "EDL" not in name}
    environment["OMP_NUM_THREADS"] = "1"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)], check=True, env=environment, timeout=120
    )
    (found,) = parameters(out)
    return found


def parameters(folder: Path) -> list[list[float]]:
    """Of everybody who came to the end."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


@pytest.mark.parametrize(
    ("worker", "point", "step"),
    [("w2", "between", 5), ("w0", "between", 5), ("w1", "commit", 0), ("w0", "commit", 0)],
)
def test_no_optimizer_steps_twice_on_the_same_samples(
    start: Start, tmp_path: Path, alone: list[float], worker: str, point: str, step: int
) -> None:
    job = start("pairs.py", "--out", str(tmp_path), "--die", worker, point, str(step), workers=3)
    assert lost_in(job) == [worker]
    one, other = parameters(tmp_path)
    assert one == other
    assert one == pytest.approx(alone, abs=1e-12)


def test_a_search_that_broke_goes_on_alike_everywhere(start: Start, tmp_path: Path) -> None:
    arguments = ("--search", "--out", str(tmp_path), "--die", "w1", "search", "5")
    job = start("pairs.py", *arguments, workers=3)
    assert lost_in(job) == ["w1"]
    one, other = parameters(tmp_path)
    assert one == other


def lost_in(job: Job) -> list[str]:
    """Who was lost in a job that came to its end."""
    assert job.wait(120).state == "finished"
    return [str(e.fields["lost"]) for e in job.events() if e.what == "job.recovered"]
