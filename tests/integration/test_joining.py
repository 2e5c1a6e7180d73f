"""A process that no launcher of the job started joins it through the store, from elsewhere."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError, UsageError
from edl.runtime.identity import identify
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import read_journal
from tests.integration.networks import Namespace, OpenEtcd, outside

PATIENCE_S = 60.0


def endless(log: Path, end: Path) -> tuple[str, ...]:
    pace = ("--pause", "0.05", "--pause-until", str(end))
    return ("--log", str(log), "--epochs", "1000", "--until", str(end), *pace)


def store_of(job: Job) -> str:
    return str(json.loads((job.folder / "job.json").read_text())["store"])


def members(job: Job) -> dict[str, int]:
    return {worker.id: worker.rank for worker in job.status().workers if worker.rank >= 0}


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed; it must have gone in good order."""
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, out
    return out


def test_a_process_in_another_network_joins_trains_and_leaves(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace, open_etcd: OpenEtcd
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, name="wide", store=open_etcd.url, host=elsewhere.here)
    until(lambda: job.status().step > 3, "the job to train")
    far = subprocess.Popen(
        elsewhere.command(sys.executable, str(SCRIPTS / "journal.py"), *arguments),
        env=outside(job, open_etcd.url, elsewhere.there, EDL_WORKER="far", EDL_SLOT="node2:0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: far.poll() is not None or "far" in members(job), "it to join", PATIENCE_S)
        assert far.poll() is None, ended(far)
        status = job.status()
        (worker,) = [each for each in status.workers if each.id == "far"]
        assert worker.slot == "node2:0"
        assert worker.address.host == elsewhere.there
        step = status.step
        until(lambda: job.status().step > step + 5, "steps with it")
        far.send_signal(signal.SIGTERM)
        ended(far)
    finally:
        far.kill()
    assert set(members(job)) == {"w0", "w1"}
    end.touch()
    result = job.wait(120)
    assert (result.state, result.failures) == ("finished", ())
    assert result.adjustments[0].joined == ("far",)
    journal = read_journal(log)
    assert 3 in journal.sizes()
    journal.check_exactly_once(samples=1003, epochs=set(range(max(journal.used()) + 1)))
    journal.check_replicas()


def refused(process: subprocess.CompletedProcess[str]) -> str:
    """What a process printed that could not join: one line, without a traceback."""
    assert process.returncode == 1, process.stdout + process.stderr
    assert "Traceback" not in process.stderr
    return process.stderr


def test_a_joiner_on_the_loopback_of_another_machine_is_refused_with_what_to_set(
    start: Start, log: Path, tmp_path: Path, elsewhere: Namespace
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, workers=1, name="wide", host=elsewhere.here)
    until(lambda: job.status().step > 0, "the job to train")
    environment = outside(job, store_of(job), elsewhere.there)
    del environment["EDL_HOST"]
    command = elsewhere.command(sys.executable, str(SCRIPTS / "journal.py"), *arguments)
    for forgotten in ({}, {"EDL_HOST": "127.0.0.1"}, {"EDL_HOST": "::1"}):
        ended = subprocess.run(
            command, env={**environment, **forgotten}, capture_output=True, text=True, timeout=90
        )
        told = refused(ended)
        assert f"the leader of job wide listens at {elsewhere.here}" in told
        assert f"set EDL_HOST={elsewhere.there}" in told
    assert set(members(job)) == {"w0"}
    end.touch()
    result = job.wait(120)
    assert (result.state, result.adjustments) == ("finished", ())


@pytest.mark.parametrize("run", ["", "first"])
def test_a_joiner_with_a_wrong_secret_prints_one_line_at_once(
    start: Start, log: Path, tmp_path: Path, run: str
) -> None:
    end, secret = tmp_path / "end", tmp_path / "secret"
    job = start("journal.py", *endless(log, end), workers=1, name="known")
    secret.write_text("00" * 32)
    environment = outside(job, store_of(job), "127.0.0.1", EDL_SECRET_FILE=str(secret))
    environment["EDL_RUN"] = run
    command = [sys.executable, str(SCRIPTS / "journal.py"), *endless(log, end)]
    # It would ask for EDL_REQUEST_TIMEOUT_S, 60 s.
    told = refused(
        subprocess.run(command, env=environment, capture_output=True, text=True, timeout=40)
    )
    assert "edl: store" in told
    assert "refused the connection" in told
    assert "the two sides hold different secrets" in told
    assert "unreachable" not in told
    end.touch()
    assert job.wait(120).state == "finished"


def test_a_process_beside_the_job_joins_by_the_launchers_own_store(
    start: Start, log: Path, tmp_path: Path
) -> None:
    end = tmp_path / "end"
    arguments = endless(log, end)
    job = start("journal.py", *arguments, workers=1, name="near")
    until(lambda: job.status().step > 0, "the job to train")
    beside = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "journal.py"), *arguments],
        env=outside(job, store_of(job), "127.0.0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: beside.poll() is not None or len(members(job)) == 2, "it", PATIENCE_S)
        assert beside.poll() is None, ended(beside)
        end.touch()
        ended(beside)
    finally:
        beside.kill()
    assert job.wait(120).state == "finished"


def test_a_joiner_says_what_happens_to_it(start: Start, log: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), workers=1, name="talked")
    environment = outside(job, store_of(job), "127.0.0.1")
    beside = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "journal.py"), *endless(log, end)],
        env={**environment, "EDL_WORKER": "guest"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: beside.poll() is not None or len(members(job)) == 2, "it", PATIENCE_S)
        assert beside.poll() is None, ended(beside)
        job.scale_in(["guest"])
        told = [line for line in ended(beside).splitlines() if line.startswith("edl: ")]
    finally:
        beside.kill()
    assert told[0] == "edl: job talked accepted worker guest; it joins at a step boundary"
    assert re.fullmatch(r"edl: worker guest joined job talked at step \d+; 2 workers", told[1])
    assert re.fullmatch(r"edl: worker guest left job talked after step \d+: .+", told[2])
    end.touch()
    assert job.wait(120).state == "finished"
    assert not any("joined job" in line for line in job.logs())


def test_what_is_missing_or_unknown_is_told(start: Start, log: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), workers=1, name="known")
    environment = outside(job, store_of(job), "127.0.0.1")
    with pytest.raises(UsageError, match="EDL_JOB is set but EDL_STORE, EDL_SECRET_FILE is not"):
        identify({"EDL_JOB": "known", "EDL_JOIN": "1"})
    with pytest.raises(EdlError, match=r"secret|job"):
        identify({**environment, "EDL_JOB": "unknown"})
    secret = tmp_path / "secret"
    secret.write_text("00ff\n")
    with pytest.raises(EdlError):
        identify({**environment, "EDL_SECRET_FILE": str(secret)})
    end.touch()
    assert job.wait(120).state == "finished"
