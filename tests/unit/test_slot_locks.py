"""Locks on slots, among files that another user may have put there."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from pathlib import Path

import pytest

from edl.errors import Refused
from edl.launch.slot_locks import SlotLocks, directory_of
from edl.launch.slots import SlotBook, gpu_names
from edl.types import Gpu, WorkerId

W0, W1 = WorkerId("w0"), WorkerId("w1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "machine"


def local(*indexes: int) -> list[Gpu]:
    return [Gpu("localhost", index) for index in indexes]


def gpus(folder: Path, job: str, *, share: bool = False) -> SlotBook:
    return SlotBook({0: "0", 1: "1"}, locks=SlotLocks(folder, job=job), share_gpus=share)


def test_the_directory_is_for_everybody_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        locks = SlotLocks(folder, job="a")
        assert locks.acquire("gpu-0") == ""
    finally:
        os.umask(before)
    assert locks.problem == ""
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert stat.S_IMODE((folder / "gpu-0.lock").stat().st_mode) == 0o666


def test_no_child_inherits_a_lock(folder: Path) -> None:
    locks = SlotLocks(folder, job="a")
    locks.acquire("gpu-0")
    mine = (folder / "gpu-0.lock").stat()
    numbers = [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.exists()]
    held = [number for number in numbers if os.path.samestat(os.fstat(number), mine)]
    assert len(held) == 1
    assert fcntl.fcntl(held[0], fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_held_slot_names_its_holder_until_it_is_released(folder: Path) -> None:
    first, second = SlotLocks(folder, job="a"), SlotLocks(folder, job="b")
    assert first.acquire("gpu-0") == ""
    assert f"job a of user {first._holder.user} (process {os.getpid()})" == second.acquire("gpu-0")
    first.release("gpu-0")
    assert second.acquire("gpu-0") == ""


def test_hostile_files_are_neither_followed_nor_written(folder: Path, tmp_path: Path) -> None:
    locks = SlotLocks(folder, job="a")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / "gpu-0.lock").symlink_to(precious)
    os.link(precious, folder / "gpu-1.lock")
    os.mkfifo(folder / "gpu-2.lock")
    (folder / "gpu-3.lock").mkdir()
    for index in range(4):
        assert "cannot be locked" in locks.acquire(f"gpu-{index}")
    assert precious.read_text() == "mine"
    (folder / "gpu-4.lock").write_text("\x1b[31m not json")
    other = os.open(folder / "gpu-4.lock", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert locks.acquire("gpu-4") == "a process that does not say who it is (see `lslocks`)"
    os.close(other)
    assert locks.acquire("gpu-4") == ""


def test_cpu_slots_step_around_hostile_files(folder: Path) -> None:
    book = SlotBook({}, locks=SlotLocks(folder, job="a"))
    (folder / "cpu-0.lock").symlink_to("/etc/passwd")
    assert list(book.take([W0, W1]).values()) == local(1, 2)


@pytest.mark.parametrize("kind", ["file", "link", "not sticky"])
def test_a_directory_that_cannot_be_trusted_is_reported(folder: Path, kind: str) -> None:
    if kind == "file":
        folder.touch()
    elif kind == "link":
        folder.symlink_to("/tmp")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    assert str(folder) in SlotLocks(folder, job="a").problem


def test_sharing_jobs_spread_first_and_keep_others_out(folder: Path) -> None:
    a, b = gpus(folder, "a", share=True), gpus(folder, "b", share=True)
    assert list(a.take([W0]).values()) == local(0)
    assert list(b.take([W0]).values()) == local(1)
    assert list(b.take([W1]).values()) == local(0)
    assert "job" in SlotLocks(folder, job="c").acquire("gpu-0")
    a.free(W0)
    b.free(W1)
    assert SlotLocks(folder, job="c").acquire("gpu-0") == ""


def test_a_share_of_an_exclusive_gpu_becomes_a_lock_when_its_holder_goes(folder: Path) -> None:
    a, b = gpus(folder, "a"), gpus(folder, "b", share=True)
    a.take([W0, W1])
    assert list(b.take([W0]).values()) == local(0)
    a.close()
    b.refresh(1000.0)
    c = SlotLocks(folder, job="c")
    assert "job b" in c.acquire("gpu-0")
    assert c.acquire("gpu-1") == ""


def test_a_lock_whose_file_was_removed_is_taken_again(folder: Path) -> None:
    first = SlotLocks(folder, job="a")
    first.acquire("gpu-0")
    (folder / "gpu-0.lock").unlink()
    first.refresh()
    assert "job a" in SlotLocks(folder, job="b").acquire("gpu-0")


def test_one_gpu_by_two_names_is_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    command.write_text("#!/bin/sh\necho 'GPU 0: A100 (UUID: GPU-8f1c-22)'\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu_names({0: "0"}) == gpu_names({0: "GPU-8f1c"}) == {0: "GPU-8f1c-22"}
    assert gpu_names({3: "3"}) == {3: "3"}


def test_the_directory_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert directory_of({}) == Path("/tmp/edl-slots")
    assert directory_of({"EDL_SLOTS_DIR": "/run/edl"}) == Path("/run/edl")


def test_cpu_slots_go_on_without_locks_when_the_directory_became_unusable(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    book = SlotBook({}, locks=SlotLocks(folder, job="a"))
    folder.rmdir()
    folder.touch()
    assert list(book.take([W0, W1]).values()) == local(0, 1)
    assert "slots.unlocked slot=0" in caplog.text


def test_gpus_are_refused_with_the_reason_when_the_directory_became_unusable(folder: Path) -> None:
    book = gpus(folder, "a")
    folder.rmdir()
    folder.touch()
    reason = r"localhost:0 cannot be locked against other jobs \(.*Not a directory.*EDL_SLOTS_DIR"
    with pytest.raises(Refused, match=reason):
        book.take([W0])
    with pytest.raises(Refused, match=r"slot localhost:1 cannot be locked against other jobs"):
        book.take([W0], local(1))


class Hostile:
    """Locks of which another user keeps us from every one."""

    def __init__(self) -> None:
        self.tried = 0

    def acquire(self, name: str, *, shared: bool = False, alone: bool = False) -> str:
        self.tried += 1
        return "somebody"

    def release(self, name: str) -> None: ...

    def refresh(self) -> None: ...

    def close(self) -> None: ...


def test_search_for_a_cpu_slot_that_can_be_locked_ends(caplog: pytest.LogCaptureFixture) -> None:
    locks = Hostile()
    taken = SlotBook({}, locks=locks).take([W0, W1])
    first = locks.tried
    assert first < 10_000
    assert list(taken.values()) == local(first, first + 1)
    assert "slots.unlocked" in caplog.text


def test_directory_that_was_removed_is_made_again_and_its_locks_are_taken_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SlotLocks(folder, job="a")
    first.acquire("gpu-0")
    shutil.rmtree(folder)
    first.refresh()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert "job a" in SlotLocks(folder, job="b").acquire("gpu-0")
    assert first.acquire("gpu-1") == ""
    assert "slots.lost" not in caplog.text


def test_lock_that_cannot_be_taken_again_is_logged_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = SlotLocks(folder, job="a")
    first.acquire("gpu-0")
    (folder / "gpu-0.lock").unlink()
    other = SlotLocks(folder, job="b")
    assert other.acquire("gpu-0") == ""
    for _ in range(3):
        first.refresh()
    assert caplog.text.count("slots.lost slot=gpu-0") == 1
    other.close()
    first.refresh()
    assert "job a" in SlotLocks(folder, job="c").acquire("gpu-0")
