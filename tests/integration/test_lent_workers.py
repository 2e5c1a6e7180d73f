"""Workers for a time in real jobs: their processes have ended when it is over."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from edl.client import Event, Job
from edl.errors import AdjustmentFailed, Refused
from edl.launch.transient import LEAD_MARGIN_S
from edl.types import WorkerId
from tests.contract.servers import until
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.moments import kill_together
from tests.integration.test_requests import await_event, endless

LENT_S = 9.0


def assert_in_time(over: Event) -> None:
    """Near the end of its time, by the launcher's own clock; nearer than a busy machine may be."""
    assert abs(float(over.fields["spare_s"])) < LENT_S / 2


def event_of(job: Job, what: str, worker: str = "") -> Event:
    await_event(job, what)
    return next(
        e for e in job.events() if e.what == what and worker in str(e.fields.get("workers", ""))
    )


def member(job: Job, worker: str) -> bool:
    return any(w.id == worker and w.rank >= 0 for w in job.status().workers)


def leads(job: Job, worker: str) -> bool:
    return any(w.id == worker and w.leader for w in job.status().workers)


def test_a_lent_leader_is_gone_in_time_though_its_requester_was_killed(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), workers=1)
    await_event(job, "job.started")
    command = [sys.executable, "-m", "edl.cli.main", "scale-out", job.name, "--gpus", "localhost:1"]
    with subprocess.Popen([*command, "--for", f"{LENT_S}s"]) as client:
        event_of(job, "adjust.accepted", "w1")
        until(lambda: "w1" in job.transients(), "its process")
        client.send_signal(signal.SIGKILL)
    until(lambda: member(job, "w1"), "the lent worker")
    assert 0.0 < job.transients()[WorkerId("w1")] < LENT_S
    process = psutil.Process(next(w.pid for w in job.status().workers if w.id == "w1"))
    # Whoever leads leaves as well; and there must be somebody left when it goes.
    job.scale_in(["w0"])
    assert leads(job, "w1")
    job.scale_out(1)
    until(lambda: not process.is_running(), "its end")
    over = event_of(job, "transient.over")
    assert over.fields["workers"] == "w1"
    assert_in_time(over)
    assert job.transients() == {}
    end.touch()
    assert job.wait(60).state == "finished"
    journal = read_journal(log)
    journal.check_exactly_once(samples=1003, epochs=set(range(max(journal.used()) + 1)))


def test_lent_workers_are_worth_it_for_a_few_seconds(
    start: Start, log: Path, tmp_path: Path
) -> None:
    """The short form of bench/transient.py: a pool, and compute that is a timed wait."""
    end = tmp_path / "end"
    pace = ["--log", str(log), "--epochs", "100000", "--pause", "0.4", "--until", str(end)]
    job = start("journal.py", *pace, workers=2, warm=2)
    until(lambda: job.status().step > 3, "steps")

    def steps_in(seconds: float) -> float:
        began, first = time.monotonic(), job.status().step
        until(lambda: time.monotonic() >= began + seconds, "the time to pass")
        return (job.status().step - first) / (time.monotonic() - began)

    alone = steps_in(2.0)
    job.scale_out(2, for_s=7.0, wait=False)
    lent = steps_in(7.0)
    # Ideal is twice as many. A join and a leave take two of the seconds, whatever the period.
    assert lent > 1.2 * alone, f"{alone:.1f} steps a second alone, {lent:.1f} with lent workers"
    until(lambda: not job.transients(), "their end")
    assert len(job.status().workers) == 2


def test_the_time_holds_though_the_job_begins_again(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end, kept = tmp_path / "end", str(tmp_path / "kept")
    env = {"EDL_CHECKPOINT_STEPS": "5"}
    job = start("journal.py", *endless(log, end), workers=1, checkpoint=kept, env=env)
    await_event(job, "job.started")
    job.scale_out(["localhost:3"], for_s=LENT_S)
    until(lambda: job.checkpoint() is not None, "a checkpoint")
    kill_together(worker.pid for worker in job.status().workers)
    await_event(job, "job.resumed")
    # w2 is there for good, and w3 takes the lent place.
    assert set(job.transients()) == {"w3"}
    until(lambda: member(job, "w3"), "the new worker")
    assert [worker.slot for worker in job.status().workers] == ["localhost:0", "localhost:3"]
    until(lambda: not job.transients(), "its end")
    assert_in_time(event_of(job, "transient.over", "w3"))
    assert [worker.id for worker in job.status().workers] == ["w2"]


@pytest.mark.paired
def test_leaving_takes_longer_where_loaders_read_ahead(start: Start, log: Path) -> None:
    end = log / "until"
    reading = ("--log", str(log), "--until", str(end), "--kind", "map", "--pause", "0.4")
    job = start("reading.py", *reading, "--num-workers", "2", workers=1)
    until(lambda: job.status().step > 2, "the pace")
    # Two processes with two batches each, and the step itself.
    ahead_s = 4 * 0.4

    def told_s() -> float:
        with pytest.raises(Refused) as refused:
            job.scale_out(1, for_s=0.1)
        told = re.search(r"leaving alone takes about ([0-9.]+) s", str(refused.value))
        assert told is not None, refused.value
        return float(told[1])

    until(lambda: told_s() > ahead_s + LEAD_MARGIN_S, "the launcher to know")
    assert job.status().switch_steps > 4
    end.touch()
    assert job.wait(60).state == "finished"


@pytest.mark.paired
def test_a_time_that_is_too_short_leaves_the_job_as_it_was(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    slow = "if __import__('os').environ['EDL_REQUEST']: __import__('time').sleep(60)\n"
    script = Path(__file__).parent / "scripts" / "journal.py"
    (tmp_path / "slow.py").write_text(slow + script.read_text())
    job = start(str(tmp_path / "slow.py"), *endless(log, end), workers=1)
    await_event(job, "job.started")
    until(lambda: job.status().step_s > 0, "the pace")
    why = r"0\.1 s of the 0\.1 s are left, and leaving alone takes about ([0-9.]+) s"
    with pytest.raises(Refused, match=why) as refused:
        job.scale_out(1, for_s=0.1)
    told = re.search(why, str(refused.value))
    assert told is not None
    with pytest.raises(AdjustmentFailed, match="its time is over before it has joined"):
        job.scale_out(1, for_s=3 * float(told[1]) + 2)
    await_event(job, "transient.vain")
    launcher = psutil.Process(job.status().workers[0].pid).parent()
    assert launcher is not None
    # The founder and the template.
    until(lambda: len(launcher.children()) == 2, "the newcomer's end")
    assert job.transients() == {}
    end.touch()
    assert job.wait(60).state == "finished"
