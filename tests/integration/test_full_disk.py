"""A job whose disk fills up while it runs still has a result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.launch.jobs import Failure, JobFolder, Result, claim
from tests.contract.servers import until

# Fills the disk of its own job when the launcher has written all that it needs to begin. What it
# prints then does not fit any more.
FILLER = """
import os, sys
folder = os.environ["EDL_JOB_DIR"]
with open(os.path.join(folder, "logs", "ballast"), "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
print("x" * 100_000, flush=True)
print("not flushed")
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk")
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=300k,mode=0700", "tmpfs", str(path)]
    if subprocess.run(command, stderr=subprocess.PIPE).returncode:
        pytest.skip("this system does not allow mounts")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def run(small_disk: Path, script: Path, status: int, *options: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "edl.cli.main", "run", "-n", "1", "--name", "full", *options]
    environment = {**os.environ, "EDL_HOME": str(small_disk), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("EDL_TEMPLATE", None)
    done = subprocess.run(
        [*command, str(script), str(status)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(("status", "state"), [(0, "finished"), (3, "failed")])
@pytest.mark.parametrize("options", [("-d",), ()])
def test_job_on_a_disk_that_fills_up_has_a_result(
    small_disk: Path, tmp_path: Path, status: int, state: str, options: tuple[str, ...]
) -> None:
    script = tmp_path / "filler.py"
    script.write_text(FILLER)
    code, said = run(small_disk, script, status, *options)
    assert code == (0 if options else bool(status)), said
    folder = JobFolder(small_disk / "jobs" / "full")
    until(lambda: not folder.running(), "the end of the launcher")
    result = folder.result()
    assert result is not None, (folder.path / "launcher.log").read_text()
    assert (result.state, result.exit_status) == (state, bool(status))
    assert f"cannot write {folder.path / 'result.json'} in full: No space left" in result.why
    shown = subprocess.run(
        [sys.executable, "-m", "edl.cli.main", "ps", "--json"],
        env={**os.environ, "EDL_HOME": str(small_disk)},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert [row["state"] for row in json.loads(shown.stdout)] == [state]


@pytest.mark.parametrize("length", [300, 300_000])
def test_long_result_is_shortened_to_what_was_reserved(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    monkeypatch.setenv("EDL_HOME", str(small_disk))
    job = claim("full", stem="full")
    with open(small_disk / "ballast", "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, 4096 * os.statvfs(small_disk).f_bavail)
    # Six bytes each in JSON.
    text = "\u00e9" * length
    failure = Failure(worker="w0", status=1, reason=text, traceback=text, log="/l", error=text)
    job.folder.write_result(
        Result(
            state="failed",
            exit_status=1,
            why=text,
            first_failure=failure,
            steps=7,
            seconds=1.0,
            adjustments=(),
            failures=(failure,) * 8,
        )
    )
    result = job.folder.result()
    assert result is not None
    assert result.first_failure is not None
    assert (result.state, result.steps, result.first_failure.log) == ("failed", 7, "/l")
    assert result.first_failure.traceback == text[-500:]
    assert f"cannot write {job.folder.path / 'result.json'} in full: No space left" in result.why
    assert sorted(path.name for path in job.folder.path.glob("result*")) == ["result.json"]
    job.release()
