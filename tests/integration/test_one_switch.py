"""A migration is one switch: who reduces its first step, who is gone after it, and what is told."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from edl.client import Job
from tests.integration.conftest import Start
from tests.integration.test_failures import wait_step
from tests.integration.test_relay import lines_of
from tests.integration.test_requests import await_event

pytestmark = pytest.mark.paired


def by_step(log: Path) -> dict[int, list[dict[str, Any]]]:
    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for line in lines_of(log):
        if "step" in line:
            steps[line["step"]].append(line)
    return steps


def move_two_of_three(job: Job) -> int:
    """The leader and another one; the step at which they do."""
    wait_step(job, 3)
    before = job.status()
    leader = next(worker.id for worker in before.workers if worker.leader)
    other = next(worker.id for worker in before.workers if not worker.leader)
    record = job.migrate([leader, other], 2)
    assert record is not None
    assert (set(record.left), len(record.joined), record.size) == ({leader, other}, 2, 3)
    assert record.generation == before.generation + 1
    mine = [event for event in job.events() if event.request_id == record.request_id]
    told = [event.what for event in mine]
    for what in ("announced", "switching", "parted", "complete"):
        assert told.count(f"adjust.{what}") == 1, told
    parted = next(event for event in mine if event.what == "adjust.parted")
    assert set(str(parted.fields["workers"]).split(",")) == {leader, other}
    wait_step(job, record.step + 5)
    return record.step


def test_all_elders_reduce_the_first_step_and_leavers_are_gone_after_it(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("relay.py", "--log", str(log), "--until", str(end), workers=3)
    await_event(job, "job.started")
    switch = move_two_of_three(job)
    end.touch()
    result = job.wait(100)
    assert result.state == "finished", result.first_failure

    steps = by_step(log)
    usual = max(line["whole"] for line in steps[switch + 1])
    # Leavers are out of the script at the end of the step, before it can write its line.
    (stayer,) = [line for line in steps[switch] if line["rows"]]
    newcomers = [line for line in steps[switch] if not line["rows"]]
    assert len(newcomers) == 2
    # It has carried a third of the batch, as ever, and sees five until the loader's next batch.
    assert stayer["rows"] == 4
    assert {line["size"] for line in steps[switch]} == {5}
    assert (stayer["whole"], stayer["apart"]) == (4, usual)
    assert all((line["whole"], line["apart"]) == (4, 0) for line in newcomers)
    assert len({line["buffers"] for line in steps[switch]}) == 1
    for step in range(switch, switch + 4):
        lines = steps[step]
        assert [line["committed"] for line in lines] == [True] * 3
        assert len({line["gradients"] for line in lines}) == 1
        assert len({line["seen"] for line in lines}) == 1
        assert step == switch or {(line["size"], line["apart"]) for line in lines} == {(3, 0)}
    assert {line["generation"] for line in steps[switch + 1]} == {
        line["generation"] for line in steps[switch]
    }


def test_leavers_stay_for_a_first_step_that_has_to_be_done_again(
    start: Start, log: Path, tmp_path: Path
) -> None:
    """A newcomer leaves its loop inside it, which voids the step for all and ends the epoch."""
    end = tmp_path / "end"
    job = start("relay.py", "--log", str(log), "--until", str(end), "--leave-first", workers=3)
    await_event(job, "job.started")
    switch = move_two_of_three(job)
    end.touch()
    result = job.wait(100)
    assert result.state == "finished", result.first_failure
    steps = by_step(log)
    voided = [line for line in steps[switch] if not line["committed"]]
    assert {line["size"] for line in voided} == {5}
    done = [line for line in steps[switch] if line["committed"]]
    assert len(done) == 3
    assert len({line["seen"] for line in done}) == 1
    assert [line["committed"] for line in steps[switch + 1]] == [True] * 3
