"""Several jobs on one machine: slots are locked across jobs and users, and freed at every end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import Refused
from tests.integration.conftest import Start

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
ARGUMENTS = ("--epochs", "100000", "--pause", "0.01")


def slots(job: Job) -> list[str]:
    """Of its workers, once it trains: before that some may not have registered."""
    until(lambda: job.status().step > 0)
    return sorted(worker.slot for worker in job.status().workers)


def until(done: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def locked(folder: Path) -> set[str]:
    """The slots whose files somebody has locked, by the kernel's own list."""
    held = {line.split()[5].split(":")[2] for line in Path("/proc/locks").read_text().splitlines()
            if "FLOCK" in line and "->" not in line}  # fmt: skip
    return {path.stem for path in folder.glob("*.lock") if str(path.stat().st_ino) in held}


def test_two_jobs_have_different_slots(start: Start, log: Path, tmp_path: Path) -> None:
    first = start("journal.py", "--log", str(log), *ARGUMENTS, name="a", gpus="none")
    second = start("journal.py", "--log", str(log), *ARGUMENTS, name="b", gpus="none")
    assert (slots(first), slots(second)) == (
        ["localhost:0", "localhost:1"],
        ["localhost:2", "localhost:3"],
    )
    listed = subprocess.run(
        [sys.executable, "-m", "edl.cli.main", "ps", "--json"],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert {row["job"]: sorted(row["slots"]) for row in json.loads(listed)} == {
        "a": slots(first),
        "b": slots(second),
    }
    first.scale_in(["localhost:0"])
    assert locked(tmp_path / "slots") == {"cpu-1", "cpu-2", "cpu-3"}
    record = second.scale_out(1)
    assert record is not None
    assert slots(second) == ["localhost:0", "localhost:2", "localhost:3"]


def test_gpus_of_another_job_are_refused_with_their_holder(start: Start, log: Path) -> None:
    first = start("journal.py", "--log", str(log), *ARGUMENTS, workers=2, name="a", gpus="0,1,2")
    pid = first._files().info().pid
    holder = rf"localhost:0 is held by job a of user \S+ \(process {pid}\)"
    with pytest.raises(Refused, match=rf"2 free GPUs, and 1 of 3 are free: {holder}.*--share-gpus"):
        start("journal.py", "--log", str(log), *ARGUMENTS, workers=2, name="b", gpus="0,1,2")
    assert not (first.folder.parent / "b").exists()
    second = start("journal.py", "--log", str(log), *ARGUMENTS, workers=1, name="b", gpus="0,1,2")
    assert slots(second) == ["localhost:2"]
    with pytest.raises(Refused, match=r"localhost:2 is held by job b"):
        first.scale_out(["localhost:2"])
    second.stop()
    assert first.scale_out(["localhost:2"]) is not None


def test_a_job_that_insists_shares_gpus(start: Start, log: Path) -> None:
    start("journal.py", "--log", str(log), *ARGUMENTS, workers=2, name="a", gpus="0,1")
    second = start(
        "journal.py", "--log", str(log), *ARGUMENTS, name="b", gpus="0,1", share_gpus=True
    )
    assert slots(second) == ["localhost:0", "localhost:1"]


def test_slots_are_free_when_the_launcher_was_killed(
    start: Start, log: Path, tmp_path: Path
) -> None:
    for options in ({}, {"warm": 1}):
        job = start("journal.py", "--log", str(log), *ARGUMENTS, name="a", gpus="0,1", **options)
        assert slots(job) == ["localhost:0", "localhost:1"]
        workers = [worker.pid for worker in job.status().workers]
        assert locked(tmp_path / "slots") == {"gpu-0", "gpu-1"}
        os.kill(job._files().info().pid, signal.SIGKILL)
        until(lambda: not locked(tmp_path / "slots"))
        until(partial(ended, workers))


def ended(pids: list[int]) -> bool:
    return not any(running(pid) for pid in pids)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_slot_is_free_when_its_worker_was_killed(start: Start, log: Path, tmp_path: Path) -> None:
    job = start("journal.py", "--log", str(log), *ARGUMENTS, workers=2, name="a", gpus="0,1")
    assert slots(job) == ["localhost:0", "localhost:1"]
    victim = next(worker for worker in job.status().workers if worker.slot == "localhost:1")
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: locked(tmp_path / "slots") == {"gpu-0"})


@needs_root
def test_slots_are_locked_against_jobs_of_other_users(
    start: Start, log: Path, tmp_path: Path
) -> None:
    job = start("journal.py", "--log", str(log), *ARGUMENTS, workers=1, name="a", gpus="0,1")
    assert slots(job) == ["localhost:0"]
    # Every folder on the way to the locks is closed to others, as pytest makes them.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    script = textwrap.dedent("""
        import json, os, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from edl.launch.slot_locks import SlotLocks
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        locks = SlotLocks(Path(sys.argv[1]), job="other")
        said = [locks.problem, locks.acquire("gpu-0"), locks.acquire("gpu-1")]
        locks.release("gpu-1")
        said.append(locks.acquire("gpu-1"))
        print(json.dumps(said), flush=True)
        sys.stdin.read()
    """)
    source = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "slots"), source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin
        assert other.stdout
        problem, first, second, again = json.loads(other.stdout.readline())
        assert problem == ""
        assert re.search(r"job a of user \S+ \(process \d+\)", first)
        assert (second, again) == ("", "")
        with pytest.raises(Refused, match=r"localhost:1 is held by job other of user nobody"):
            job.scale_out(["localhost:1"])
        other.stdin.close()
    assert job.scale_out(["localhost:1"]) is not None
