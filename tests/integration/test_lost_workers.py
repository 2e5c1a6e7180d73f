"""What the launcher does about workers that are lost: goes on, replaces, begins again, or ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_requests import await_event

SAMPLES, BATCH = 400, 40


def journal(log: Path, end: Path | None = None, *, epochs: int = 6) -> tuple[str, ...]:
    size = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--log", str(log))
    if end is None:
        return (*size, "--epochs", str(epochs), "--pause", "0.06")
    pace = ("--pause", "0.1", "--pause-until", str(end))
    return (*size, "--epochs", "1000", "--until", str(end), *pace)


def members(job: Job) -> set[str]:
    try:
        return {str(worker.id) for worker in job.status().workers if worker.rank >= 0}
    except EdlError:
        return set()  # the leader is the one that was killed


def kill(job: Job, worker: str) -> None:
    (pid,) = [each.pid for each in job.status().workers if each.id == worker]
    os.kill(pid, signal.SIGKILL)


def test_a_lost_worker_is_replaced_and_one_that_left_is_not(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *journal(log, end), workers=3, keep=3)
    until(lambda: job.status().step > 3, "the job to train")
    kill(job, "w1")
    until(lambda: members(job) == {"w0", "w2", "w3"}, "a replacement", 60.0)
    assert job.scale_in(["w2"]) is not None
    kill(job, "w0")
    until(lambda: members(job) == {"w3", "w4"}, "another, but none for the one that left", 60.0)
    end.touch()
    result = job.wait(120)
    assert (result.state, result.exit_status) == ("finished", 0)
    assert [failure.worker for failure in result.failures] == ["w1", "w0"]
    assert [event.fields["worker"] for event in job.events() if event.what == "process.ended"] == [
        "w1",
        "w0",
    ]
    written = read_journal(log)
    written.check_exactly_once(samples=SAMPLES, epochs=set(range(max(written.used()) + 1)))
    written.check_replicas()


def test_the_status_of_a_running_job_says_why_a_worker_was_lost(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    raising = {"EDL_TEST_RAISE": "worker=w1"}
    job = start("raising.py", *journal(log, end), workers=3, env=raising)
    until(lambda: bool(job.failures()), "the loss of w1")
    (failure,) = job.failures()
    assert job.running()
    assert (failure.worker, failure.status, failure.step) == ("w1", 1, 8)
    assert failure.error == "OSError: my disk is full"
    assert "my disk is full" in failure.traceback
    assert Path(failure.log).name == "w1.log"
    kill(job, "w2")
    until(lambda: len(job.failures()) == 2, "the loss of w2")
    assert job.failures()[1].reason == "killed by SIGKILL"
    end.touch()
    result = job.wait(120)
    assert result.state == "finished"
    assert result.failures == job.failures()
    assert "w1 failed at step 8 (OSError: my disk is full)" in result.why
    assert "w2 was lost (killed by SIGKILL)" in result.why


def recovered_from(job: Job) -> set[str]:
    """Who was lost before steps were done again, by the job's history."""
    again = [event for event in job.events() if event.what == "job.recovered"]
    return {worker for event in again for worker in str(event.fields["lost"]).split(",")}


