"""A job's checkpoints: who writes, and what another set of workers finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from edl.config import Settings
from edl.errors import CheckpointError, UsageError
from edl.protocol.progress import Progress, Round
from edl.protocol.shards import ShardLedger, ShardPart
from edl.protocol.topology import draw_first
from edl.runtime.framework import Framework
from edl.runtime.keeper import Keeper, keeper_of
from edl.runtime.standing import read_noted
from edl.runtime.tensorfile import Array, Tensors
from edl.types import Address, Gpu, Member, WorkerId


class Model:
    """One tensor of four bytes stands for a training."""

    def __init__(self) -> None:
        self.value = b"none"

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        return {"model": {"value": Array("U8", (4,), self.value)}}, {"said": "hello"}

    def install(self, tensors: Tensors, skeleton: dict[str, Any]) -> None:
        assert skeleton == {"said": "hello"}
        self.value = bytes(tensors["model"]["value"].data)


def progress_of(*names: str) -> Progress:
    members = [
        Member(
            worker=WorkerId(name),
            address=Address("127.0.0.1", 1),
            host="h",
            slot=Gpu("h", i),
            pid=1,
        )
        for i, name in enumerate(names)
    ]
    generation = draw_first(members, number=1, leader=WorkerId(names[0]), token=1)
    ledger = ShardLedger.opened([5, 7, 9], batch=4, seed=1, epochs=1)
    return Progress(me=WorkerId(names[0]), generation=generation, ledger=ledger)


def keeper(folder: Path, model: Model, *, resume: bool, saved: str = "") -> Keeper:
    environment = {
        "EDL_CHECKPOINT": str(folder),
        "EDL_RESUME": "1" if resume else "",
        "EDL_RESUME_SAVED": saved,
    }
    settings = Settings(checkpoint_steps=2)
    made = keeper_of(cast("Framework", model), settings, environment)
    assert made is not None
    return made


def step(progress: Progress) -> int:
    """Everybody uses what it is given; returns how many samples that was."""
    workers = progress.generation.workers()
    samples = {}
    for worker in workers:
        part = progress.ledger.slice_of(worker, workers)
        samples[worker] = part.count if isinstance(part, ShardPart) else 0
    progress.commit(Round(go=True, closed=False, ended=False, samples=samples))
    return sum(samples.values())


def train(progress: Progress, kept: Keeper, steps: int = 3, *, rank: int = 0) -> None:
    kept.begin(progress)
    for _ in range(steps):
        step(progress)
        kept.boundary(progress, rank=rank)
    kept.end()


def write_some(folder: Path) -> None:
    train(progress_of("w0"), keeper(folder, Model(), resume=False))


def test_no_folder_no_keeper() -> None:
    assert keeper_of(cast("Framework", Model()), Settings(), {}) is None


def test_others_go_on_with_what_was_in_hand(tmp_path: Path) -> None:
    model, first = Model(), progress_of("w0", "w1")
    writing = keeper(tmp_path, model, resume=False)
    writing.begin(first)
    model.value = b"done"
    for _ in range(3):
        step(first)
        writing.boundary(first, rank=0)
    writing.end()

    model, second = Model(), progress_of("w5")
    keeper(tmp_path, model, resume=True).begin(second)
    assert second.step == 2
    assert model.value == b"done"
    used = 2 * 4
    while not second.ledger.epoch_over():
        used += step(second)
    assert used == 5 + 7 + 9


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    progress = progress_of("w0", "w1")
    train(progress, keeper(tmp_path, Model(), resume=False), 4, rank=1)
    assert not list(tmp_path.glob("step-*"))


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    write_some(tmp_path)
    with pytest.raises(UsageError, match="of step 2"):
        keeper(tmp_path, Model(), resume=False).begin(progress_of("w0"))


def test_a_restart_does_not_begin_anew_where_a_checkpoint_was_saved(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    write_some(folder)
    folder.rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"though step 2 was saved there; bring it back"):
        keeper(folder, Model(), resume=True, saved="2").begin(progress_of("w0"))
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    again = progress_of("w0")
    keeper(folder, Model(), resume=True, saved="2").begin(again)
    assert again.step == 2


def test_a_restart_before_the_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    progress = progress_of("w0")
    keeper(tmp_path / "new", Model(), resume=True).begin(progress)
    assert progress.step == 0


def test_checkpoints_that_are_all_spoiled_are_no_reason_to_begin_anew(tmp_path: Path) -> None:
    write_some(tmp_path)
    for path in tmp_path.glob("step-*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"none of the 1 checkpoints in .* can be used"):
        keeper(tmp_path, Model(), resume=True).begin(progress_of("w0"))


def test_it_is_told_how_many_newer_ones_were_passed_over(tmp_path: Path) -> None:
    folder, job = tmp_path / "kept", tmp_path / "job"
    job.mkdir()
    write_some(folder)
    train(progress_of("w0"), keeper(folder, Model(), resume=True))
    _, newest = sorted(folder.glob("step-*"))
    (newest / "model.safetensors").write_bytes(b"")
    environment = {
        "EDL_CHECKPOINT": str(folder),
        "EDL_RESUME": "1",
        "EDL_JOB_DIR": str(job),
    }
    made = keeper_of(cast("Framework", Model()), Settings(checkpoint_steps=2), environment)
    assert made is not None
    made.begin(progress_of("w0"))
    noted = read_noted(job)
    assert noted is not None
    assert (noted.resumed, noted.passed_over) == (2, 1)
    ((path, why),) = noted.passed_over_why
    assert path == str(newest)
    assert "model.safetensors has 0 bytes instead of" in why


def test_a_writer_does_not_recommend_what_another_worker_found_spoiled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, job = tmp_path / "kept", tmp_path / "job"
    job.mkdir()
    write_some(folder)
    train(progress_of("w0"), keeper(folder, Model(), resume=True))
    _, newest = sorted(folder.glob("step-*"))
    content = (newest / "model.safetensors").read_bytes()
    (newest / "model.safetensors").write_bytes(content[:-1] + b"?")  # the size is right
    environment = {
        "EDL_CHECKPOINT": str(folder),
        "EDL_RESUME": "1",
        "EDL_JOB_DIR": str(job),
    }
    settings = Settings(checkpoint_steps=1)
    reading = keeper_of(cast("Framework", Model()), settings, environment)
    writing = keeper_of(cast("Framework", Model()), settings, environment)
    assert reading is not None
    assert writing is not None
    progress = progress_of("w0")
    reading.begin(progress)
    step(progress)
    writing.boundary(progress, rank=0)
    writing.end()
    assert [path.name[-2:] for path in sorted(folder.glob("step-*"))] == ["02", "03", "04"]
    assert "checkpoint.later" not in caplog.text
