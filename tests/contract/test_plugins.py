"""What every plug-in must do, told by the same small training in each framework.

`scripts/with_NAME.py` trains it by plug-in NAME and logs what it does (`scripts/diary.py`); the
judge reads nothing but these logs. A new plug-in passes when its script stands beside them.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

from edl.client import Job
from tests.contract.servers import until
from tests.integration.chaos import chaos
from tests.integration.conftest import Start
from tests.integration.judge import Journal, read_journal

pytestmark = pytest.mark.paired

SCRIPTS = Path(__file__).parent / "scripts"
SAMPLES, BATCH = 203, 20
STEPS = -(-SAMPLES // BATCH)  # an epoch's


@pytest.fixture(params=["torch", "plain", "tensorflow"])
def script(request: pytest.FixtureRequest) -> str:
    """A plug-in's script; it is skipped where the framework is not installed."""
    name = request.param
    if name != "plain" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    path = SCRIPTS / f"with_{name}.py"
    if not path.exists():
        pytest.skip(f"no plug-in for {name} yet")
    return str(path)


def await_step(job: Job, step: int) -> None:
    until(lambda: job.status().step >= step, f"step {step}")


def await_more(job: Job, steps: int = 3) -> None:
    await_step(job, job.status().step + steps)


def worker(job: Job, *, leads: bool) -> tuple[str, int]:
    """Its name and its process."""
    found = next(each for each in job.status().workers if each.leader is leads)
    return found.id, found.pid


def scale_out(job: Job, more: int) -> None:
    assert job.scale_out(more) is not None
    await_more(job)


def scale_in(job: Job, *, leads: bool) -> None:
    assert job.scale_in([worker(job, leads=leads)[0]]) is not None
    await_more(job)


def kill(job: Job, *, leads: bool) -> None:
    """SIGKILL, and wait until the others have gone on without it."""
    left = len(job.status().workers) - 1
    os.kill(worker(job, leads=leads)[1], signal.SIGKILL)
    until(lambda: len(job.status().workers) == left, "a recovery")
    await_more(job)


def judge(journal: Journal, *, epochs: int) -> None:
    """Exactly once, a constant batch, and replicas that are equal bit for bit."""
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()


def alone(start: Start, script: str, folder: Path, *arguments: str) -> Journal:
    """The same training by one worker."""
    folder.mkdir()
    job = start(script, "--log", str(folder), *arguments, workers=1)
    assert job.wait(60).state == "finished"
    return read_journal(folder)


def test_workers_come_and_go_and_die(script: str, start: Start, log: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start(
        *(script, "--log", str(log), "--epochs", "100000", "--until", str(end)),
        # Many buckets: a peer may be lost between two of them.
        *("--pause", "0.05", "--bucket-mb", "0.0005"),
        workers=2,
    )
    await_step(job, 3)
    scale_out(job, 1)
    scale_in(job, leads=False)
    scale_out(job, 2)
    scale_in(job, leads=True)
    kill(job, leads=False)
    kill(job, leads=True)
    end.touch()
    result = job.wait(60)
    assert result.state == "finished", result.why
    journal = read_journal(log)
    complete = max(journal.used()) + 1
    judge(journal, epochs=complete)
    # Four switches and two recoveries, each a generation.
    assert journal.check_buffers_after_switches() == 6
    assert set(journal.sizes()) == {1, 2, 3, 4}
    assert journal.check_end(steps=complete * STEPS) == 1


def test_a_stopped_job_goes_on_from_its_checkpoint(
    script: str, start: Start, tmp_path: Path
) -> None:
    kept, logs = str(tmp_path / "kept"), [tmp_path / "log1", tmp_path / "log2"]
    for log in logs:
        log.mkdir()
    same = ("--seed", "1", "--epochs", "3")
    job = start(
        *(script, "--log", str(logs[0]), *same, "--pause", "0.4"), workers=2, checkpoint=kept
    )
    await_step(job, STEPS + 2)
    job.stop()
    assert job.wait(60).state == "stopped"
    first = read_journal(logs[0])
    stopped = max(first.counted()) + 1
    assert STEPS < stopped < 3 * STEPS
    job = start(script, "--log", str(logs[1]), *same, workers=3, checkpoint=kept, resume=True)
    assert job.wait(60).state == "finished"
    second = read_journal(logs[1])
    assert min(second.counted()) == stopped
    lines = {f"first-{name}": lines for name, lines in first.lines.items()}
    whole = Journal({**lines, **second.lines})
    judge(whole, epochs=3)
    assert whole.check_end(steps=3 * STEPS) == 3
    expected = alone(start, script, tmp_path / "alone", *same)
    assert whole.losses() == pytest.approx(expected.losses(), abs=1e-4)
    assert rates(second) == rates(expected)


@pytest.mark.parametrize("what", ["gradient", "commit"])
def test_a_step_that_breaks_is_done_again_and_counts_once(
    script: str, start: Start, log: Path, tmp_path: Path, what: str
) -> None:
    at = STEPS + 3
    same = ("--seed", "1", "--epochs", "2")
    job = start(script, "--log", str(log), *same, "--lose", f"{what}:{at}", workers=3)
    result = job.wait(60)
    assert (result.state, result.failures) == ("finished", ()), result
    journal = read_journal(log)
    judge(journal, epochs=2)
    assert max(journal.counted().values()) > 1
    assert journal.check_end(steps=2 * STEPS) == 3
    # Its own loss was seen after the update, if it was made; no update was made twice.
    found, expected = (
        [loss for step, loss in enumerate(each.losses()) if step != at or what == "gradient"]
        for each in (journal, alone(start, script, tmp_path / "alone", *same))
    )
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_in_a_storm(
    script: str, template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDL_TEMPLATE", template)
    report = chaos(seed, tmp_path, script=script, options=("--bucket-mb", "0.0005"))
    assert report.happened.total() > 0
    assert report.ended > 0


def rates(journal: Journal) -> set[float]:
    """The learning rate at the end, which only a registered object knows."""
    return {line["rate"] for lines in journal.lines.values() for line in lines[-1:]}


def test_micro_batches_make_the_same_model(script: str, start: Start, tmp_path: Path) -> None:
    same = ("--seed", "1", "--epochs", "1")
    whole = alone(start, script, tmp_path / "whole", *same)
    pieces = alone(start, script, tmp_path / "pieces", *same, "--micro-batch", "6")
    judge(whole, epochs=1)
    # An outcome for each piece; only the last one of a step commits it.
    assert len(pieces.lines["w0"]) > 2 * len(whole.lines["w0"])
    assert pieces.losses() == pytest.approx(whole.losses(), abs=1e-4)
