"""Requests meet a job that is busy, and joiners that do not come: training never notices."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import AdjustmentFailed, JobFinished
from edl.launch.access import Access
from edl.launch.jobs import find_job
from edl.protocol import messages as m
from edl.types import Gpu, WorkerId
from tests.integration.conftest import Start
from tests.integration.judge import read_journal


def ask(job: Job, message: m.Message) -> object:
    """One question to the leader, one answer."""
    folder = find_job(job.name)
    access = Access(job=job.name, store=folder.info().store, secret=folder.secret())
    leader = access.leader()
    assert leader is not None
    with access.connect(leader.address) as channel:
        channel.send(message)
        return channel.receive(5.0)


def await_event(job: Job, what: str, timeout_s: float = 60.0) -> None:
    """Until the job's history has this event."""
    until = time.monotonic() + timeout_s
    seen = threading.Event()
    while time.monotonic() < until:
        if any(event.what == what for event in job.events()):
            return
        seen.wait(0.05)
    raise AssertionError(f"no {what} within {timeout_s} s: {[e.what for e in job.events()]}")


def kill_joiner(job: Job) -> None:
    """SIGKILL the joiner as soon as the leader has heard of it."""
    for event in job.events(follow=True):
        if event.what == "worker.registered" and event.request_id:
            os.kill(int(event.fields["pid"]), signal.SIGKILL)
            return


def endless(log: Path, end: Path) -> list[str]:
    return ["--log", str(log), "--epochs", "100000", "--pause", "0.05", "--until", str(end)]


def test_a_request_during_an_adjustment_is_told_to_retry_at_once(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end, gate = tmp_path / "end", tmp_path / "gate"
    env = {"EDL_TEST_FAIL": f"until:{gate}"}
    job = start("faulty_joiner.py", *endless(log, end), env=env)
    await_event(job, "job.started")
    assert job.scale_out(1, wait=False, request_id="first") is None
    second = m.ScaleOut(
        request_id="second",
        joiners=(m.Joiner(worker=WorkerId("w9"), slot=Gpu("localhost", 9)),),
    )
    answer = ask(job, second)
    assert isinstance(answer, m.Retry)
    assert "first" in answer.reason
    gate.touch()  # So far the newcomer was waiting: the answer was not.
    # The same id again waits for the same adjustment and does not scale twice.
    record = job.scale_out(1, request_id="first")
    assert record is not None
    again = job.scale_out(1, request_id="first")
    assert again == record
    assert len(job.status().workers) == 3
    end.touch()
    assert job.wait(60).state == "finished"
    journal = read_journal(log)
    journal.check_replicas()
    journal.check_exactly_once(samples=1003, epochs=set(range(max(journal.used()) + 1)))


@pytest.mark.parametrize(
    ("when", "env", "told"),
    [
        ("import", {}, "exit status 3"),
        ("registered", {}, "went away"),
        ("building", {}, "went away"),
        ("never", {"EDL_READY_TIMEOUT_S": "2.0"}, "did not become ready within 2 s"),
        ("unregistered", {"EDL_REGISTER_TIMEOUT_S": "2.0"}, "did not register within 2 s"),
    ],
)
def test_a_joiner_that_fails_costs_the_job_nothing(
    start: Start, log: Path, tmp_path: Path, when: str, env: dict[str, str], told: str
) -> None:
    end = tmp_path / "end"
    job = start("faulty_joiner.py", *endless(log, end), env={"EDL_TEST_FAIL": when, **env})
    await_event(job, "job.started")
    if when == "registered":
        killer = threading.Thread(target=kill_joiner, args=(job,))
        killer.start()
    with pytest.raises(AdjustmentFailed, match=told):
        job.scale_out(1)
    status = job.status()
    assert status.state == "training"
    assert len(status.workers) == 2
    assert status.adjustment is None
    # The job is as it was: it can still be scaled by workers that behave.
    assert job.scale_in(1) is not None
    end.touch()
    assert job.wait(60).state == "finished"
    journal = read_journal(log)
    journal.check_replicas()
    journal.check_exactly_once(samples=1003, epochs=set(range(max(journal.used()) + 1)))


def test_a_joiner_that_arrives_as_the_job_ends_exits_cleanly(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("faulty_joiner.py", *endless(log, end), env={"EDL_TEST_FAIL": "never"})
    await_event(job, "job.started")
    heard: list[BaseException] = []

    def ask_for_one() -> None:
        try:
            job.scale_out(1)
        except JobFinished as error:
            heard.append(error)

    asking = threading.Thread(target=ask_for_one)
    asking.start()
    await_event(job, "worker.registered", 30.0)
    end.touch()
    assert job.wait(60).state == "finished"
    asking.join(20)
    assert not asking.is_alive()
    assert len(heard) == 1
