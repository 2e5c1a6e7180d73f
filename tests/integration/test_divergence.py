"""Replicas that drift apart are found: the job stops, warns, or brings them together again."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import AdjustmentFailed, JobFinished
from tests.integration.conftest import Start
from tests.integration.test_requests import await_event

pytestmark = pytest.mark.paired


def digests(job: Job) -> dict[str, str]:
    """What the workers that reached the script's end printed of their parameters."""
    found = {}
    for line in job.logs():
        worker, _, text = line.partition(" | ")
        if text.startswith("digest "):
            found[worker] = text.split()[1]
    return found


def scale_out_and_end(job: Job, end: Path) -> None:
    """One worker joins; the script ends its training soon after, if it comes to that."""
    await_event(job, "job.started")
    with contextlib.suppress(JobFinished, AdjustmentFailed):
        # A job that stops in the joiner's second step may be over before it can answer.
        job.scale_out(1)
    end.touch()


def test_a_joiner_with_a_counter_of_its_own_stops_the_job(start: Start, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("own_counter.py", "--until", str(end), workers=2)
    scale_out_and_end(job, end)
    result = job.wait(60)
    assert result.state == "failed", digests(job)
    assert result.exit_status != 0
    assert "w2" in result.why
    assert "lr" in result.why
    assert any(event.what == "replicas.diverged" for event in job.events())
    assert result.first_failure is not None
    assert "edl.step()" in result.first_failure.traceback


def test_a_schedule_by_the_jobs_own_step_keeps_replicas_equal(start: Start, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("own_counter.py", "--rate", "job", "--until", str(end), workers=2)
    scale_out_and_end(job, end)
    result = job.wait(60)
    assert result.state == "finished", result.why
    assert len(digests(job)) == 3
    assert len(set(digests(job).values())) == 1


def test_warn_trains_on_and_emits_one_event_of_each_kind(start: Start, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("own_counter.py", "--until", str(end), workers=2, on_divergence="warn")
    scale_out_and_end(job, end)
    result = job.wait(60)
    assert result.state == "finished", result.why
    assert len(set(digests(job).values())) == 2, "the script did not make replicas differ"
    told = [event.fields for event in job.events() if event.what == "replicas.diverged"]
    assert sorted({str(fields["subject"]) for fields in told}) == ["settings", "state"]
    assert len(told) == 2
    assert all(fields["workers"] == "w2" for fields in told)
    assert "lr" in str(next(f["why"] for f in told if f["subject"] == "settings"))


def test_resync_makes_replicas_equal_again(start: Start, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("own_counter.py", "--until", str(end), workers=2, on_divergence="resync")
    scale_out_and_end(job, end)
    result = job.wait(60)
    assert result.state == "finished", result.why
    assert len(digests(job)) == 3
    assert len(set(digests(job).values())) == 1
    assert any(event.what == "replicas.resynced" for event in job.events())


@pytest.mark.parametrize("policy", ["stop", "resync"])
def test_a_disturbed_weight_is_found_within_the_digest_steps(
    start: Start, tmp_path: Path, policy: str
) -> None:
    end = tmp_path / "end"
    job = start(
        *("own_counter.py", "--rate", "job", "--disturb", "25", "--worker", "w1"),
        *("--most", "8", "--until", str(end)),
        workers=3,
        on_divergence=policy,
        digest_steps=20,
    )
    result = job.wait(60)
    found = [event for event in job.events() if event.what == "replicas.diverged"]
    assert len(found) == 1
    # One turn of all parts, and the two steps that a digest is on its way.
    assert 25 < found[0].step <= 25 + 20 + 2
    why = str(found[0].fields["why"])
    assert "w1 differs from w0" in why
    assert "2.weight" in why
    if policy == "stop":
        assert result.state == "failed"
        assert result.why == why
    else:
        assert result.state == "finished", result.why
        assert len(set(digests(job).values())) == 1


def test_no_checkpoint_is_made_of_replicas_that_differ(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    job = start(
        *("own_counter.py", "--rate", "job", "--disturb", "25", "--worker", "w1"),
        *("--most", "8", "--until", str(tmp_path / "end")),
        workers=2,
        checkpoint=str(folder),
        # In turn, nothing would be found before the checkpoint of step 30.
        digest_steps=1000,
        env={"EDL_CHECKPOINT_STEPS": "10"},
    )
    result = job.wait(60)
    assert result.state == "failed"
    assert "step 30" in result.why
    assert "not started again" in result.why
    assert [path.name[-2:] for path in sorted(folder.glob("step-*"))] == ["10", "20"]


@pytest.mark.parametrize("registered", ["average", "total"])
def test_registered_values_that_rightly_differ_do_not_stop_the_job(
    start: Start, registered: str
) -> None:
    job = start("own_values.py", "--registers", registered, workers=2)
    result = job.wait(60)
    assert result.state == "finished", result.why
    assert not any(event.what == "replicas.diverged" for event in job.events())


def test_a_total_that_is_compared_stops_the_job_with_advice(start: Start) -> None:
    job = start("own_values.py", "--registers", "total", "--compared", workers=2)
    result = job.wait(60)
    assert result.state == "failed"
    assert "registered Total" in result.why
    assert result.first_failure is not None
    assert "edl.register(obj, same=False)" in result.first_failure.traceback
