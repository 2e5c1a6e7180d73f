"""Nobody survived: a job goes on from its last checkpoint, on any number of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import Refused, UsageError
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import Journal, read_journal
from tests.integration.moments import kill_together

pytestmark = pytest.mark.paired


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints come often, as the launcher finds in its environment."""
    monkeypatch.setenv("EDL_CHECKPOINT_STEPS", "7")
    monkeypatch.setenv("EDL_CHECKPOINT_KEEP", "2")


def saved_steps(folder: Path) -> list[int]:
    found = folder.glob("step-*/manifest.json")
    return sorted(int(path.parent.name.removeprefix("step-")) for path in found)


def await_saved(job: Job, folder: Path, least: int) -> None:
    """Until a checkpoint of a step this far is complete; the job's events mark the time."""
    while not any(step >= least for step in saved_steps(folder)):
        assert job.running()
        job.status()


def await_noted(job: Job, least: int) -> None:
    """Until the job's folder says so too."""
    while (noted := job.checkpoint()) is None or (noted.step or 0) < least:
        assert job.running()
        job.status()


def joined(first: Journal, second: Journal, at: int) -> Journal:
    """One history: what the first job did up to the checkpoint, and what the second did."""
    lines = {
        f"1-{worker}": [line for line in said if line.get("step", at) < at]
        for worker, said in first.lines.items()
    }
    return Journal({**lines, **{f"2-{worker}": said for worker, said in second.lines.items()}})


def paced(until: Path) -> tuple[str, ...]:
    """Slow until the file is there, so that nothing is over before: a job of 84 steps for 17 s."""
    return ("--pause", "0.4", "--pause-until", str(until))


def alone(folder: Path, *arguments: str) -> Journal:
    folder.mkdir()
    command = [sys.executable, str(SCRIPTS / "journal.py"), "--log", str(folder), *arguments]
    subprocess.run(command, check=True, timeout=120, env={**os.environ, "EDL_CHECKPOINT": ""})
    return read_journal(folder)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_killed_job_goes_on_from_its_last_checkpoint(
    start: Start, tmp_path: Path, workers: int
) -> None:
    kept, logs = tmp_path / "kept", [tmp_path / "log1", tmp_path / "log2"]
    for log in logs:
        log.mkdir()
    many = ("--epochs", "4", "--optimizer", "adam")
    job = start(
        *("journal.py", "--log", str(logs[0]), *many, *paced(tmp_path / "never")),
        workers=2,
        checkpoint=str(kept),
    )
    await_saved(job, kept, 28)
    job.stop(force=True)
    steps = saved_steps(kept)
    assert len(steps) <= 3
    job = start(
        *("journal.py", "--log", str(logs[1]), *many),
        workers=workers,
        checkpoint=str(kept),
        resume=True,
    )
    assert job.wait(120).state == "finished"
    second = read_journal(logs[1])
    resumed = min(second.counted())
    assert resumed == steps[-1]
    whole = joined(read_journal(logs[0]), second, resumed)
    whole.check_exactly_once(samples=1003, epochs={0, 1, 2, 3})
    whole.check_batches(batch=50, samples=1003)
    second.check_replicas()
    expected = alone(tmp_path / "alone", *many).losses()
    assert whole.losses() == pytest.approx(expected, abs=1e-4)


def runs_of(journal: Journal, restarted_at: int, first: int) -> Journal:
    """One history of a job that began again: its first `first` workers up to the checkpoint."""
    return Journal(
        {
            worker: [
                line
                for line in said
                if int(worker.removeprefix("w")) >= first
                or line.get("step", restarted_at) < restarted_at
            ]
            for worker, said in journal.lines.items()
        }
    )


def told_of(job: Job) -> int:
    """The step that a job without a leader was last seen at; -1 of any other job."""
    status = job.status()
    return status.step if status.state == "recovering" else -1


