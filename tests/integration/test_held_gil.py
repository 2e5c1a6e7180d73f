"""A worker whose script holds the GIL is alive; one that is stopped is not."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from edl.runtime.watchdog import is_running
from tests.contract.servers import until
from tests.integration.conftest import Start

# Longer than the silence after which a worker is lost, and than a lease.
SILENCE_S, HOLD_S = 3.0, 8.0
SETTINGS = {"EDL_SILENCE_S": str(SILENCE_S), "EDL_LEASE_S": "2"}


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_worker_that_holds_the_gil_is_not_evicted(
    start: Start, tmp_path: Path, *, leads: bool
) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    job = start(
        "holds_gil.py",
        *("--hold", str(HOLD_S), "--go", str(go), "--end", str(end)),
        workers=3,
        env=SETTINGS,
    )
    until(lambda: job.status().step > 3, "the job to train", 60)
    before = job.status()
    chosen = next(worker for worker in before.workers if worker.leader == leads)
    pending = tmp_path / "pending"
    pending.write_text(chosen.id)
    pending.rename(go)
    log = job.folder / "logs" / f"{chosen.id}.log"
    until(lambda: "held the GIL" in log.read_text(), "the GIL to be free", 60)
    if not leads:
        until(lambda: "worker.responsive" in [e.what for e in job.events()], "its heartbeats")
    end.touch()
    result = job.wait(120)
    assert (result.state, result.failures) == ("finished", ())
    events = [(event.what, event.fields) for event in job.events()]
    assert [fields for what, fields in events if what == "worker.lost"] == []
    assert [what for what, _ in events if what == "leader.changed"] == []
    if not leads:
        reported = [fields for what, fields in events if what == "worker.unresponsive"]
        assert {fields["worker"] for fields in reported} == {chosen.id}
        # The first one may come before the word of the watchdog.
        assert "its process is running" in str(reported[-1]["why"])
        back = [fields["worker"] for what, fields in events if what == "worker.responsive"]
        assert back == [chosen.id]
    assert "sending heartbeats for it" in log.read_text()


def test_the_leader_alone_is_lost_when_it_dies_while_a_follower_holds_the_gil(
    start: Start, tmp_path: Path
) -> None:
    """The follower's watchdog finds the next leader, which the follower itself cannot follow."""
    go, end = tmp_path / "go", tmp_path / "end"
    job = start(
        "holds_gil.py",
        *("--hold", "7", "--go", str(go), "--end", str(end)),
        workers=3,
        env=SETTINGS,
    )
    until(lambda: job.status().step > 3, "the job to train", 60)
    before = job.status()
    leader = next(worker for worker in before.workers if worker.leader)
    # The last one: no other worker is tried as the leader.
    chosen = [worker for worker in before.workers if not worker.leader][-1]
    pending = tmp_path / "pending"
    pending.write_text(chosen.id)
    pending.rename(go)
    log = job.folder / "logs" / f"{chosen.id}.log"
    until(lambda: "holds the GIL" in log.read_text(), "the GIL to be held", 60)
    os.kill(leader.pid, signal.SIGKILL)
    until(lambda: "held the GIL" in log.read_text(), "the GIL to be free", 60)
    end.touch()
    result = job.wait(120)
    assert result.state == "finished"
    events = [(event.what, event.fields) for event in job.events()]
    assert [fields["worker"] for what, fields in events if what == "worker.lost"] == [leader.id]
    assert "job.recovered" in [what for what, _ in events]
    assert "sending heartbeats for it" in log.read_text()


def test_a_stopped_worker_is_reported_and_then_lost(start: Start, tmp_path: Path) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    job = start("holds_gil.py", "--go", str(go), "--end", str(end), workers=3, env=SETTINGS)
    until(lambda: job.status().step > 3, "the job to train", 60)
    frozen = next(worker for worker in job.status().workers if not worker.leader)
    assert is_running(frozen.pid)
    os.kill(frozen.pid, signal.SIGSTOP)
    until(lambda: psutil.Process(frozen.pid).status() == psutil.STATUS_STOPPED, "the stop")
    assert not is_running(frozen.pid)
    until(
        lambda: any(each.silent_s > 0 for each in job.status().workers if each.id == frozen.id),
        "the status to say so",
    )
    until(lambda: frozen.id not in [each.id for each in job.status().workers], "its eviction")
    os.kill(frozen.pid, signal.SIGCONT)
    events = [event for event in job.events() if event.fields.get("worker") == frozen.id]
    told = [event.what for event in events]
    assert told.index("worker.unresponsive") < told.index("worker.lost")
    assert "no heartbeat" in str(events[told.index("worker.lost")].fields["why"])
    end.touch()
    assert job.wait(120).state == "finished"


def test_a_watchdog_ends_with_its_worker(start: Start, tmp_path: Path) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    job = start("holds_gil.py", "--go", str(go), "--end", str(end), workers=2)
    until(lambda: job.status().step > 3, "the job to train", 60)
    killed = next(worker for worker in job.status().workers if not worker.leader)
    dogs = [
        child
        for worker in job.status().workers
        for child in psutil.Process(worker.pid).children()
        if "edl.runtime.watchdog" in child.cmdline()
    ]
    assert len(dogs) == 2
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: sum(dog.is_running() for dog in dogs) == 1, "the watchdog of the killed worker")
    end.touch()
    assert job.wait(120).state == "finished"
    until(lambda: not any(dog.is_running() for dog in dogs), "the other watchdog")
