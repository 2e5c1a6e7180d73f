"""The launcher when files cannot be read or written: it ends with a result and a plain message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PATIENCE_S = 60.0

NOT_UTF8 = r"""
import os, pathlib
worker = os.environ["EDL_WORKER"]
if worker == "w0":
    folder = pathlib.Path(os.environ["EDL_JOB_DIR"], "failures")
    (folder / f"{worker}.txt").write_bytes(b"Traceback: caf\xe9 \xff\n")
    os._exit(7)
"""
FOLDER_IN_ITS_PLACE = r"""
import os, pathlib
worker = os.environ["EDL_WORKER"]
print("the last line of the log", flush=True)
if worker == "w0":
    pathlib.Path(os.environ["EDL_JOB_DIR"], "failures", f"{worker}.txt").mkdir()
    os._exit(7)
"""
FAILS_IN_LATIN1 = r"""
raise ValueError("caf\u00e9 \u20ac \udcff")
"""
ENDS_AT_ONCE = "print('done')"
# Fills the disk that EDL_HOME is on, then ends with success.
FILLS_THE_DISK = r"""
import errno, os
path = os.path.join(os.environ["EDL_JOB_DIR"], "filling")
with open(path, "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 512)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
"""


def edl(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "edl.cli.start", *arguments],
        env={**os.environ, "EDL_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


@pytest.mark.parametrize("text", [NOT_UTF8, FOLDER_IN_ITS_PLACE])
def test_job_whose_failure_file_cannot_be_read_ends_with_a_result(
    tmp_path: Path, text: str
) -> None:
    done = edl(tmp_path, "run", "-n", "2", "--name", "bad", script(tmp_path, text))
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "jobs" / "bad" / "result.json").read_text())
    assert (result["state"], result["first_failure"]["worker"]) == ("failed", "w0")
    expected = "caf\ufffd" if text is NOT_UTF8 else "the last line of the log"
    assert expected in result["first_failure"]["traceback"]
    assert "launcher failed" not in result["why"]


def test_traceback_of_a_worker_with_another_locale_is_reported(tmp_path: Path) -> None:
    path = script(tmp_path, FAILS_IN_LATIN1)
    done = edl(tmp_path, "run", "-n", "1", "--name", "latin", path, PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 1, done.stderr
    result = json.loads((tmp_path / "jobs" / "latin" / "result.json").read_text())
    assert "ValueError: caf\u00e9 \u20ac" in result["first_failure"]["traceback"]


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """A file system of its own that can be filled."""

    path: Path

    def fill(self, *, spare_bytes: int) -> None:
        """Leave so much room and no more."""
        statistics = os.statvfs(self.path)
        free = statistics.f_bavail * statistics.f_frsize
        with open(self.path / "filler", "wb", buffering=0) as file:
            file.write(b"x" * (free - spare_bytes))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this machine allows no mount: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


# On a tmpfs each folder entry is free and each file takes whole pages of 4 KiB. So the first
# write that fails is another one each time: the secret, job.json, the log, the run.
@pytest.mark.parametrize("pages", [0, 1, 2, 3])
@pytest.mark.parametrize("background", [False, True], ids=["foreground", "background"])
def test_new_job_on_a_full_disk_names_the_file_and_shows_no_traceback(
    small_disk: SmallDisk, tmp_path: Path, pages: int, background: bool
) -> None:
    small_disk.fill(spare_bytes=pages * 4096)
    path = script(tmp_path, ENDS_AT_ONCE)
    flags = ["-d"] if background else []
    done = edl(small_disk.path, "run", *flags, "-n", "1", "--name", "full", path)
    told = done.stdout + done.stderr
    assert "Traceback" not in told, told
    if done.returncode:
        assert f"cannot write {small_disk.path}" in told, told
        assert "No space left on device" in told, told
    else:
        assert pages >= 2, told


def test_job_that_filled_the_disk_still_ends_with_success(
    small_disk: SmallDisk, tmp_path: Path
) -> None:
    path = script(tmp_path, FILLS_THE_DISK)
    done = edl(small_disk.path, "run", "-n", "1", "--name", "filled", path)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert done.returncode == 0, done.stderr
