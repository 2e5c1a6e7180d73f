"""The model is what it would have been without any scaling."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional

from edl.protocol.permutation import Permutation
from tests.integration.conftest import Start
from tests.integration.judge import read_journal

pytestmark = pytest.mark.paired

SAMPLES, BATCH, STEPS = 1003, 50, 50


def plain_loop() -> list[float]:
    """The same training by hand: torch alone, the same order of samples."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Dropout(0.0), torch.nn.Linear(32, 4)
    )
    data = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 16, generator=data)
    targets = torch.randint(0, 4, (SAMPLES,), generator=data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.97)
    losses: list[float] = []
    for epoch in range(3):
        order = Permutation(SAMPLES, seed=5, epoch=epoch)
        for start in range(0, SAMPLES, BATCH):
            rows = [order[i] for i in range(start, min(start + BATCH, SAMPLES))]
            loss = functional.cross_entropy(model(inputs[rows]), targets[rows])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
    return losses


def assert_equal(found: list[float], expected: list[float]) -> None:
    assert len(found) == len(expected)
    for step, (mine, theirs) in enumerate(zip(found[:STEPS], expected[:STEPS], strict=True)):
        assert math.isclose(mine, theirs, rel_tol=1e-4), f"step {step}: {mine} and {theirs}"


@pytest.mark.parametrize("workers", [1, 3])
def test_losses_equal_the_plain_loop(start: Start, log: Path, workers: int) -> None:
    job = start("journal.py", "--log", str(log), workers=workers)
    assert job.wait(120).state == "finished"
    journal = read_journal(log)
    assert set(journal.sizes()) == {workers}
    assert_equal(journal.losses(), plain_loop())
    journal.check_exactly_once(samples=SAMPLES, epochs={0, 1, 2})
    journal.check_batches(batch=BATCH, samples=SAMPLES)


def test_losses_equal_the_plain_loop_when_scaled_2_4_3(
    start: Start, log: Path, tmp_path: Path
) -> None:
    # Slow until both adjustments are done, so that they fall into the steps that are compared.
    done = tmp_path / "done"
    pace = ("--pause", "3", "--pause-until", str(done))
    job = start("journal.py", "--log", str(log), *pace, workers=2)
    assert job.scale_out(2) is not None
    assert job.scale_in(1) is not None
    done.touch()
    assert job.wait(180).state == "finished"
    journal = read_journal(log)
    assert {2, 3, 4} <= set(journal.sizes()[:STEPS])
    assert_equal(journal.losses(), plain_loop())
    journal.check_exactly_once(samples=SAMPLES, epochs={0, 1, 2})
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