def test_a_job_that_begins_again_has_those_that_were_being_replaced(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start(
        "faulty_joiner.py",
        *journal(log, end),
        workers=3,
        keep=3,
        checkpoint=str(tmp_path / "kept"),
        # Or those that replace the others could be in before the last one is killed.
        env={"EDL_TEST_FAIL": "registered"},
    )
    until(lambda: job.status().step > 3, "the job to train")
    pids = {str(worker.id): worker.pid for worker in job.status().workers}
    os.kill(pids["w1"], signal.SIGKILL)
    os.kill(pids["w2"], signal.SIGKILL)
    # Its launcher has heard so, which tells afterwards who was the last.
    until(lambda: recovered_from(job) >= {"w1", "w2"}, "the job to go on without the others")
    os.kill(pids["w0"], signal.SIGKILL)
    until(lambda: job.restarts() == 1 and len(members(job)) == 3, "three workers again", 60.0)
    end.touch()
    result = job.wait(120)
    assert (result.state, result.exit_status) == ("finished", 0)
    (again,) = [event for event in job.events() if event.what == "job.restarting"]
    assert "(the last was w0: killed by SIGKILL)" in str(again.fields["why"])


def test_newcomers_that_were_just_taken_in_do_not_keep_a_lost_job_waiting(
    start: Start, log: Path, tmp_path: Path
) -> None:
    """Its only worker dies as they enter: whether they had, the job has three workers again."""
    end = tmp_path / "end"
    job = start(
        "journal.py", *journal(log, end), workers=1, keep=3, checkpoint=str(tmp_path / "kept")
    )
    until(lambda: job.status().step > 3, "the job to train")
    (pid,) = [worker.pid for worker in job.status().workers]
    job.scale_out(2, wait=False)
    await_event(job, "adjust.announced")
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(members(job)) == 3 and "w0" not in members(job), "three workers", 60.0)
    end.touch()
    assert job.wait(120).state == "finished"


def test_a_worker_that_raises_alone_costs_the_job_that_worker(start: Start, log: Path) -> None:
    job = start(
        "raising.py",
        *journal(log),
        workers=3,
        min_workers=3,
        env={"EDL_TEST_RAISE": "worker=w1"},
    )
    result = job.wait(120)
    assert (result.state, result.exit_status) == ("finished", 0)
    (failure,) = result.failures
    assert (failure.worker, failure.step) == ("w1", 8)
    assert "OSError: my disk is full" in failure.traceback
    (short,) = [event for event in job.events() if event.what == "job.short"]
    assert short.fields == {"workers": 2, "min": 3}
    written = read_journal(log)
    written.check_exactly_once(samples=SAMPLES, epochs=set(range(6)))
    written.check_replicas()


def test_a_batch_that_raises_on_two_workers_ends_the_job(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = start(
        "raising.py",
        *journal(log),
        workers=3,
        checkpoint=str(tmp_path / "kept"),
        env={"EDL_TEST_RAISE": "sample=77", "EDL_CHECKPOINT_STEPS": "4"},
    )
    result = job.wait(120)
    assert (result.state, result.restarts) == ("failed", 0)
    assert "failed on the same batch" in result.why
    assert "not started again" in result.why
    first, second = result.failures[:2]
    assert first.worker != second.worker
    assert first.step == second.step
    for failure in (first, second):
        assert "ValueError: sample 77 is a banana" in failure.traceback


def test_a_script_that_fails_again_at_the_same_step_is_not_begun_a_third_time(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = start(
        "raising.py",
        *journal(log),
        workers=1,
        checkpoint=str(tmp_path / "kept"),
        env={"EDL_TEST_RAISE": "sample=77", "EDL_CHECKPOINT_STEPS": "4"},
    )
    result = job.wait(120)
    assert (result.state, result.restarts) == ("failed", 1)
    assert "ValueError at step" in result.why
    assert "happened again" in result.why


@pytest.mark.parametrize("leader", [False, True], ids=["follower", "leader"])
def test_the_lease_of_a_killed_worker_is_not_waited_for(
    start: Start, log: Path, tmp_path: Path, *, leader: bool
) -> None:
    """With a lease of minutes, only its being revoked lets another one lead soon."""
    end = tmp_path / "end"
    job = start("journal.py", *journal(log, end), workers=3, env={"EDL_LEASE_S": "300"})
    until(lambda: job.status().step > 3, "the job to train")
    (doomed, *_) = [str(w.id) for w in job.status().workers if w.leader is leader]
    kill(job, doomed)
    until(lambda: len(members(job)) == 2, "the others to go on")
    step = job.status().step
    until(lambda: job.status().step > step + 1, "a step without it")
    end.touch()
    assert job.wait(90).state == "finished"
    written = read_journal(log)
    assert written.sizes()[-1] == 2
    written.check_exactly_once(samples=SAMPLES, epochs=set(range(max(written.used()) + 1)))
