"""Workers move to other slots while their job trains, and whoever asked for it may go away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import AdjustmentFailed
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_requests import await_event, endless
from tests.integration.test_scaling import BATCH, SAMPLES

pytestmark = pytest.mark.paired


def members(job: Job) -> dict[str, str]:
    """Each worker, and its slot."""
    return {worker.id: worker.slot for worker in job.status().workers}


def finish(job: Job, end: Path, log: Path) -> None:
    """And nothing was lost or used twice, whatever happened before."""
    end.touch()
    assert job.wait(60).state == "finished"
    journal = read_journal(log)
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    assert job.audit().exact


def edl(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "edl.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell ignores SIGINT in what it runs in the background, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_half_of_the_workers_move_the_leader_too_and_then_all_of_them(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), workers=4)
    await_event(job, "job.started")
    before = job.status()
    leader = next(worker.id for worker in before.workers if worker.leader)
    other = next(worker.id for worker in before.workers if not worker.leader)
    lines: list[str] = []
    record = job.migrate([leader, other], ["localhost:7", "localhost:8"], progress=lines.append)
    assert record is not None
    assert set(record.left) == {leader, other}
    present = members(job)
    assert len(present) == 4
    assert {slot for worker, slot in present.items() if worker in record.joined} == {
        "localhost:7",
        "localhost:8",
    }
    assert lines[0] == "migrate: accepted"
    assert any(line.startswith("migrate: waiting for ") for line in lines), lines

    record = job.migrate(sorted(present), 2)
    assert record is not None
    assert sorted(members(job)) == sorted(record.joined)
    finish(job, end, log)


def test_a_migration_whose_newcomer_fails_leaves_everybody_where_they_were(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("faulty_joiner.py", *endless(log, end), env={"EDL_TEST_FAIL": "building"})
    await_event(job, "job.started")
    before = members(job)
    with pytest.raises(AdjustmentFailed, match="trains on without it"):
        job.migrate(["w0"], 1)
    assert members(job) == before
    finish(job, end, log)


def test_ctrl_c_takes_a_request_back_and_says_so(start: Start, log: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("faulty_joiner.py", *endless(log, end), env={"EDL_TEST_FAIL": "registered"})
    await_event(job, "job.started")
    before = members(job)
    command = edl("migrate", job.name, "--workers", "w0", "--add", "1")
    await_event(job, "worker.registered")
    until(lambda: job.status().adjustment is not None, "the migration")
    until(lambda: "to load" in getattr(job.status().adjustment, "detail", ""), "the newcomer")
    command.send_signal(signal.SIGINT)
    out, said = command.communicate(timeout=30)
    assert command.returncode == 128 + signal.SIGINT, said
    assert "was undone (its requester gave up)" in said
    assert not out
    assert job.status().adjustment is None
    assert members(job) == before
    finish(job, end, log)


@pytest.mark.parametrize("after", ["adjust.accepted", "worker.registered", "adjust.announced"])
def test_a_client_that_is_killed_leaves_no_job_half_adjusted(
    start: Start, log: Path, tmp_path: Path, after: str
) -> None:
    end = tmp_path / "end"
    # The leader undoes the request after this long if its client dies before it has had the new
    # worker started.
    job = start("journal.py", *endless(log, end), env={"EDL_REGISTER_TIMEOUT_S": "15"})
    await_event(job, "job.started")
    seen = len(list(job.events()))
    command = edl("migrate", job.name, "--workers", "w0", "--to", "localhost:5")
    for event in job.events(since=seen, follow=True):
        if event.what == after:
            os.kill(command.pid, signal.SIGKILL)
            break
    command.communicate(timeout=30)

    def settled() -> bool:
        told = {event.what for event in job.events(since=seen)}
        return bool(told & {"adjust.complete", "adjust.undone"})

    until(settled, "an end of the migration", patience_s=60.0)
    until(lambda: len(members(job)) == 2, "two workers")
    assert sorted(members(job)) in (["w0", "w1"], ["w1", "w2"])
    finish(job, end, log)
