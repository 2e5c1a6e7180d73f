"""EDL_HOME must be a folder that nobody else can change."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.launch.jobs import all_jobs, claim, find_job


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("EDL_HOME", str(folder))
    return folder


def test_home_is_made_for_its_owner_alone_whatever_the_umask(home: Path) -> None:
    before = os.umask(0o002)
    try:
        claim("mnist", stem="train").release()
    finally:
        os.umask(before)
    for folder in (home, home / "jobs", home / "jobs" / "mnist"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


@pytest.mark.parametrize("which", [".", "jobs"])
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770])
def test_home_that_others_may_write_to_is_refused(home: Path, which: str, mode: int) -> None:
    (home / "jobs").mkdir(parents=True)
    (home / which).chmod(mode)
    for action in (lambda: claim("mnist", stem="train"), lambda: find_job("mnist"), all_jobs):
        with pytest.raises(UsageError, match="chmod go-w"):
            action()
    shutil.rmtree(home)


@pytest.mark.parametrize("which", [".", "jobs"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_home_of_another_user_is_refused(home: Path, which: str) -> None:
    (home / "jobs").mkdir(parents=True, mode=0o700)
    os.chown(home / which, 12345, 12345)
    with pytest.raises(UsageError, match="belongs to user 12345"):
        claim("mnist", stem="train")
    with pytest.raises(UsageError, match="belongs to user 12345"):
        find_job("mnist")
