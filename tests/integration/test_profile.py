"""`edl profile` on real jobs: what it finds, how it leaves them, and Ctrl-C at every stage."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edl.client import Job, run
from edl.launch.jobs import all_jobs
from tests.integration.conftest import SCRIPTS, Start

PATIENCE_S = 60.0
BATCH = 12  # of timed.py
Profiler = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def profiler(tmp_path: Path) -> Iterator[Profiler]:
    """`edl profile` as a shell starts it; none outlives the test."""
    begun: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "edl.cli.main", "profile", *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            stdout=pipe,
            stderr=pipe,
            text=True,
            process_group=0,
            preexec_fn=hear_signals,
        )
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def hear_signals() -> None:
    """A shell ignores SIGINT in what it runs in the background, and nohup SIGHUP."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "in vain"
        threading.Event().wait(0.02)


def await_line(process: subprocess.Popen[str], start: str) -> None:
    """Until it tells this on its standard error; what the test's own timeout is for."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"edl: {start}"):
            return
    raise AssertionError(f"it never said {start!r} but {said}")


def slots(job: Job) -> dict[str, str]:
    return {worker.id: worker.slot for worker in job.status().workers if worker.rank >= 0}


def trains_on(job: Job) -> None:
    step = job.status().step
    until(lambda: job.status().step > step + 2)


def test_throughput_follows_the_timed_wait_and_beside_starts_it_takes_little_time(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of bench/profiling.py."""
    monkeypatch.delenv("EDL_TEMPLATE")
    wait_s, steps, warm_up = 0.24, 5, 2
    began = time.monotonic()
    job = start("timed.py", "--wait", str(wait_s), "--until", str(tmp_path / "end"), workers=3)
    until(lambda: job.status().step > 0)
    start_s = time.monotonic() - began

    began = time.monotonic()
    found = job.profile(1, 3, steps=steps, warm_up=warm_up, restore=False)
    profile_s = time.monotonic() - began
    assert [row.workers for row in found.rows] == [3, 2, 1]
    for row in found.rows:
        # No step is shorter than its wait; the wait is most of it.
        assert wait_s / row.workers <= row.step_s < 2 * wait_s / row.workers
        assert row.throughput == pytest.approx(BATCH / row.step_s)
        assert row.per_worker == pytest.approx(row.throughput / row.workers)
    assert 1.8 < found.rows[0].throughput / found.rows[2].throughput < 3.1
    # Without elasticity each number is a start of its own.
    steps_s = sum((steps + warm_up) * row.step_s for row in found.rows)
    assert profile_s < 0.5 * (3 * start_s + steps_s), (profile_s, start_s, steps_s)

    # Without a range: as it is now, beside the best that was found.
    until(lambda: job.status().throughput > 0)
    (now,) = job.profile().rows
    # What is known of this number itself gives way to what is newer.
    best = max(now.per_worker, *(row.per_worker for row in found.rows if row.workers > 1))
    assert now.workers == 1
    assert now.efficiency == pytest.approx(now.per_worker / best)


@pytest.mark.paired
def test_the_job_is_as_it_was_after_a_profile_and_after_a_signal_at_any_stage(
    start: Start, profiler: Profiler, tmp_path: Path
) -> None:
    job = start("timed.py", "--wait", "0.1", "--until", str(tmp_path / "end"), workers=2)
    until(lambda: job.status().step > 0)
    before, table = slots(job), tmp_path / "p.csv"
    few = ("--steps", "2", "--warm-up", "0")

    process = profiler(
        job.name, "--min-p", "2", "--max-p", "3", *few, "--json", "--csv", str(table)
    )
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert ([row["workers"] for row in told["rows"]], told["restored"]) == ([3, 2], True)
    with table.open() as file:
        found = [(int(row["workers"]), float(row["throughput"])) for row in csv.DictReader(file)]
    assert found == [(row["workers"], row["throughput"]) for row in told["rows"]]
    assert slots(job) == before, "the one that came for it has left again"

    many = ("--min-p", "1", "--max-p", "3", "--steps", "100000")
    for stage, number in (
        ("scaling out to 3 workers", signal.SIGTERM),
        ("measuring 100000 steps with 3 workers", signal.SIGINT),
    ):
        process = profiler(job.name, *many)
        await_line(process, stage)
        process.send_signal(number)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 128 + number
        assert slots(job) == before
        trains_on(job)

    # Fewer than it had: one of its own leaves, and a new one sits on its slot afterwards.
    process = profiler(job.name, "--min-p", "1", "--max-p", "2", *few)
    await_line(process, "scaling in to 1 worker")
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGHUP, err
    assert sorted(slots(job).values()) == sorted(before.values())
    kinds = [event.fields["kind"] for event in job.events() if event.what == "adjust.complete"]
    assert kinds.count("scale_out") == kinds.count("scale_in"), kinds

    # Killed, it puts nothing back, but the job is whole.
    process = profiler(job.name, *many[:2], "--max-p", "1", *many[4:])
    await_line(process, "measuring 100000 steps with 1 worker")
    process.kill()
    process.communicate()
    trains_on(job)
    assert len(slots(job)) == 1
    assert job.status().adjustment is None


@pytest.mark.paired
def test_a_job_that_is_started_for_it_ends_with_it(
    start: Start, profiler: Profiler, tmp_path: Path
) -> None:
    script = str(SCRIPTS / "timed.py")
    wait = ("--wait", "0.05", "--until", str(tmp_path / "end"))
    process = profiler("--max-p", "2", "--steps", "3", "--json", "--script", script, *wait)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert [row["workers"] for row in told["rows"]] == [2, 1]
    assert not Job(told["job"]).running()

    process = profiler("--steps", "100000", "--script", script, *wait)
    await_line(process, "measuring 100000 steps with 2 workers")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGINT
    assert not any(folder.running() for folder in all_jobs())


@pytest.mark.paired
def test_an_interrupted_start_leaves_no_job_that_nobody_knows_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    script = tmp_path / "waits.py"
    script.write_text("import threading\nthreading.Event().wait(600)\n")

    def interrupted(child: subprocess.Popen[bytes], description: bytes) -> tuple[bytes, bytes]:
        """Ctrl-C when the launcher lives and its name has not been heard."""
        assert child.stdin is not None
        child.stdin.write(description)
        child.stdin.close()
        until(lambda: any(folder.running() for folder in all_jobs()))
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(str(script), workers=1)
    until(lambda: not any(folder.running() for folder in all_jobs()))
