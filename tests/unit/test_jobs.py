"""Job folders, what is written about a job, and how many workers it begins with."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from edl.errors import Refused, UnknownJob, UsageError
from edl.launch.base import JobSpec
from edl.launch.jobs import Failure, JobInfo, Result, all_jobs, claim, find_job, home
from edl.protocol.tale import AdjustmentRecord, Parts
from edl.types import WorkerId


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
        joined=(WorkerId("w2"),),
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
