"""Job folders, and what the end of a process means for a job."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from edl.errors import Refused, UnknownJob, UsageError
from edl.launch.base import Ended, JobSpec
from edl.launch.census import EXPLAIN_LAST_S, EXPLAIN_S, Census, Judged
from edl.launch.jobs import Failure, JobInfo, Result, all_jobs, claim, find_job, home
from edl.protocol.messages import Happened
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.types import WorkerId

W0, W1, W2 = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


def info(name: str) -> JobInfo:
    return JobInfo(
        name=name,
        pid=1,
        script="/a/train.py",
        args=("--lr", "0.1"),
        store="edl://127.0.0.1:7",
        created=1.5,
        backend="local",
        workers=2,
        min=1,
        max=0,
        slots=0,
        python="python",
    )


# -- folders ---------------------------------------------------------------------------------


def test_only_its_user_may_read_a_job() -> None:
    folder = claim("mnist", stem="train").folder
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.secret_file.stat().st_mode) == 0o600
    assert len(folder.secret()) == 32


def test_a_job_without_a_name_is_named_after_its_script() -> None:
    assert claim(None, stem="train").folder.name == "train-1"
    assert claim(None, stem="train").folder.name == "train-2"
    assert claim(None, stem="my script!").folder.name == "my-script-1"
    assert claim(None, stem="...").folder.name == "job-1"


def test_a_second_job_of_a_running_name_is_refused() -> None:
    first = claim("mnist", stem="train")
    first.folder.write_info(info("mnist"))
    with pytest.raises(Refused, match=r"'mnist' is running already \(process 1\)"):
        claim("mnist", stem="train")
    assert first.folder.running()
    assert sorted(path.name for path in (home() / "jobs").iterdir()) == ["mnist"]


def test_an_ended_job_of_the_same_name_is_kept_as_old() -> None:
    for number in range(3):
        held = claim("mnist", stem="train")
        held.folder.write_info(info("mnist"))
        (held.folder.path / "number").write_text(str(number))
        held.release()
    assert (home() / "jobs/mnist/number").read_text() == "2"
    assert (home() / "jobs/mnist.old/number").read_text() == "1"
    assert [folder.name for folder in all_jobs()] == ["mnist"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "-n", ".hidden", "x.old", "a b", "x" * 65])
def test_a_name_that_cannot_be_a_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="job name"):
        claim(name, stem="train")


def test_a_job_that_never_began_leaves_nothing() -> None:
    claim("mnist", stem="train").withdraw()
    assert list((home() / "jobs").iterdir()) == []


def test_an_unknown_job_is_told_with_those_that_exist() -> None:
    with pytest.raises(UnknownJob, match="there are none"):
        find_job("mnist")
    claim("digits", stem="train").folder.write_info(info("digits"))
    with pytest.raises(UnknownJob, match=r"no job 'mnist' in .*; there is digits"):
        find_job("mnist")
    with pytest.raises(UnknownJob):
        find_job("../digits")


def test_what_is_written_about_a_job_is_read_back() -> None:
    folder = claim("mnist", stem="train").folder
    assert folder.result() is None
    record = AdjustmentRecord(
        request_id="4f2",
        kind="scale_out",
        joined=(W2,),
        left=(),
        generation=2,
        step=7,
        size=3,
        total_s=1.5,
        transfer_bytes=10,
        parts=Parts(stop_s=0.25),
    )
    failure = Failure(worker="w1", status=-9, reason="killed", traceback="", log="/l")
    result = Result(
        state="failed",
        exit_status=1,
        why="worker w1 failed",
        first_failure=failure,
        steps=9,
        seconds=2.5,
        adjustments=(record,),
    )
    folder.write_info(info("mnist"))
    folder.write_result(result)
    assert find_job("mnist").info() == info("mnist")
    assert find_job("mnist").result() == result


# -- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (JobSpec(script="a", workers=1, min_workers=2), "-n 1 is under --min 2"),
        (JobSpec(script="a", workers=3, max_workers=2), "-n 3 is over --max 2"),
        (JobSpec(script="a", min_workers=3, max_workers=2), "--max 2 is under --min 3"),
        (JobSpec(script="a", min_workers=0), "--min 0"),
        (JobSpec(script="a", port=70000), "--port 70000"),
        (JobSpec(script="a", warm=-1), "--warm -1"),
        (JobSpec(script="a", preload=("numpy",)), "--preload numpy needs --warm N"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(spec: JobSpec, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        spec.check()


def test_a_job_starts_with_one_worker_per_gpu_or_with_two() -> None:
    assert JobSpec(script="a").founders(4) == 4
    assert JobSpec(script="a").founders(0) == 2
    assert JobSpec(script="a", slots=1).founders(0) == 1
    assert JobSpec(script="a", min_workers=3).founders(0) == 3
    assert JobSpec(script="a", max_workers=1).founders(0) == 1
    assert JobSpec(script="a", workers=5).founders(2) == 5


# -- ends of processes -----------------------------------------------------------------------


def happened(what: str, request_id: str = "", /, **fields: str | int | float) -> Happened:
    return Happened(
        seq=1, what=what, request_id=request_id, generation=1, step=5, fields=dict(fields)
    )


def training() -> Census:
    census = Census([W0, W1])
    census.on_leader(True, 0.0)
    for worker in (W0, W1):
        census.on_started(worker, "")
    census.on_event(happened("job.started"))
    return census


def generation(number: int, *members: WorkerId) -> bytes:
    return json.dumps({"number": number, "members": list(members)}).encode()


def joining(census: Census) -> None:
    census.on_started(W2, "4f2")
    census.on_event(happened("adjust.accepted", "4f2", kind="scale_out", workers="w2"))


def ended(worker: WorkerId, status: int) -> Ended:
    return Ended(worker=worker, status=status, at=0.0)


def judged(census: Census, worker: WorkerId, status: int, *, later: float = 0.0) -> list[Judged]:
    census.on_ended(ended(worker, status), 100.0)
    return census.judge(100.0 + later)


@pytest.mark.parametrize("status", [1, -9, 143])
def test_a_member_that_dies_is_lost_and_the_job_goes_on(status: int) -> None:
    census = training()
    (judgement,) = judged(census, W1, status)
    assert judgement.lost
    assert not judgement.failed
    assert census.open
    assert census.working() == 1
    assert not census.deserted()


def test_a_member_that_dies_before_training_begins_fails_the_job() -> None:
    census = Census([W0, W1])
    for worker in (W0, W1):
        census.on_started(worker, "")
    (judgement,) = judged(census, W1, 1)
    assert judgement.failed


def test_word_of_the_first_generation_may_come_after_a_members_death() -> None:
    census = Census([W0, W1])
    census.on_leader(True, 0.0)
    for worker in (W0, W1):
        census.on_started(worker, "")
    assert judged(census, W1, -9) == []
    census.on_generation(generation(1, W0, W1))
    (judgement,) = census.judge(100.1)
    assert judgement.lost


def test_a_dead_member_that_the_others_have_left_behind_is_lost() -> None:
    census = training()
    census.on_generation(generation(2, W0))
    assert census.size == 1
    (judgement,) = judged(census, W1, 1)
    assert judgement.lost


def test_a_newcomer_that_the_store_told_of_first_stays_a_member() -> None:
    census = training()
    joining(census)
    census.on_generation(generation(2, W0, W1, W2))
    census.on_event(happened("adjust.switching", "4f2", at=7))
    assert census.is_member(W2)
    assert not census.has_left(W2)


def test_a_process_that_the_others_took_for_dead_is_expelled_and_a_leaver_is_not() -> None:
    census = training()
    assert census.expelled() == set()
    census.on_generation(generation(2, W0))
    assert census.expelled() == {W1}
    assert census.pending() == []
    census.on_dismissed(W1)
    assert census.expelled() == set()
    census = training()
    census.on_event(happened("adjust.accepted", "5a1", kind="scale_in", workers="w1"))
    census.on_generation(generation(2, W0))
    assert census.expelled() == set()


def test_whoever_stays_for_the_newcomers_first_step_has_not_left_with_the_switch() -> None:
    census = training()
    census.on_started(W2, "5a1")
    census.on_event(happened("adjust.accepted", "5a1", kind="migrate", workers="w2"))
    census.on_event(happened("adjust.switching", "5a1", at=4))
    assert not census.has_left(W0)
    assert census.is_member(W2)
    census.on_event(happened("adjust.parted", "5a1", workers="w0,w1"))
    assert census.has_left(W0)
    assert census.has_left(W1)
    assert census.expelled() == set()


def test_newcomers_without_a_member_left_wait_for_nothing() -> None:
    census = training()
    joining(census)
    judged(census, W0, -9)
    assert not census.deserted()
    judged(census, W1, -9)
    assert census.deserted()
    assert census.size == 2, "it begins again with as many"


def test_a_job_lives_on_where_others_have_started_its_members() -> None:
    census = training()
    far = WorkerId("far")
    census.on_generation(generation(2, W0, W1, far))
    for worker in (W0, W1):
        judged(census, worker, -9)
    assert not census.open
    assert census.elsewhere(200.0)
    census.on_leader(False, 200.0)
    assert census.elsewhere(200.0 + EXPLAIN_S - 1)
    assert not census.elsewhere(200.0 + EXPLAIN_S + 1)


def test_a_newcomer_that_fails_before_its_switch_harms_nobody() -> None:
    census = training()
    joining(census)
    assert judged(census, W2, 1) == []
    census.on_event(happened("adjust.undone", "4f2"))
    (judgement,) = census.judge(100.0)
    assert not judgement.failed
    assert "before it had joined" in judgement.why


def test_a_newcomer_that_fails_after_its_switch_is_lost_as_any_member() -> None:
    census = training()
    joining(census)
    # Its end was seen before the word of the switch came.
    assert judged(census, W2, 1) == []
    census.on_event(happened("adjust.switching", "4f2", at=7))
    (judgement,) = census.judge(100.0)
    assert judgement.lost


def test_a_leaver_may_end_as_it_likes() -> None:
    census = training()
    census.on_event(happened("adjust.accepted", "5a1", kind="scale_in", workers="w1"))
    census.on_event(happened("adjust.switching", "5a1", at=7))
    (judgement,) = judged(census, W1, 1)
    assert not judgement.failed
    assert census.has_left(W1)


def test_a_quiet_end_waits_for_its_explanation() -> None:
    census = training()
    assert judged(census, W1, 0, later=EXPLAIN_S - 1) == []
    census.on_event(happened("job.finished"))
    (judgement,) = census.judge(101.0)
    assert not judgement.failed


def test_a_quiet_end_in_the_middle_of_the_job_is_a_loss() -> None:
    (judgement,) = judged(training(), W1, 0, later=EXPLAIN_S + 1)
    assert judgement.lost
    assert "while the others still trained" in judgement.why


def test_everybody_leaving_quietly_without_an_end_is_a_loss() -> None:
    census = training()
    judged(census, W0, 0)
    assert all(each.lost for each in judged(census, W1, 0, later=EXPLAIN_LAST_S + 0.1))
    assert not census.open


def test_scripts_that_are_no_job_may_just_end() -> None:
    census = Census([W0, W1])
    for worker in (W0, W1):
        (judgement,) = judged(census, worker, 0)
        assert not judgement.failed


def test_a_failure_after_the_job_is_over_still_counts() -> None:
    census = training()
    census.on_state("finished")
    (judgement,) = judged(census, W0, 1)
    assert judgement.failed


def test_a_kill_after_the_job_is_over_takes_no_success_from_the_others() -> None:
    census = training()
    census.on_state("finished")
    (judgement,) = judged(census, W0, -9)
    assert judgement.lost
    assert not judgement.failed
    assert not census.succeeded
    judged(census, W1, 0)
    assert census.succeeded


def test_whom_the_launcher_ends_does_not_fail() -> None:
    census = training()
    joining(census)
    census.on_state("finished")
    assert census.pending() == [W2]
    assert census.on_dismissed(W2)
    assert not census.on_dismissed(W2)
    (judgement,) = judged(census, W2, -15)
    assert not judgement.failed
    assert not judgement.why


def test_adjustments_are_read_from_events() -> None:
    census = training()
    joining(census)
    census.on_event(happened("adjust.switching", "4f2", at=7))
    census.on_event(
        happened(
            "adjust.complete",
            "4f2",
            kind="scale_out",
            joined="w2",
            left="",
            workers=3,
            total_s=1.5,
            stop_s=0.25,
            transfer_bytes=10,
        )
    )
    (record,) = census.records
    assert (record.joined, record.left, record.size, record.step) == ((W2,), (), 3, 7)
    assert (record.total_s, record.parts.stop_s, record.transfer_bytes) == (1.5, 0.25, 10)
    assert census.is_member(W2)
