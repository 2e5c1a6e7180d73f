"""`edl clean` and `edl ps --all`: the folders of jobs that are over."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edl.cli.main import main
from edl.launch.jobs import Claim, JobInfo, Result, claim, home

INFO = JobInfo(
    name="",
    pid=1,
    script="/a/train.py",
    args=(),
    store="edl://127.0.0.1:7",
    created=1.5,
    backend="local",
    workers=2,
    min=1,
    max=0,
    slots=0,
    python="python",
)
RESULT = Result(
    state="finished",
    exit_status=0,
    why="",
    first_failure=None,
    steps=120,
    seconds=3.0,
    adjustments=(),
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))


def begun(name: str) -> Claim:
    job = claim(name, stem="train")
    job.folder.write_info(replace(INFO, name=name))
    return job


def ended(name: str, state: str | None = "finished", *, days_ago: float = 0.0) -> Path:
    job = begun(name)
    if state is not None:
        job.folder.write_result(replace(RESULT, state=state))
    moment = time.time() - days_ago * 86_400
    for path in job.folder.path.iterdir():
        os.utime(path, (moment, moment))
    job.release()
    return job.folder.path


def folders() -> set[str]:
    return {path.name for path in (home() / "jobs").iterdir()}


def test_jobs_that_are_over_are_removed_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    ended("done"), ended("broken", "failed"), ended("lost", None)
    running = begun("busy")
    assert main(["clean", "--yes"]) == 0
    assert folders() == {"busy"}
    told = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in told[:3]] == [
        ["removed", "broken", "(failed,"],
        ["removed", "done", "(finished,"],
        ["removed", "lost", "(killed,"],
    ]
    assert told[-1].startswith("3 jobs removed, ")
    assert told[-1].endswith("1 running job kept")
    running.release()


def test_an_earlier_run_of_the_name_is_removed_too() -> None:
    ended("mnist"), ended("mnist")
    assert folders() == {"mnist", "mnist.old"}
    assert main(["clean", "--yes", "mnist.old"]) == 0
    assert folders() == {"mnist"}


def test_a_dry_run_removes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ended("done")
    assert main(["clean", "--dry-run"]) == 0
    assert folders() == {"done"}
    assert "would remove done (finished, " in capsys.readouterr().out


def test_only_jobs_that_ended_long_ago(capsys: pytest.CaptureFixture[str]) -> None:
    ended("old", days_ago=8), ended("new", days_ago=6), ended("lost", None, days_ago=9)
    assert main(["clean", "--older-than", "7d", "--yes"]) == 0
    assert folders() == {"new"}
    assert main(["clean", "--older-than", "7d", "--yes"]) == 0
    assert "no job ended more than 7 d ago" in capsys.readouterr().out


def test_a_running_job_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    ended("done")
    running = begun("busy")
    assert main(["clean", "--yes", "done", "busy"]) == 2
    assert folders() == {"done", "busy"}
    assert "job busy is running" in capsys.readouterr().err
    running.release()


def test_an_unknown_job_removes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    ended("done")
    assert main(["clean", "--yes", "done", "dome"]) == 2
    assert main(["clean", "--yes", "../jobs/done"]) == 2
    assert folders() == {"done"}
    assert "there is no job 'dome'" in capsys.readouterr().err


def test_folders_of_something_else_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("done")
    jobs = home() / "jobs"
    (jobs / "photos").mkdir()
    (jobs / "photos" / "a.jpg").touch()
    moved = tmp_path / "elsewhere"
    ended("moved").rename(moved)
    (jobs / "moved").symlink_to(moved)
    copied = ended("copied")
    copied.rename(jobs / "copy")
    assert main(["clean", "--yes"]) == 0
    assert folders() == {"photos", "moved", "copy"}
    assert (moved / "job.json").exists()
    assert main(["clean", "--yes", "photos"]) == 2
    assert main(["clean", "--yes", "moved"]) == 2
    assert "moved is a link" in capsys.readouterr().err
    assert main(["clean", "--yes", "copy"]) == 2
    assert "is of job copied" in capsys.readouterr().err
    assert folders() == {"photos", "moved", "copy"}


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@AS_ROOT
def test_the_folder_of_another_user_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    os.chown(ended("theirs"), 4711, -1)
    ended("mine")
    leftover = home() / "jobs" / ".removed-theirs-1"
    leftover.mkdir()
    os.chown(leftover, 4711, -1)
    assert main(["clean", "--yes"]) == 0
    assert folders() == {"theirs", leftover.name}
    assert "theirs belongs to user 4711, not to you (0)" in capsys.readouterr().err
    assert main(["clean", "--yes", "theirs"]) == 2
    assert folders() == {"theirs", leftover.name}


@AS_ROOT
@pytest.mark.parametrize("part", [".", "jobs"])
def test_home_of_another_user_is_refused(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    ended("done")
    os.chown(home() / part, 4711, -1)
    for command in (["clean", "--yes"], ["clean", "--yes", "done"]):
        assert main(command) == 2
        assert "belongs to user 4711" in capsys.readouterr().err
    assert folders() == {"done"}


@pytest.mark.parametrize("part", [".", "jobs"])
def test_home_that_others_may_write_to_is_refused(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("done")
    (home() / part).chmod(0o770)
    assert main(["clean", "--yes"]) == 2
    assert "others may write to" in capsys.readouterr().err
    assert folders() == {"done"}


def test_links_in_a_job_folder_are_removed_and_not_followed(tmp_path: Path) -> None:
    dear = tmp_path / "dear"
    dear.mkdir()
    (dear / "thesis").write_text("text")
    path = ended("done")
    (path / "logs" / "folder").symlink_to(dear)
    (path / "logs" / "file").symlink_to(dear / "thesis")
    leftover = home() / "jobs" / ".removed-done-1"
    leftover.symlink_to(dear)
    assert main(["clean", "--yes"]) == 0
    assert folders() == {leftover.name}
    assert (dear / "thesis").read_text() == "text"


def test_job_that_begins_after_it_was_listed_is_not_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("mnist")
    started = []

    class Slow(io.StringIO):
        """Another process starts a job of that name while the user thinks."""

        def isatty(self) -> bool:
            return True

        def readline(self, size: int | None = -1) -> str:  # type: ignore[override]
            started.append(begun("mnist"))
            return "y"

    monkeypatch.setattr("sys.stdin", Slow())
    assert main(["clean"]) == 1
    assert folders() == {"mnist", "mnist.old"}
    assert "job mnist is running" in capsys.readouterr().err
    started[0].release()


def test_a_job_that_cannot_be_removed_is_named_and_the_others_are_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("done"), ended("stuck")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name == "stuck":
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    assert main(["clean", "--yes"]) == 1
    assert folders() == {"stuck"}
    told = capsys.readouterr()
    assert "removed done" in told.out
    assert "job stuck is not removed" in told.err
    assert "Permission denied" in told.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "left"), [("y\n", set()), ("\n", {"done"}), ("", {"done"})])
def test_at_a_terminal_it_asks(
    answer: str,
    left: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended("done")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["clean"]) == (1 if left else 0)
    assert folders() == left
    assert "remove 1 job, " in capsys.readouterr().err


def test_without_a_terminal_yes_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended("done")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["clean"]) == 2
    assert folders() == {"done"}
    assert "--yes" in capsys.readouterr().err


def test_clean_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    path = ended("done")
    (path / "logs" / "w0.log").write_bytes(b"x" * 5000)
    assert main(["clean", "--yes", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["job"], row["state"], row["removed"]) == ("done", "finished", True)
    assert row["path"] == str(path)
    assert row["bytes"] >= 5000
    assert row["age_s"] >= 0


def test_nothing_to_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean"]) == 0
    assert "no job is over" in capsys.readouterr().out


def test_ps_lists_earlier_runs_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    ended("mnist", "failed"), ended("mnist")
    assert main(["ps", "--json"]) == 0
    assert [row["job"] for row in json.loads(capsys.readouterr().out)] == ["mnist"]
    assert main(["ps", "--all", "--json"]) == 0
    rows = {row["job"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"mnist": "finished", "mnist.old": "failed"}
    assert main(["ps", "--all"]) == 0
    assert "mnist.old" in capsys.readouterr().out
