"""What is told of a job whose store is away: its launcher and its leader still answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.servers import Etcd, until
from tests.integration.conftest import Start

# The client of etcd gives a call 5 s; an answer that needed one would take at least as long.
STORE_CALL_S = 5.0


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as server:
        yield server


def edl(*arguments: str) -> tuple[str, str, float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "edl.cli.main", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout, done.stderr, time.monotonic() - began


def test_status_answers_at_once_while_the_store_is_frozen(
    start: Start, log: Path, etcd: Etcd
) -> None:
    job = start("journal.py", "--log", str(log), "--epochs", "100000", "--pause", "0.01",
                name="et", store=etcd.url, gpus="none")  # fmt: skip
    until(lambda: job.status().step > 0, "the job to train")
    assert job.store_silence() is None
    assert json.loads(edl("status", "et", "--json")[0])["store_silent_s"] is None

    etcd.freeze()
    until(lambda: job.store_silence() is not None, "the launcher to notice")
    began = time.monotonic()
    first = job.status()
    assert time.monotonic() - began < STORE_CALL_S / 2
    assert (first.state, len(first.workers)) == ("training", 2)
    until(lambda: job.status().step > first.step, "training to go on")

    out, _, took_s = edl("status", "et")
    assert took_s < STORE_CALL_S
    assert f"store {etcd.url} has not answered for" in out
    assert "training continues; membership cannot change until it is back" in out
    assert json.loads(edl("status", "et", "--json")[0])["store_silent_s"] >= 3.0
    out, err, took_s = edl("ps", "--json")
    assert took_s < STORE_CALL_S
    (row,) = json.loads(out)
    assert (row["state"], len(row["slots"])) == ("training", 2)
    assert "training continues" in err

    # Without a leader it cannot go on, and says so as quickly.
    leader = next(worker for worker in job.status().workers if worker.leader)
    os.kill(leader.pid, signal.SIGKILL)
    until(lambda: job.status().state == "recovering", "the leader's death to show")
    out, _, _ = edl("status", "et")
    assert "the job cannot elect a leader or change its workers until it is back" in out

    etcd.thaw()
    until(lambda: job.store_silence() is None, "the store to be back")
    until(lambda: job.status().state == "training", "the job to recover", 60.0)
