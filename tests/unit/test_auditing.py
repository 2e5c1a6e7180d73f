"""The verdict on a job's data, from logs that were written by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.protocol.permutation import Permutation
from edl.runtime.audit import AUDIT
from edl.runtime.auditing import Audit, audit_folder
from edl.runtime.auditlog import Kind, header, pack

MAP = {
    "kind": "map",
    "samples": 10,
    "batch": 4,
    "seed": 0,
    "shuffle": False,
    "drop_last": False,
    "usable": 10,
}
SHARDS = {"kind": "shards", "samples": 7, "batch": 3, "seed": 0, "table": "t"}


def place(step: int, *, generation: int = 1, run: int = 0, epoch: int = 0, used: int = 0) -> bytes:
    return pack(Kind.PLACE, [run, generation, step, epoch, used])


def steps(*counts: int) -> bytes:
    return b"".join(pack(Kind.RANGE, [count]) for count in counts)


def over(left: int = 0) -> bytes:
    return pack(Kind.EPOCH, [left])


def pieces(*of: tuple[int, int, int]) -> bytes:
    return pack(Kind.PIECES, [len(of), *(n for piece in of for n in piece)])


EPOCH = place(0) + steps(4, 4, 2) + over()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / AUDIT).mkdir()
    return tmp_path


def write(folder: Path, worker: str, content: bytes, data: dict[str, object] = MAP) -> None:
    (folder / AUDIT / f"{worker}.log").write_bytes(
        header({"worker": worker, "data": data}) + content
    )


def states(audit: Audit) -> list[tuple[int, str, int, int, int]]:
    return [(e.epoch, e.state, e.used, e.twice, e.never) for e in audit.epochs]


def test_every_sample_once(folder: Path) -> None:
    write(folder, "w0", EPOCH + place(3, epoch=1) + steps(4, 4))
    write(folder, "w1", EPOCH + place(3, epoch=1) + steps(4))
    found = audit_folder(folder)
    assert found.exact
    assert states(found) == [(0, "complete", 10, 0, 0), (1, "running", 8, 0, 0)]
    assert (found.steps, found.logs) == (5, ("w0", "w1"))


def test_a_step_counts_in_the_latest_generation_that_committed_it(folder: Path) -> None:
    # w0 committed step 1 and died; the others did it again, one sample less at a time.
    write(folder, "w0", place(0) + steps(4, 4))
    write(folder, "w1", place(0) + steps(4) + place(1, generation=2, used=4) + steps(4, 2) + over())
    assert audit_folder(folder).exact


def test_what_an_older_generation_did_beyond_counts_for_nobody(folder: Path) -> None:
    write(folder, "w0", place(0) + steps(4, 4, 2) + over())
    again = place(1, generation=2, used=4) + steps(4)
    write(folder, "w1", place(0) + steps(4) + again + place(2, generation=2, epoch=1) + steps(4))
    found = audit_folder(folder)
    assert found.fault == "sample 8 of epoch 1 (position 8) was never used"


def test_a_restart_from_a_checkpoint_undoes_what_came_after_it(folder: Path) -> None:
    write(folder, "w0", EPOCH + place(2, run=1, used=8) + steps(2) + over())
    assert audit_folder(folder).exact


def test_a_sample_that_was_used_twice_is_named(folder: Path) -> None:
    shuffled = {**MAP, "shuffle": True}
    wrong = place(0) + steps(4) + place(1, used=3) + steps(4, 3) + over()
    write(folder, "w0", wrong, shuffled)
    index = Permutation(10, seed=0, epoch=0)[3]
    found = audit_folder(folder)
    assert found.fault == (
        f"sample {index} of epoch 1 (position 3) was used twice, again in step 1"
    )
    assert states(found) == [(0, "complete", 11, 1, 0)]


def test_a_sample_that_was_never_used_is_named(folder: Path) -> None:
    write(folder, "w0", place(0) + steps(4) + place(1, used=5) + steps(4, 1) + over())
    found = audit_folder(folder)
    assert found.fault == "sample 4 of epoch 1 (position 4) was never used"
    assert states(found) == [(0, "complete", 9, 0, 1)]


def test_logs_that_disagree_are_told(folder: Path) -> None:
    write(folder, "w0", EPOCH)
    write(folder, "w1", place(0) + steps(4, 3, 3) + over())
    fault = audit_folder(folder).fault
    assert fault == "the logs of w0 and w1 tell different samples of step 1 in generation 1"


def test_a_step_that_no_log_tells_of_is_told(folder: Path) -> None:
    write(folder, "w0", place(0) + steps(4) + place(2, used=8) + steps(2) + over())
    assert audit_folder(folder).fault == "no log tells of step 1"


def test_an_epoch_that_the_script_left_is_no_fault(folder: Path) -> None:
    write(folder, "w0", place(0) + steps(4) + over(left=6) + place(1, epoch=1) + steps(4, 4, 2))
    found = audit_folder(folder)
    assert found.exact
    assert states(found) == [(0, "left early", 4, 0, 0), (1, "running", 10, 0, 0)]
    assert [epoch.unused for epoch in found.epochs] == [6, 0]
    assert found.unused == 6


def test_a_job_that_went_on_from_a_checkpoint_begins_in_the_middle(folder: Path) -> None:
    write(folder, "w0", place(7, epoch=2, used=8) + steps(2) + over())
    found = audit_folder(folder)
    assert found.exact
    assert (found.epochs[0].earlier, found.epochs[0].used) == (8, 2)


def test_a_torn_end_is_noted_and_costs_one_entry(folder: Path) -> None:
    write(folder, "w0", place(0) + steps(4) + b"\x03\x80")
    write(folder, "w1", EPOCH)
    found = audit_folder(folder)
    assert found.exact
    assert len(found.torn) == 1
    assert "w0.log: the file ends inside an entry" in found.torn[0]


def test_a_job_without_a_log_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--no-audit"):
        audit_folder(tmp_path)


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (((0, 3, 1), (1, 1, 2)), ""),
        (((0, 2, 1), (1, 1, 2)), "sample 102 of a.bin (4 from 100 on) was used twice"),
        (((1, 1, 2), (1, 0, 1)), "sample 0 of b.bin (3 from 0 on) was used twice"),
        (((1, 1, 2),), "sample 103 of a.bin (4 from 100 on) was never used"),
    ],
)
def test_partitions_are_judged_by_their_pieces(
    folder: Path, second: tuple[tuple[int, int, int], ...], fault: str
) -> None:
    table = [["a.bin", 100, 4], ["b.bin", 0, 3]]
    with gzip.open(folder / AUDIT / "t.json.gz", "wt", encoding="utf-8") as out:
        json.dump(table, out)
    content = place(0) + pieces((0, 0, 3), (1, 0, 1)) + pieces(*second) + over()
    write(folder, "w0", content, SHARDS)
    found = audit_folder(folder)
    assert found.exact is (not fault)
    assert found.fault.startswith(fault)


def test_logs_that_tell_the_same_are_read_once_and_what_differs_is_seen(folder: Path) -> None:
    data = {**MAP, "samples": 400, "usable": 400}
    whole = place(0) + steps(*[4] * 50) + place(50, generation=2, used=200) + steps(*[4] * 50)
    write(folder, "w0", whole + over(), data)
    write(folder, "w1", whole[:90], data)
    write(folder, "w2", whole[:190], data)
    write(folder, "w3", place(50, generation=2, used=200) + steps(*[4] * 49), data)
    found = audit_folder(folder)
    assert found.exact
    assert (found.steps, states(found)) == (100, [(0, "complete", 400, 0, 0)])
    write(folder, "w4", place(0) + steps(*[4] * 49, 3), data)
    assert "tell different samples of step 49" in audit_folder(folder).fault


def test_a_torn_log_tells_what_came_before(folder: Path) -> None:
    data = {**MAP, "samples": 400, "usable": 400}
    whole = place(0) + steps(*[4] * 100) + over()
    write(folder, "w0", whole[:151], data)
    write(folder, "w1", whole, data)
    found = audit_folder(folder)
    assert found.exact
    assert (found.steps, len(found.torn)) == (100, 1)


def test_steps_that_no_log_tells_of_are_missed(folder: Path) -> None:
    write(folder, "w0", EPOCH)
    assert audit_folder(folder, steps=3).exact
    found = audit_folder(folder, steps=5)
    assert found.fault == "no log tells of step 3, but the job did 5 steps"


def test_an_epoch_that_the_job_ended_in_has_unused_samples_and_a_running_one_has_none(
    folder: Path,
) -> None:
    write(folder, "w0", EPOCH + place(3, epoch=1) + steps(4))
    assert audit_folder(folder).unused == 0
    ended = audit_folder(folder, ended=True)
    assert [(epoch.state, epoch.unused) for epoch in ended.epochs] == [
        ("complete", 0),
        ("unfinished", 6),
    ]


def test_samples_used_before_the_log_begins_are_not_unused(folder: Path) -> None:
    write(folder, "w0", place(1, used=4) + steps(4))
    assert audit_folder(folder, ended=True).unused == 2
