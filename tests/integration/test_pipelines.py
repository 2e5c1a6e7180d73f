"""elastic_shard_generator in every way of using it, while workers come, go and die.

Judged twice: from the script's own log, and by the job's audit.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_failures import wait_step
from tests.integration.test_readers import ADJUSTMENTS, KILLS, promptly, shake

pytestmark = pytest.mark.paired

SAMPLES, BATCH = 203, 10
__all__ = ["promptly"]  # a fixture for this file too

WAYS = ("read", "thread", "torch", "shards", "own-torch", "own-thread")


@pytest.mark.parametrize("way", WAYS)
def test_each_sample_is_used_once(start: Start, log: Path, way: str) -> None:
    check(start, log, way, seed=WAYS.index(way))


@pytest.mark.parametrize("way", ["thread", "shards", "own-thread"])
def test_one_loop_is_one_epoch(start: Start, log: Path, way: str) -> None:
    check(start, log, way, "--epochs", seed=9, adjustments=3, kills=1)


@pytest.mark.parametrize("way", ["read", "shards", "own-thread"])
def test_each_sample_is_used_once_where_workers_move(start: Start, log: Path, way: str) -> None:
    """The leader moves, for whom two come, and then all of them."""
    check(start, log, way, seed=0, moves=True)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tensorflow", "own-tensorflow"])
def test_each_sample_is_used_once_by_a_pipeline_of_tensorflow(
    start: Start, log: Path, way: str
) -> None:
    check(start, log, way, seed=7)


def check(
    start: Start,
    log: Path,
    way: str,
    *more: str,
    seed: int,
    adjustments: int = ADJUSTMENTS,
    kills: int = KILLS,
    moves: bool = False,
) -> None:
    until = log / "until"
    job = start(
        "pipelines.py",
        *("--log", str(log), "--until", str(until), "--way", way, *more),
        workers=3,
    )
    wait_step(job, 5)
    if moves:
        for going in (lambda worker: worker.leader, lambda worker: True):
            assert job.migrate([w.id for w in job.status().workers if going(w)], 2) is not None
            wait_step(job, job.status().step + 4)
    else:
        shake(job, seed=seed, adjustments=adjustments, kills=kills)
    until.touch()
    result = job.wait(90)
    assert result.state == "finished", result.why
    journal = read_journal(log)
    epochs = len(journal.used())
    assert epochs >= 2
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(epochs)))
    journal.check_replicas()
    if not way.startswith("own"):
        journal.check_batches(batch=BATCH, samples=SAMPLES)
    audit = job.audit()
    assert audit.exact, audit.fault
    assert [epoch.state for epoch in audit.epochs][:epochs] == ["complete"] * epochs
    assert audit.steps == max(journal.counted()) + 1
