"""Checkpoints in real folders: whole, or passed over for an older one."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl.errors import CheckpointError, UsageError
from edl.runtime.checkpoint import Checkpoint, CheckpointFolder
from edl.runtime.tensorfile import Array

pytestmark = pytest.mark.paired

FILES = ["model.safetensors", "state.safetensors", "manifest.json"]


def tensors(step: int) -> dict[str, dict[str, Array]]:
    row = step.to_bytes(8, "little") * 40
    return {
        "model": {"weight": Array("F32", (8, 10), row), "empty": Array("F16", (0,), b"")},
        "state": {"count": Array("I64", (), row[:8]), "flags": Array("BOOL", (2,), b"\1\0")},
    }


def plain(content: Any) -> Any:
    return {
        stem: {name: (a.dtype, a.shape, bytes(a.data)) for name, a in arrays.items()}
        for stem, arrays in content.items()
    }


def save(folder: CheckpointFolder, step: int) -> None:
    folder.save(step, tensors(step), {"job": "mnist-7", "epoch": step // 10})


def assert_whole(found: Checkpoint | None, step: int) -> None:
    assert found is not None
    assert found.step == step
    assert plain(found.tensors) == plain(tensors(step))
    assert found.extra == {"job": "mnist-7", "epoch": step // 10}


def name(step: int) -> str:
    return f"step-{step:012d}"


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """Warnings of the checkpoint room, as they come."""
    told: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    ear = Ear(logging.WARNING)
    log = logging.getLogger("edl.checkpoint")
    log.addHandler(ear)
    yield told
    log.removeHandler(ear)


@pytest.fixture(params=["path", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}/below/it"
    below = tmp_path / "below" / "it"
    return str(below) if request.param == "path" else f"file://{below}"


# -- whole -------------------------------------------------------------------------------------


def test_what_was_saved_comes_back(url: str, warned: list[str]) -> None:
    folder = CheckpointFolder(url)
    folder.prepare()
    assert folder.latest() is None
    assert folder.steps() == []
    save(folder, 10)
    save(folder, 20)
    # Another process finds the same as the writer.
    for reader in (folder, CheckpointFolder(url)):
        found = reader.latest()
        assert_whole(found, 20)
        assert found is not None
        assert found.where.endswith(f"below/it/{name(20)}")
        assert reader.steps() == [10, 20]
    assert warned == []


def test_many_may_look_at_one_folder_at_once(tmp_path: Path) -> None:
    def look(_: int) -> None:
        CheckpointFolder(str(tmp_path)).prepare()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(look, range(200))) == [None] * 200
    assert not list(tmp_path.iterdir())


def test_without_prepare_the_first_save_makes_the_folder(url: str) -> None:
    assert CheckpointFolder(url).latest() is None
    folder = CheckpointFolder(url)
    save(folder, 0)
    assert_whole(folder.latest(), 0)


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_last_few_are_kept(url: str, keep: int) -> None:
    folder = CheckpointFolder(url, keep=keep)
    for step in range(10, 80, 10):
        save(folder, step)
        assert folder.steps() == list(range(10, step + 1, 10))[-keep:]
        assert_whole(folder.latest(), step)


def test_a_step_is_saved_again_without_touching_what_is_there(url: str) -> None:
    folder = CheckpointFolder(url)
    save(folder, 10)
    for number in range(3):
        changed = {"model": {"weight": Array("U8", (1,), bytes([number]))}}
        folder.save(10, changed, {"again": number})
        found = folder.latest()
        assert found is not None
        assert plain(found.tensors) == plain(changed)
        assert len(folder._place.files(name(10))) == 2


def test_checkpoint_that_is_not_confirmed_is_not_there_and_removes_nothing(url: str) -> None:
    def refuse() -> None:
        raise CheckpointError("this worker is no member any more")

    mine = CheckpointFolder(url, keep=1)
    for step in (1, 2):
        save(mine, step)
    with pytest.raises(CheckpointError, match="no member"):
        save(CheckpointFolder(url, keep=1, confirm=refuse), 3)
    with pytest.raises(CheckpointError, match="no member"):
        save(CheckpointFolder(url, keep=1, confirm=refuse), 2)
    assert mine.steps() == [2]
    assert_whole(mine.latest(), 2)


def test_the_manifest_is_for_people_too(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    save(folder, 10)
    told = json.loads((tmp_path / name(10) / "manifest.json").read_text())
    assert told["kind"] == "edl-checkpoint"
    assert (told["format"], told["step"]) == (1, 10)
    assert told["extra"]["job"] == "mnist-7"
    sizes = {part["file"]: part["bytes"] for part in told["files"].values()}
    assert sizes == {
        file: (tmp_path / name(10) / file).stat().st_size for file in FILES if file in sizes
    }
    assert sorted(os.listdir(tmp_path / name(10))) == sorted(FILES)


# -- passed over -------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> tuple[CheckpointFolder, Path]:
    """Two good checkpoints; the newer one is about to be spoiled."""
    folder = CheckpointFolder(str(tmp_path / "ck"))
    save(folder, 10)
    save(folder, 20)
    return folder, tmp_path / "ck" / name(20)


def assert_passed_over(folder: CheckpointFolder, warned: list[str], *words: str) -> None:
    assert_whole(folder.latest(), 10)
    (told,) = warned
    assert told.startswith(f"checkpoint.passed_over {folder.where}/{name(20)}: ")
    for word in words:
        assert word in told, told


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str], file: str, part: float
) -> None:
    path = filled[1] / file
    os.truncate(path, int(path.stat().st_size * part))
    assert_passed_over(filled[0], warned, file)


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_anywhere_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str], file: str
) -> None:
    path = filled[1] / file
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        spoiled = bytearray(whole)
        spoiled[at] ^= 0x10
        path.write_bytes(spoiled)
        found = filled[0].latest()
        if found is not None and found.step == 20:
            # Only between the values of a manifest may a byte change unnoticed.
            assert file == "manifest.json"
            assert_whole(found, 20)
            assert warned == []
        else:
            assert_whole(found, 10)
            assert file in warned.pop()
            assert warned == []


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str], file: str
) -> None:
    (filled[1] / file).unlink()
    missing = "unfinished" if file == "manifest.json" else "is missing"
    assert_passed_over(filled[0], warned, file, missing)


def test_a_file_of_another_step_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str]
) -> None:
    folder, path = filled
    shutil.copy(path.parent / name(10) / "model.safetensors", path / "model.safetensors")
    assert_passed_over(folder, warned, "model.safetensors", "checksum")


def test_a_renamed_folder_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str]
) -> None:
    shutil.rmtree(filled[1])
    shutil.copytree(filled[1].parent / name(10), filled[1])
    assert_passed_over(filled[0], warned, "step 10", "renamed")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"kind": "edl"}', b"\0" * 9, b"[" * 50_000])
def test_a_foreign_manifest_is_noticed(
    filled: tuple[CheckpointFolder, Path], warned: list[str], content: bytes
) -> None:
    (filled[1] / "manifest.json").write_bytes(content)
    assert_passed_over(filled[0], warned, "manifest.json", "foreign")


def test_a_newer_format_is_left_to_a_newer_edl(
    filled: tuple[CheckpointFolder, Path], warned: list[str]
) -> None:
    path = filled[1] / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    assert_passed_over(filled[0], warned, "format is 2", "newer EDL")
    save(filled[0], 15)
    assert path.exists()


def test_what_is_named_almost_like_one_is_named(tmp_path: Path, warned: list[str]) -> None:
    folder = CheckpointFolder(str(tmp_path))
    save(folder, 10)
    (tmp_path / "step-99").mkdir()
    (tmp_path / name(50)).write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    assert_whole(folder.latest(), 10)
    assert sorted(line.split(": ")[0].split("/")[-1] for line in warned) == [name(50), "step-99"]
    assert all("foreign" in line for line in warned)
    for step in (20, 30, 40):
        save(folder, step)
    assert folder.steps() == [20, 30, 40]
    assert {"step-99", name(50), "notes.txt"} < set(os.listdir(tmp_path))


def test_when_all_are_spoiled_there_is_none(
    filled: tuple[CheckpointFolder, Path], warned: list[str]
) -> None:
    for step in (10, 20):
        os.truncate(filled[1].parent / name(step) / "state.safetensors", 3)
    assert filled[0].latest() is None
    assert len(warned) == 2


def test_what_cannot_be_read_is_not_taken_for_nothing(
    tmp_path: Path, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = CheckpointFolder(str(tmp_path))
    save(folder, 10)

    def fail(*_: Any) -> bytearray:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(folder._place, "read", fail)
    with pytest.raises(CheckpointError, match=r"could be read: Input/output error; check that"):
        folder.latest()
    assert len(warned) == 1


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    file=st.sampled_from(FILES),
    noise=st.binary(max_size=300),
    at=st.integers(0, 2000),
    keep_rest=st.booleans(),
)
def test_random_bytes_in_any_file_never_break_the_reader(
    tmp_path: Path, file: str, noise: bytes, at: int, keep_rest: bool
) -> None:
    root = tmp_path / "noise"
    shutil.rmtree(root, ignore_errors=True)
    folder = CheckpointFolder(str(root))
    save(folder, 10)
    save(folder, 20)
    path = root / name(20) / file
    content = path.read_bytes()
    at %= len(content)
    rest = content[at + len(noise) :] if keep_rest else b""
    path.write_bytes(content[:at] + noise + rest)
    found = folder.latest()
    assert found is not None
    assert_whole(found, found.step)
    assert found.step in (10, 20)


# -- removed -----------------------------------------------------------------------------------


def test_leftovers_go_once_something_newer_is_complete(tmp_path: Path, warned: list[str]) -> None:
    folder = CheckpointFolder(str(tmp_path))
    save(folder, 10)
    for step in (5, 12, 30):
        (tmp_path / name(step)).mkdir()
        (tmp_path / name(step) / ".model.safetensors.12ab.tmp").write_bytes(b"half")
    (tmp_path / name(20)).mkdir()
    (tmp_path / name(20) / ".state.safetensors.34cd.tmp").write_bytes(b"half")
    (tmp_path / name(20) / "model.safetensors").write_bytes(b"of a writer that crashed")
    assert_whole(CheckpointFolder(str(tmp_path)).latest(), 10)
    assert len(warned) == 3
    save(folder, 20)
    assert sorted(os.listdir(tmp_path)) == [name(10), name(20)]
    assert sorted(os.listdir(tmp_path / name(20))) == sorted(FILES)


def test_a_spoiled_one_does_not_count_among_those_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=2)
    save(folder, 10)
    save(folder, 20)
    spoiled = tmp_path / name(20) / "model.safetensors"
    spoiled.write_bytes(spoiled.read_bytes()[:-1] + b"?")
    assert_whole(folder.latest(), 10)
    save(folder, 30)
    assert (tmp_path / name(10)).exists()
    save(folder, 40)
    assert sorted(os.listdir(tmp_path)) == [name(30), name(40)]


def test_a_later_one_of_another_history_is_left_alone(tmp_path: Path, warned: list[str]) -> None:
    folder = CheckpointFolder(str(tmp_path), keep=1)
    save(folder, 100)
    save(folder, 10)
    save(folder, 20)
    assert folder.steps() == [20, 100]
    (told,) = warned
    assert f"{name(100)} is later than step 10" in told


def test_a_link_to_a_checkpoint_is_read_and_its_target_never_removed(tmp_path: Path) -> None:
    elsewhere, root = tmp_path / "elsewhere", tmp_path / "ck"
    save(CheckpointFolder(str(elsewhere)), 10)
    root.mkdir()
    (root / name(10)).symlink_to(elsewhere / name(10))
    folder = CheckpointFolder(str(root), keep=1)
    assert_whole(folder.latest(), 10)
    save(folder, 20)
    assert os.listdir(root) == [name(20)]
    assert_whole(CheckpointFolder(str(elsewhere)).latest(), 10)


# -- refused -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "stem", "extra", "words"),
    [
        (-1, "model", {}, "step -1"),
        (10**12, "model", {}, "expected 0 to"),
        (1, "../model", {}, "such as 'model'"),
        (1, "model", {"x": (1,)}, "come back changed"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    tmp_path: Path, step: int, stem: str, extra: dict[str, Any], words: str
) -> None:
    folder = CheckpointFolder(str(tmp_path / "ck"))
    with pytest.raises(UsageError, match=words):
        folder.save(step, {stem: {}}, extra)
    assert not (tmp_path / "ck").exists()


def test_a_folder_needs_a_place_and_room_for_one() -> None:
    with pytest.raises(UsageError, match="needs a path"):
        CheckpointFolder("")
    with pytest.raises(UsageError, match="keep=0"):
        CheckpointFolder("x", keep=0)
