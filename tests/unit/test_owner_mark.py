"""The owner mark of a checkpoint folder that others may write to."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.errors import Refused, UsageError
from edl.launch.checkpoints import OWNER, own
from edl.runtime.places import open_place


def claim(folder: Path) -> None:
    own(str(folder), job="mnist", resume=False).release()


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    file = tmp_path / "precious"
    file.write_text("do not touch")
    return file


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def test_symbolic_link_is_refused_and_what_it_leads_to_is_untouched(
    shared: Path, precious: Path
) -> None:
    (shared / OWNER).symlink_to(precious)
    with pytest.raises(UsageError, match="symbolic link"):
        claim(shared)
    assert precious.read_text() == "do not touch"


def test_hard_link_is_refused_and_what_it_leads_to_is_untouched(
    shared: Path, precious: Path
) -> None:
    os.link(precious, shared / OWNER)
    with pytest.raises(UsageError, match="hard links"):
        claim(shared)
    assert precious.read_text() == "do not touch"


def test_what_is_no_regular_file_is_refused_without_waiting(shared: Path) -> None:
    os.mkfifo(shared / OWNER)
    with pytest.raises(UsageError, match="not a regular file"):
        claim(shared)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_refused(shared: Path) -> None:
    (shared / OWNER).touch()
    os.chown(shared / OWNER, 12345, 12345)
    with pytest.raises(UsageError, match="12345"):
        claim(shared)


def test_mark_is_for_its_owner_alone_so_nobody_else_can_lock_it(shared: Path) -> None:
    (shared / OWNER).touch()
    (shared / OWNER).chmod(0o644)
    claim(shared)
    assert stat.S_IMODE((shared / OWNER).stat().st_mode) == 0o600


def test_folder_in_use_is_refused_and_its_owner_named(shared: Path) -> None:
    held = own(str(shared), job="first", resume=False)
    try:
        with pytest.raises(Refused, match="job first"):
            claim(shared)
    finally:
        held.release()
    with open(shared / OWNER) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_checkpoint_is_not_written_through_a_symbolic_link(shared: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (shared / "step-1").symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic link"):
        open_place(str(shared)).write_small("step-1", "manifest.json", b"{}")
    assert list(elsewhere.iterdir()) == []


def test_checkpoint_stays_in_its_folder_when_a_link_takes_its_place_meanwhile(
    shared: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def parts() -> Iterator[bytes]:
        yield b"{"
        (shared / "step-1").rename(shared / "aside")
        (shared / "step-1").symlink_to(elsewhere)
        yield b"}"

    open_place(str(shared)).write("step-1", "manifest.json", parts())
    assert list(elsewhere.iterdir()) == []
    assert (shared / "aside" / "manifest.json").read_bytes() == b"{}"


def test_checkpoint_is_not_read_through_a_symbolic_link(shared: Path, precious: Path) -> None:
    (shared / "step-1").mkdir()
    (shared / "step-1" / "manifest.json").symlink_to(precious)
    with pytest.raises(OSError, match="symbolic link"):
        open_place(str(shared)).read("step-1", "manifest.json", 12)


def test_checkpoint_that_is_no_regular_file_is_refused_without_waiting(shared: Path) -> None:
    (shared / "step-1").mkdir()
    os.mkfifo(shared / "step-1" / "manifest.json")
    with pytest.raises(OSError, match="not a regular file"):
        open_place(str(shared)).read("step-1", "manifest.json", 12)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away and becomes others")
def test_mark_of_another_user_names_its_owner_and_what_to_do(shared: Path) -> None:
    (shared / OWNER).touch(mode=0o600)
    os.chmod(shared.parent, 0o755)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from edl.errors import UsageError\n"
        "from edl.launch.files import open_own\n"
        f"os.chdir({str(shared)!r})\n"
        "os.setuid(12345)\n"
        "try:\n"
        f"    open_own(Path({OWNER!r}))\n"
        "except UsageError as error:\n"
        "    print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "belongs to user root, not to you (12345)" in told.stdout
    assert "ask root to remove the file" in told.stdout


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_used_without_a_mark_and_with_a_warning(
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    claim(shared)
    assert f"checkpoints.unlocked folder={shared}" in caplog.text


def test_mark_that_cannot_be_locked_for_another_reason_is_named(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UsageError, match=f"cannot lock {shared / OWNER}: Input/output error"):
        claim(shared)