def test_a_job_whose_workers_are_all_killed_goes_on_by_itself(
    start: Start, log: Path, tmp_path: Path
) -> None:
    kept, killed = tmp_path / "kept", tmp_path / "killed"
    job = start(
        *("journal.py", "--log", str(log), "--epochs", "4", *paced(killed)),
        workers=2,
        checkpoint=str(kept),
    )
    await_noted(job, 28)
    kill_together(worker.pid for worker in job.status().workers)
    killed.touch()
    # Nobody leads until the job begins again, after a pause; what is known of it is told.
    until(lambda: told_of(job) >= 28, "a job without a leader that says how far it was")
    result = job.wait(120)
    assert (result.state, result.restarts, job.restarts()) == ("finished", 1, 1), result
    noted = job.checkpoint()
    assert noted is not None
    assert noted.resumed_by in {"w2", "w3"}
    told = {event.what: event for event in job.events()}
    assert told["job.restarting"].fields["restart"] == 1
    assert "killed by SIGKILL" in str(told["job.restarting"].fields["why"])
    resumed = told["job.resumed"].fields["from_step"]
    journal = read_journal(log)
    assert set(journal.lines) == {"w0", "w1", "w2", "w3"}
    assert resumed == min(line["step"] for line in journal.lines["w2"] if "step" in line)
    assert isinstance(resumed, int)
    assert resumed >= 28
    whole = runs_of(journal, resumed, 2)
    whole.check_exactly_once(samples=1003, epochs={0, 1, 2, 3})
    whole.check_batches(batch=50, samples=1003)


