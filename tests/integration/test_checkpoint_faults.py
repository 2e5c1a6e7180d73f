"""Killed writers, full and vanished disks, torn uploads: what was complete stays so."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from edl.errors import CheckpointError
from edl.runtime.checkpoint import Checkpoint, CheckpointFolder
from edl.runtime.saver import Saver
from edl.runtime.tensorfile import Array

pytestmark = pytest.mark.paired

SCRIPT = Path(__file__).parent / "scripts" / "checkpoints.py"


def content(step: int, size: int) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    array = Array("I64", (size // 8,), step.to_bytes(8, "little") * (size // 8))
    return {"model": {"row": array}, "state": {"row": array}}, {"step": step}


def assert_whole(found: Checkpoint | None) -> int:
    """Every byte is of the step that the checkpoint says it is of."""
    assert found is not None
    assert found.extra == {"step": found.step}
    for named in found.tensors.values():
        assert set(memoryview(named["row"].data).cast("q")) == {found.step}
    assert found.tensors.keys() == {"model", "state"}
    return found.step


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def complete(step: int) -> list[str]:
    files = ("manifest.json", "model.safetensors", "state.safetensors")
    return [f"step-{step:012d}/{file}" for file in files]


# -- killed ------------------------------------------------------------------------------------


def writer(
    root: Path, *, size: int, first: int, count: int, fatal: int = 0
) -> subprocess.Popen[str]:
    numbers = (str(value) for value in (size, first, count, fatal))
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(root), *numbers], stdout=subprocess.PIPE, text=True
    )


def assert_survived(root: Path, completed: int) -> None:
    """The last one is there, or the one that was under way; and a new writer cleans up."""
    step = assert_whole(CheckpointFolder(str(root)).latest())
    assert step in (completed, completed + 1)
    CheckpointFolder(str(root), keep=1).save(step + 1, *content(step + 1, 800))
    assert names(root) == complete(step + 1)


def test_a_writer_killed_at_any_file_operation_leaves_a_whole_one(tmp_path: Path) -> None:
    for fatal in range(1, 200):
        root = tmp_path / str(fatal)
        CheckpointFolder(str(root)).save(9, *content(9, 800))
        process = writer(root, size=800, first=10, count=1, fatal=fatal)
        printed, _ = process.communicate(timeout=60)
        if process.returncode == 0:
            assert printed.split() == ["10"]
            break
        assert process.returncode == -signal.SIGKILL
        assert_survived(root, 9)
    # Two files and a manifest are written, and an older checkpoint is removed.
    assert 20 < fatal < 199


def test_a_writer_killed_at_a_random_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    chance = random.Random(5)
    for _ in range(20):
        process = writer(tmp_path, size=4 << 20, first=10, count=10_000)
        assert process.stdout is not None
        completed = int(process.stdout.readline())
        try:
            process.wait(timeout=chance.uniform(0.0, 0.15))
        except subprocess.TimeoutExpired:
            process.kill()
        # Not by `communicate`: lines that came with the first one are in this file's buffer.
        printed = process.stdout.read()
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
        assert_survived(tmp_path, max([completed, *(int(line) for line in printed.split())]))
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()


# -- disks -------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte, for those who may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def remount(path: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(path)], check=True)


def test_a_full_disk_is_one_clear_error_and_costs_nothing(disk: Path) -> None:
    folder = CheckpointFolder(str(disk / "ck"))
    folder.save(1, *content(1, 200_000))
    big = disk / "other"
    big.write_bytes(bytes(400_000))
    with pytest.raises(CheckpointError) as told:
        folder.save(2, *content(2, 200_000))
    assert str(told.value) == (
        f"the checkpoint {disk}/ck/step-{2:012d} was not written: No space left on device; free "
        "some space there, or keep fewer checkpoints"
    )
    assert names(disk / "ck") == complete(1)
    assert assert_whole(folder.latest()) == 1
    big.unlink()
    folder.save(3, *content(3, 200_000))
    assert assert_whole(folder.latest()) == 3


def test_a_full_disk_is_told_at_the_start_too(disk: Path) -> None:
    (disk / "other").write_bytes(bytes(1 << 20))
    with pytest.raises(CheckpointError, match=r"no checkpoints in .*: No space left"):
        CheckpointFolder(str(disk / "ck")).prepare()


def test_a_disk_that_became_read_only_is_one_clear_error(disk: Path) -> None:
    folder = CheckpointFolder(str(disk))
    folder.save(1, *content(1, 800))
    remount(disk, "ro")
    with pytest.raises(CheckpointError, match="Read-only file system; make it writable"):
        folder.save(2, *content(2, 800))
    with pytest.raises(CheckpointError, match=r"no checkpoints in .*: Read-only file system"):
        CheckpointFolder(str(disk)).prepare()
    assert assert_whole(folder.latest()) == 1
    remount(disk, "rw")
    folder.save(2, *content(2, 800))
    assert assert_whole(folder.latest()) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else_is_one_clear_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(CheckpointError, match="Permission denied; make it writable"):
        CheckpointFolder(str(tmp_path)).save(1, *content(1, 800))
    tmp_path.chmod(0o755)


def test_a_limit_on_file_sizes_is_one_clear_error(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    folder.save(1, *content(1, 800))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(CheckpointError, match=r"File too large; raise the limit .*ulimit -f"):
            folder.save(2, *content(2, 200_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == complete(1)


def test_a_vanished_folder_is_one_error_until_it_is_back(tmp_path: Path) -> None:
    root, away = tmp_path / "disk" / "ck", tmp_path / "away"
    folder = CheckpointFolder(str(root))
    folder.save(1, *content(1, 800))
    (tmp_path / "disk").rename(away)
    with pytest.raises(CheckpointError, match="No such file or directory; bring the folder back"):
        folder.save(2, *content(2, 800))
    # It may be a disk that is not mounted: the place must not fill another one.
    assert not (tmp_path / "disk").exists()
    away.rename(tmp_path / "disk")
    folder.save(3, *content(3, 800))
    assert assert_whole(folder.latest()) == 3


def test_a_training_goes_on_through_a_vanished_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, away = tmp_path / "ck", tmp_path / "away"
    saver = Saver(CheckpointFolder(str(root)), every_steps=10, every_s=0)

    def reach(first: int, last: int) -> None:
        for step in range(first, last + 1):
            saver.boundary(step, lambda step=step: content(step, 800))  # type: ignore[misc]
        saver.stable()
        assert saver.close(60.0)

    reach(1, 10)
    root.rename(away)
    reach(11, 20)
    assert saver.standing().step == 10
    assert "bring the folder back" in saver.standing().error
    away.rename(root)
    reach(21, 30)
    assert (saver.standing().step, saver.standing().error) == (30, "")
    assert assert_whole(CheckpointFolder(str(root)).latest()) == 30
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


# -- elsewhere ---------------------------------------------------------------------------------


class Refusal(Exception):
    """What some other library might raise."""


class Shaky(MemoryFileSystem):  # type: ignore[misc]
    """An object store that fails at its n-th call, in the middle of an upload if it is one."""

    protocol = "shaky"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    left = 10**9

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("shaky://", "memory://")))

    def _count(self) -> None:
        Shaky.left -= 1
        if Shaky.left <= 0:
            raise Refusal("503 Slow Down")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self._count()
        super().makedirs(path, exist_ok=exist_ok)

    def pipe_file(self, path: str, value: bytes, **more: Any) -> None:
        self._count()
        super().pipe_file(path, value, **more)

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self._count()
        return super().ls(path, detail=detail, **more)

    def _open(self, path: str, mode: str = "rb", **more: Any) -> Any:
        file = super()._open(path, mode=mode, **more)
        if mode == "wb":
            whole = file.write

            def write(part: Any) -> int:
                try:
                    self._count()
                except Refusal:
                    whole(bytes(part)[: len(part) // 2])
                    raise
                return int(whole(part))

            file.write = write
        return file


def test_a_torn_upload_is_never_taken_for_a_checkpoint() -> None:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    folder = CheckpointFolder("shaky://bucket/job", keep=2)
    folder.prepare()
    folder.save(1, *content(1, 800))
    good = 1
    for calls in range(1, 100):
        step = calls + 1
        Shaky.left = calls
        try:
            folder.save(step, *content(step, 800))
        except CheckpointError as error:
            told = str(error)
            assert told.startswith(f"the checkpoint shaky://bucket/job/step-{step:012d} was not")
            assert "Refusal: 503 Slow Down; check that the place can be reached" in told
        else:
            good = step
            if Shaky.left > 0:
                break
        Shaky.left = 10**9
        assert assert_whole(folder.latest()) == good
    assert 5 < calls < 99
    Shaky.left = 10**9
    folder.save(200, *content(200, 800))
    assert folder.steps() == [good, 200]
    assert sorted({name.split("/")[3] for name in Shaky.store}) == [
        f"step-{step:012d}" for step in (good, 200)
    ]


@pytest.mark.parametrize("before", [[], [1]])
def test_an_upload_whose_answer_was_lost_spoils_nothing(
    before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(f"memory://lost/{len(before)}")
    for step in [0, *before]:
        folder.save(step, *content(step, 800))
    upload = folder._place.write_small

    def lose_answer(*request: Any) -> None:
        upload(*request)
        raise TimeoutError("no answer")

    monkeypatch.setattr(folder._place, "write_small", lose_answer)
    with pytest.raises(CheckpointError, match="no answer"):
        folder.save(1, *content(1, 800))
    assert assert_whole(folder.latest()) == len(before)


@pytest.mark.parametrize("url", ["nosuch://bucket/job", "memory2://x"])
def test_a_url_that_leads_nowhere_is_an_error_of_the_checkpoint(url: str) -> None:
    folder = CheckpointFolder(url)
    with pytest.raises(CheckpointError, match=f"{url} cannot be read: ValueError: Protocol"):
        folder.latest()
    with pytest.raises(CheckpointError, match="no checkpoints in"):
        folder.prepare()
    with pytest.raises(CheckpointError, match="was not written"):
        folder.save(1, *content(1, 8))
