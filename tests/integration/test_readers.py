"""Every kind of dataset, while workers come, go and die: each sample once an epoch.

Judged twice: from the script's own log, and by the job's audit.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from edl.client import Job
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_failures import wait_step

pytestmark = pytest.mark.paired

SAMPLES, BATCH = 203, 10
ADJUSTMENTS, KILLS = 10, 2
KINDS = ("map", "stream", "records", "lines", "jsonl", "parquet", "tar")


@pytest.fixture(autouse=True)
def promptly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches come soon after they are announced; loaders' own depth still holds them back."""
    monkeypatch.setenv("EDL_SWITCH_ALLOWANCE_S", "0.1")


def await_lost(job: Job, worker: str) -> None:
    """Until the job knows: what is asked of it next is asked of those who are left."""
    for event in job.events(follow=True):
        if event.what == "worker.lost" and event.fields["worker"] == worker:
            return


def shake(job: Job, seed: int, *, adjustments: int = ADJUSTMENTS, kills: int = KILLS) -> None:
    """Scale out and in at random, and kill some worker now and then, the leader too."""
    rng = random.Random(seed)
    acts = ["kill"] * kills + ["adjust"] * adjustments
    rng.shuffle(acts)
    for act in acts:
        wait_step(job, job.status().step + rng.randrange(1, 8))
        workers = job.status().workers
        if act == "kill" and len(workers) > 1:
            victim = rng.choice(workers)
            os.kill(victim.pid, signal.SIGKILL)
            await_lost(job, victim.id)
        elif len(workers) < 2 or (len(workers) < 4 and rng.random() < 0.5):
            job.scale_out(rng.choice((1, 2)))
        else:
            job.scale_in([rng.choice(workers).id])


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_is_used_once(start: Start, log: Path, kind: str, num_workers: int) -> None:
    check_each_sample(start, log, kind, num_workers)


@pytest.mark.parametrize(("kind", "num_workers"), [("map", 0), ("map", 2), ("records", 0)])
def test_each_sample_that_is_copied_ahead_is_used_once(
    start: Start, log: Path, kind: str, num_workers: int
) -> None:
    check_each_sample(start, log, kind, num_workers, "--device", "cpu")


def check_each_sample(
    start: Start, log: Path, kind: str, num_workers: int, *arguments: str
) -> None:
    until = log / "until"
    job = start(
        "reading.py",
        *("--log", str(log), "--until", str(until), "--kind", kind),
        *("--num-workers", str(num_workers), *arguments),
        workers=3,
    )
    wait_step(job, 5)
    shake(job, seed=KINDS.index(kind) * 2 + num_workers)
    until.touch()
    result = job.wait(60)
    assert result.state == "finished", result.why
    journal = read_journal(log)
    epochs = len(journal.used())
    assert epochs >= 2
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    audit = job.audit()
    assert audit.exact, audit.fault
    assert [epoch.state for epoch in audit.epochs] == ["complete"] * epochs
    assert audit.steps == max(journal.counted()) + 1


def test_loader_processes_that_are_spawned(start: Start, log: Path) -> None:
    until = log / "until"
    job = start(
        "reading.py",
        *("--log", str(log), "--until", str(until), "--kind", "records"),
        *("--num-workers", "1", "--context", "spawn"),
        workers=2,
    )
    wait_step(job, 5)
    job.scale_in(1)
    until.touch()
    assert job.wait(90).state == "finished"
    assert job.audit().exact
