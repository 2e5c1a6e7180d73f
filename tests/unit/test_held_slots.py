"""Which slots are in use on this machine, as `edl ps` shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl.cli.main import main
from edl.launch import slot_locks
from edl.launch.jobs import claim
from edl.launch.slot_locks import HeldSlot, Holder, SlotLocks, held_slots
from tests.unit.test_cli_clean import INFO


def test_locked_slots_are_listed_with_their_holder(tmp_path: Path) -> None:
    locks = SlotLocks(tmp_path, job="mnist")
    for name in ("cpu-1", "cpu-10", "cpu-2"):
        assert not locks.acquire(name)
    assert not locks.acquire("gpu-0", shared=True)
    user = json.loads((tmp_path / "cpu-1.lock").read_text())["user"]
    holder = Holder(job="mnist", user=user, pid=os.getpid())
    assert held_slots(tmp_path) == [
        HeldSlot(slot=name, holder=holder) for name in ("cpu-1", "cpu-2", "cpu-10", "gpu-0")
    ]
    locks.release("cpu-2")
    assert [held.slot for held in held_slots(tmp_path)] == ["cpu-1", "cpu-10", "gpu-0"]
    locks.close()
    assert held_slots(tmp_path) == []
    assert held_slots(tmp_path / "nowhere") == []


def test_a_lock_of_a_process_that_was_killed_counts_no_more(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from edl.launch.slot_locks import SlotLocks; "
        f"locks = SlotLocks(Path({str(tmp_path)!r}), job='mnist'); locks.acquire('cpu-0'); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        (held,) = held_slots(tmp_path)
        assert (held.slot, held.holder.job, held.holder.pid) == ("cpu-0", "mnist", child.pid)
        child.kill()
    assert held_slots(tmp_path) == []


def test_files_that_cannot_be_trusted_are_passed_over(tmp_path: Path) -> None:
    locks = SlotLocks(tmp_path, job="mnist")
    locks.acquire("cpu-0")
    os.mkfifo(tmp_path / "cpu-1.lock")
    (tmp_path / "cpu-2.lock").symlink_to(tmp_path / "cpu-0.lock")
    assert [held.slot for held in held_slots(tmp_path)] == ["cpu-0"]
    (tmp_path / "cpu-0.lock").write_text('{"job": "a\\u001b[2J", "user": 3, "pid": "x"}')
    (held,) = held_slots(tmp_path)
    assert held.holder == Holder(job="?", user="?", pid=0)
    locks.close()


def test_looking_does_not_keep_others_from_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SlotLocks(tmp_path, job="before").acquire("gpu-0")
    (tmp_path / "gpu-0.lock").touch()

    def refuse(*_: object) -> None:
        raise AssertionError("a lock for a look could refuse a job its GPU")

    monkeypatch.setattr("fcntl.flock", refuse)
    held_slots(tmp_path)


def test_ps_names_slots_of_starting_jobs_and_of_jobs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDL_SLOTS_DIR", str(tmp_path / "slots"))
    job = claim("mnist", stem="train")
    fields = {**{name: getattr(INFO, name) for name in INFO.__slots__}, "name": "mnist"}
    job.folder.write_info(type(INFO)(**{**fields, "pid": os.getpid()}))
    mine = SlotLocks(tmp_path / "slots", job="mnist")
    other = SlotLocks(tmp_path / "slots", job="other")
    for index in (0, 1):
        assert not mine.acquire(f"cpu-{index}")
    for index in (2, 3, 5):
        assert not other.acquire(f"cpu-{index}")
    assert main(["ps", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["slots"] == ["localhost:0", "localhost:1"]
    assert main(["ps"]) == 0
    told = capsys.readouterr().out
    assert "localhost:0-1" in told
    assert "also in use: localhost:2-3,5 by job other of user " in told
    for each in (mine, other):
        each.close()
    job.release()


def test_lock_on_a_file_of_another_device_with_the_same_inode_is_not_a_held_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpu-0.lock"
    file.touch()
    inode = file.stat().st_ino
    text = (
        f"1: FLOCK  ADVISORY  WRITE 4711 ff:7f:{inode} 0 EOF\n"
        f"1: -> FLOCK  ADVISORY  WRITE {inode} ff:7f:{inode} 0 EOF\n"
    )
    (tmp_path / "locks").write_text(text)
    monkeypatch.setattr(slot_locks, "LOCKS", tmp_path / "locks")
    assert held_slots(tmp_path) == []