def test_request_repeated_after_a_restart_is_carried_out_once(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = start(
        *("journal.py", "--log", str(log), "--epochs", "40", *paced(tmp_path / "end")),
        workers=2,
        checkpoint=str(tmp_path / "kept"),
    )
    await_noted(job, 28)
    added = job.scale_out(1, request_id="add-one")
    removed = job.scale_in(1, request_id="remove-one")
    assert added is not None
    assert removed is not None
    assert (added.size, removed.size) == (3, 2)
    kill_together(worker.pid for worker in job.status().workers)
    until(lambda: told(job, "job.resumed"), "the job to be resumed", 60)

    again = job.scale_in(1, request_id="remove-one")
    assert again is not None
    assert (again.left, again.size) == (removed.left, 2)
    again = job.scale_out(1, request_id="add-one")
    assert again is not None
    assert (again.joined, again.size) == (added.joined, 3)
    members = [worker for worker in job.status().workers if worker.rank >= 0]
    assert len(members) == 2, members
    job.stop()


def told(job: Job, what: str) -> bool:
    return any(event.what == what for event in job.events())


def test_a_job_whose_checkpoints_are_away_is_not_begun_anew(
    start: Start, log: Path, tmp_path: Path
) -> None:
    kept, away = tmp_path / "kept", tmp_path / "away"
    job = start(
        *("journal.py", "--log", str(log), "--epochs", "400", "--pause", "0.05"),
        workers=2,
        checkpoint=str(kept),
    )
    await_saved(job, kept, 28)
    workers = job.status().workers
    kept.rename(away)
    kill_together(worker.pid for worker in workers)
    result = job.wait(120)
    assert (result.state, result.restarts) == ("failed", 1), result
    assert result.first_failure is not None
    assert "was saved there; bring it back" in result.first_failure.traceback
    assert not kept.exists()
    assert list(away.glob("step-*"))


def test_checkpoints_of_another_job_are_not_mixed_up_with_this_one(
    start: Start, log: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    arguments = ("journal.py", "--log", str(log), "--epochs", "1")
    job = start(*arguments, checkpoint=str(kept))
    assert job.wait(120).state == "finished"
    # Which steps these are, and whether one or two, depends on how fast the disk is. The launcher
    # tells of the newest when it looks, so one that was soon followed may stay untold.
    steps = saved_steps(kept)
    told = [event.step for event in job.events() if event.what == "checkpoint.saved"]
    assert told[-1:] == steps[-1:]
    assert min(2, len(told)) <= len(steps) <= 2
    assert all(step < steps[0] for step in told if step not in steps)
    noted = job.checkpoint()
    assert noted is not None
    assert (noted.step, noted.error, noted.resumed) == (steps[-1], "", None)
    with pytest.raises(UsageError, match=rf"of step {steps[-1]}; go on from it with --resume"):
        start(*arguments, checkpoint=str(kept))
    with pytest.raises(UsageError, match=r"with --resume"):
        start(*arguments, checkpoint=f"file://{kept}")
    assert saved_steps(kept) == steps


@pytest.mark.parametrize("batch", ["50", "1003"])
def test_a_job_that_is_stopped_keeps_the_step_it_stopped_at(
    start: Start, log: Path, tmp_path: Path, batch: str
) -> None:
    """Also where that is the last step of an epoch, as every one is with a batch of all samples."""
    kept, end = tmp_path / "kept", tmp_path / "end"
    long = ("--epochs", "1000", "--until", str(end), "--pause", "0.02")
    endless = ("--log", str(log), *long, "--batch", batch)
    job = start("journal.py", *endless, checkpoint=str(kept), env={"EDL_CHECKPOINT_STEPS": "0"})
    while job.status().step < 5:
        assert job.running()
    result = job.stop()
    assert result is not None
    assert result.state == "stopped"
    steps = max(read_journal(log).counted()) + 1
    assert saved_steps(kept) == [steps]
    assert [event.step for event in job.events() if event.what == "checkpoint.saved"] == [steps]


def test_a_checkpoint_of_another_framework_is_told_once(
    start: Start, log: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    arguments = ("--log", str(log), "--epochs", "1")
    assert start("journal.py", *arguments, checkpoint=str(kept)).wait(120).state == "finished"
    steps = saved_steps(kept)
    plain = str(SCRIPTS.parent.parent / "contract" / "scripts" / "with_plain.py")
    job = start(plain, *arguments, checkpoint=str(kept), resume=True)
    result = job.wait(120)
    assert (result.state, result.restarts, result.steps) == ("failed", 0, 0), result
    assert "before any step was done would happen again" in result.why
    assert result.first_failure is not None
    assert "go on with the script that wrote it" in result.first_failure.traceback
    assert saved_steps(kept) == steps


def test_two_live_jobs_never_write_to_one_folder(start: Start, log: Path, tmp_path: Path) -> None:
    kept, end = tmp_path / "kept", tmp_path / "end"
    endless = ("--log", str(log), "--epochs", "1000", "--until", str(end))
    job = start("journal.py", *endless, name="first", checkpoint=str(kept))
    with pytest.raises(Refused, match=r"in use: job first \(process \d+\) writes"):
        start("journal.py", *endless, name="second", checkpoint=str(kept), resume=True)
    end.touch()
    assert job.wait(120).state == "finished"
    again = start("journal.py", *endless, name="second", checkpoint=str(kept), resume=True)
    assert again.wait(120).state == "finished"


def test_a_first_run_may_ask_to_resume(start: Start, log: Path, tmp_path: Path) -> None:
    job = start(
        *("journal.py", "--log", str(log), "--epochs", "1"),
        checkpoint=str(tmp_path / "kept"),
        resume=True,
    )
    assert job.wait(120).state == "finished"
    assert min(read_journal(log).counted()) == 0


def test_what_cannot_be_is_told_at_once(start: Start, log: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume needs --checkpoint"):
        start("journal.py", "--log", str(log), resume=True)
    occupied = tmp_path / "file"
    occupied.write_text("here")
    for where, words in (
        (str(occupied), "no checkpoints in .*: "),
        ("nowhere://bucket/job", "nowhere"),
    ):
        with pytest.raises(UsageError, match=words):
            start("journal.py", "--log", str(log), checkpoint=where)
    assert not list((tmp_path / "home/jobs").iterdir())


@pytest.mark.parametrize("way", ["read", "own-thread"])
def test_what_pipelines_had_drawn_is_drawn_again_after_a_restart(
    start: Start, log: Path, tmp_path: Path, way: str
) -> None:
    kept, end = tmp_path / "kept", tmp_path / "end"
    job = start(
        *("pipelines.py", "--log", str(log), "--until", str(end), "--way", way),
        workers=2,
        checkpoint=str(kept),
    )
    await_saved(job, kept, 14)
    kill_together(worker.pid for worker in job.status().workers)
    until(lambda: job.restarts() == 1, "a job that has begun again")
    end.touch()
    result = job.wait(120)
    assert (result.state, result.restarts) == ("finished", 1), result
    journal = read_journal(log)
    resumed = min(line["step"] for line in journal.lines["w2"] if "step" in line)
    whole = runs_of(journal, resumed, 2)
    whole.check_exactly_once(samples=203, epochs=set(range(len(whole.used()))))
    assert job.audit().exact, job.audit().fault


def test_a_flag_says_how_often_and_outweighs_the_environment(start: Start, tmp_path: Path) -> None:
    kept, log = tmp_path / "kept", tmp_path / "log"
    log.mkdir()
    arguments = ("--log", str(log), "--samples", "600", "--epochs", "1")  # 12 steps
    job = start("journal.py", *arguments, checkpoint=str(kept), checkpoint_every="5")
    assert job.wait().state == "finished"
    saved = [int(str(event.step)) for event in job.events() if event.what == "checkpoint.saved"]
    assert saved[0] == 5
