"""Each example, run as its reader would run it: alone, and as a job of several workers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from edl.client import Job, run
from edl.errors import EdlError

pytestmark = pytest.mark.paired

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
HELD = Path(__file__).parent / "held_early_stopping.py"
PATIENCE_S = 120.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for jobs; whatever still runs in it at the end is killed."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    yield tmp_path
    for folder in (tmp_path / "home" / "jobs").glob("*/"):
        with contextlib.suppress(EdlError):
            job = Job(folder.name)
            if job.running():
                job.stop(force=True)


def python(*arguments: str | Path, status: int = 0) -> str:
    """What a Python command printed; it must end with this status."""
    command = [sys.executable, *(str(each) for each in arguments)]
    # One thread each: networks this small only lose by more, above all on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def edl(*arguments: str | Path) -> str:
    return python("-m", "edl.cli.main", *arguments)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def told_by(job: Job, worker: str) -> list[dict[str, Any]]:
    """The JSON lines that a worker printed."""
    return [json.loads(line) for line in job.logs(worker) if line.startswith("{")]


def wait_epoch(job: Job, epoch: int) -> None:
    until = time.monotonic() + PATIENCE_S
    while (status := job.status()).epoch < epoch:
        assert status.state != "finished", status
        assert time.monotonic() < until, status
        time.sleep(0.05)


def test_digits_trains_alone_and_uses_each_sample_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = python(EXAMPLES / "digits.py", "--epochs", "3", "--log", log)
    assert "test accuracy 0." in said
    assert "after 45 steps" in said
    judged = python(EXAMPLES / "exactly_once.py", log)
    assert judged.count("   1437 ") == 3
    assert judged.endswith("exactly once\n")
    assert lines_of(log / "solo.jsonl")[-1]["accuracy"] > 0.5


def test_digits_trains_under_edl_run_and_its_workers_end_alike(home: Path) -> None:
    log = home / "log"
    said = edl("run", "-n", "2", EXAMPLES / "digits.py", "--epochs", "3", "--log", log)
    assert "after 45 steps" in said
    assert python(EXAMPLES / "exactly_once.py", log).endswith("exactly once\n")
    ends = [lines_of(log / f"{worker}.jsonl")[-1] for worker in ("w0", "w1")]
    assert ends[0]["what"] == ends[1]["what"] == "finished"
    assert ends[0]["fingerprint"] == ends[1]["fingerprint"]


def test_plain_trains_alone_and_with_workers_that_end_alike(home: Path) -> None:
    said = python(EXAMPLES / "plain.py", "--epochs", "12")
    assert "after 180 steps" in said
    assert float(said.split()[2]) > 0.85
    job = run(str(EXAMPLES / "plain.py"), "--epochs", "3", workers=2)
    assert job.wait(PATIENCE_S).state == "finished"
    ends = [line for worker in ("w0", "w1") for line in job.logs(worker) if "after 45" in line]
    assert len(ends) == 2
    assert ends[0] == ends[1]


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize("example", ["tensorflow_listing.py", "keras_fit.py"])
def test_tensorflow_trains_with_workers_that_end_alike(home: Path, example: str) -> None:
    more = ("--data", str(home)) if example == "tensorflow_listing.py" else ()
    job = run(str(EXAMPLES / example), "--epochs", "4", *more, workers=2, timeout_s=PATIENCE_S)
    result = job.wait(PATIENCE_S)
    assert result.state == "finished", result.why
    told = [line for worker in ("w0", "w1") for line in job.logs(worker) if "accuracy 0." in line]
    ends = [line for line in told if line.startswith("test accuracy")]
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert "after 100 steps" in ends[0]
    assert float(ends[0].split()[2]) > 0.7
    assert job.audit().exact


def test_the_judgement_notices_lost_and_repeated_samples(tmp_path: Path) -> None:
    lines = [
        {"what": "began", "generation": 1, "epoch": 0, "step": 0, "indexes": [0, 1, 2]},
        {"what": "ended", "generation": 1, "epoch": 0, "step": 0, "advanced": True},
        # Done once more by a later generation: that one counts.
        {"what": "began", "generation": 2, "epoch": 0, "step": 0, "indexes": [2, 1]},
        {"what": "ended", "generation": 2, "epoch": 0, "step": 0, "advanced": True},
        {"what": "began", "generation": 2, "epoch": 0, "step": 1, "indexes": [3, 2]},
        {"what": "ended", "generation": 2, "epoch": 0, "step": 1, "advanced": True},
        # A step that did not count.
        {"what": "began", "generation": 2, "epoch": 0, "step": 2, "indexes": [0, 1]},
        {"what": "ended", "generation": 2, "epoch": 0, "step": 2, "advanced": False},
    ]
    (tmp_path / "w0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = python(EXAMPLES / "exactly_once.py", tmp_path, status=1)
    assert "    0       1       2       1      2   wrong" in judged
    assert python(EXAMPLES / "exactly_once.py", tmp_path / "nothing", status=2)


def test_early_stopping_stops_early_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = python(EXAMPLES / "early_stopping.py", "--patience", "2", "--out", out)
    told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert len(told) < 50
    assert told[-1]["best"]["waited"] == 2
    assert told[-1]["best"]["metric"] == max(line["accuracy"] for line in told)
    assert [path.name for path in out.iterdir()] == ["best.pt"]


def test_early_stopping_decides_alike_while_workers_come_and_go(home: Path) -> None:
    """2 -> 3 -> 2 across ends of epochs; one worker breaks out of its loop, the leader leaves."""
    script, let_go = str(HELD), home / "let_go"
    more = ("--pace", "0.001", "--patience", "5", "--epochs", "1000", "--out", str(home / "out"))
    leave_loop = ("--break-at", "20", "--break-rank", "1")
    job = run(script, str(let_go), *more, *leave_loop, workers=2)
    wait_epoch(job, 1)
    joined = job.scale_out(1)
    assert joined is not None
    wait_epoch(job, job.status().epoch + 1)
    leader = next(worker.id for worker in job.status().workers if worker.leader)
    stayer = "w1" if leader == "w0" else "w0"
    left = job.scale_in([leader])
    assert left is not None
    assert left.left == (leader,)
    let_go.touch()
    result = job.wait(PATIENCE_S)
    assert result.state == "finished", result
    told = {worker: told_by(job, worker) for worker in ("w0", "w1", "w2")}
    whole = told[stayer]
    # Whoever was there at the end of an epoch saw, decided and remembered the same.
    for lines in told.values():
        assert lines
        assert all(line == whole[line["epoch"]] for line in lines)
    assert [line["epoch"] for line in whole] == list(range(len(whole)))
    assert [line["step"] for line in whole][:3] == [15, 20, 35]
    sizes = [line["workers"] for line in whole]
    assert sizes[0] == sizes[-1] == 2
    assert 3 in sizes
    assert whole[-1]["best"]["waited"] == 5
    assert whole[-1]["best"]["epoch"] == len(whole) - 6
    assert [path.name for path in (home / "out").iterdir()] == ["best.pt"]
