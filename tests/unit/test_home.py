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


@pytest.fixture
def above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder above EDL_HOME, which is two below it."""
    folder = tmp_path / "above"
    (folder / "between").mkdir(parents=True)
    monkeypatch.setenv("EDL_HOME", str(folder / "between" / "home"))
    return folder


def refused(words: str) -> None:
    for action in (lambda: claim("mnist", stem="train"), lambda: find_job("mnist"), all_jobs):
        with pytest.raises(UsageError, match=words):
            action()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_home_below_a_folder_that_others_may_write_to_is_refused(above: Path, mode: int) -> None:
    above.chmod(mode)
    refused(f"others may write to {above} .*chmod go-w {above}")


@pytest.mark.parametrize("mode", [0o1777, 0o1770, 0o755, 0o711, 0o555])
def test_home_below_a_folder_where_others_may_rename_nothing_will_do(
    above: Path, mode: int
) -> None:
    above.chmod(mode)
    claim("mnist", stem="train").release()
    assert all_jobs() == []  # none that was begun, and none refused
    above.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_home_below_a_folder_of_another_user_is_refused(above: Path) -> None:
    os.chown(above, 12345, 12345)
    refused(f"{above}, on the way to .*, belongs to user 12345")


def test_folders_that_a_link_leads_through_are_checked_too(
    above: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(above / "between")
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "link" / "home"))
    claim("mnist", stem="train").release()
    above.chmod(0o777)
    refused(f"others may write to {above}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives links away")
def test_link_of_another_user_is_refused(
    above: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above.chmod(0o1777)
    (above / "link").symlink_to(tmp_path)
    os.chown(above / "link", 12345, 12345, follow_symlinks=False)
    monkeypatch.setenv("EDL_HOME", str(above / "link" / "home"))
    refused(f"{above / 'link'}, on the way to .*, belongs to user 12345")


def test_folders_that_are_made_above_home_are_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "a" / "b" / "home"))
    before = os.umask(0o002)
    try:
        claim("mnist", stem="train").release()
    finally:
        os.umask(before)
    assert all_jobs() == []
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_links_that_lead_nowhere_end_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loop").symlink_to(f"../{tmp_path.name}/loop")
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "loop" / "home"))
    with pytest.raises((OSError, UsageError)):
        claim("mnist", stem="train")
