"""The owner mark of a checkpoint folder that others may write to."""

from __future__ import annotations

import fcntl
import os
import stat
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
