"""edl.tensorflow in every way of using it, while workers come, go and die.

Judged twice: from the script's own log, and by the job's audit.
"""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from edl.client import Job
from tests.integration.conftest import Start
from tests.integration.judge import Journal, read_journal
from tests.integration.test_failures import pid_of, wait_step

pytestmark = [
    pytest.mark.paired,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed"),
]

SCRIPT = "tensorflow_journal.py"
SAMPLES, BATCH = 403, 20


def begin(start: Start, log: Path, *more: str, workers: int = 2) -> Job:
    return start(SCRIPT, "--log", str(log), "--until", str(log / "until"), *more, workers=workers)


def two_three_two(job: Job) -> None:
    wait_step(job, 3)
    job.scale_out(1)
    wait_step(job, job.status().step + 4)
    job.scale_in(1)
    wait_step(job, job.status().step + 4)


def finish(job: Job, log: Path) -> Journal:
    (log / "until").touch()
    result = job.wait(120)
    assert result.state == "finished", result.why
    journal = read_journal(log)
    epochs = len(journal.used())
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    audit = job.audit()
    assert audit.exact, audit.fault
    return journal


def said(log: Path, what: str) -> list[dict[str, Any]]:
    lines = [json.loads(t) for p in log.glob("*.jsonl") for t in p.read_text().splitlines()]
    return [line for line in lines if line["what"] == what]


@pytest.mark.parametrize(
    ("way", "more"),
    [
        ("shards", ("--inter-op", "1", "--seed", "1")),
        ("fit", ("--model", "batchnorm", "--optimizer", "ema")),
        pytest.param(
            "loader", ("--model", "batchnorm", "--optimizer", "sgd"), marks=pytest.mark.slow
        ),
    ],
)
def test_workers_join_leave_and_die(
    start: Start, log: Path, tmp_path: Path, way: str, more: tuple[str, ...]
) -> None:
    job = begin(start, log, "--way", way, "--epochs", "1000", "--pause", "0.1", *more)
    two_three_two(job)
    os.kill(pid_of(job, leader=True), signal.SIGKILL)
    wait_step(job, job.status().step + 4)
    journal = finish(job, log)
    assert set(journal.sizes()) == {1, 2, 3}
    assert journal.check_buffers_after_switches() == 3
    # Whoever joins has traced its step before anybody waits for it.
    begun = {line["worker"]: line["traces"] for line in said(log, "begun")}
    assert begun == {"w0": 0, "w1": 0, "w2": 1}
    # One trace for the shares of one, two and three workers, stand-ins and an epoch's rest.
    assert [line["traces"] for line in said(log, "traces")] == [1]
    # What callbacks remember of earlier epochs follows a worker that joins in a later one.
    assert all(line["ended"] == line["epoch"] + 1 for line in said(log, "epoch"))
    if "--seed" in more:
        # The order of shards changes with the workers, and what comes of it hardly does.
        apart = tmp_path / "apart"
        apart.mkdir()
        same = ("--way", way, "--epochs", str(len(journal.used())), *more)
        job = start(SCRIPT, "--log", str(apart), *same, workers=1)
        assert job.wait(120).state == "finished"
        ends = [mean(each.losses()[-20:]) for each in (journal, read_journal(apart))]
        assert ends[0] == pytest.approx(ends[1], abs=0.05)


def test_an_epoch_that_the_job_does_not_have_tells_no_metrics(start: Start, log: Path) -> None:
    """One worker's callbacks stop the training; the other has begun the next epoch by then."""
    log.mkdir(exist_ok=True)
    job = start("stops_alone.py", str(log), workers=2)
    result = job.wait(120)
    assert (result.state, result.steps) == ("finished", 12), result.why
    ends = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in log.glob("*.jsonl")
    }
    whole = [{"epoch": epoch, "logs": ["loss"]} for epoch in range(3)]
    assert ends["0"] == whole
    assert ends["1"] == [*whole, {"epoch": 3, "logs": []}]
    assert any("ended before this one's" in line for line in job.logs("w1"))


def test_a_worker_that_leaves_does_not_destroy_its_pipeline(start: Start, tmp_path: Path) -> None:
    """The destructor waits for tf.data's tuning thread, which sleeps for up to a minute."""
    data = tmp_path / "rows"
    data.write_bytes(bytes(range(250)) * 8)
    job = start("tensorflow_pipeline.py", "--data", str(data), workers=2)
    wait_step(job, 5)
    job.stop()
    for worker in ("w0", "w1"):
        log = (job.folder / "logs" / f"{worker}.log").read_text()
        assert "pipelines not destroyed: 1" in log


def test_a_registered_metric_does_not_stop_the_job(start: Start) -> None:
    job = start("tensorflow_metric.py", workers=2)
    result = job.wait(120)
    assert result.state == "finished", result.why
    assert not any(event.what == "replicas.diverged" for event in job.events())
    means = [text for text in job.logs() if "| mean " in text]
    assert len({text.partition("| ")[2] for text in means}) == 2, "the metrics do not differ"
