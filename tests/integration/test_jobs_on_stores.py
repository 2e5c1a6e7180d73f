"""Whole jobs whose keys lie in etcd or in ZooKeeper."""

from __future__ import annotations

import base64
import json
import os
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edl.client import Job, run
from edl.errors import UsageError
from edl.launch.access import Access
from edl.store.base import open_store
from edl.types import Address
from tests.contract.servers import Etcd, Server, ZooKeeper, free_port, until
from tests.integration.conftest import SCRIPTS, Start
from tests.integration.judge import read_journal

SERVERS: dict[str, type[Etcd] | type[ZooKeeper]] = {"etcd": Etcd, "zookeeper": ZooKeeper}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with SERVERS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with Etcd(tmp_path / "etcd") as made:
        yield made


def endless(log: Path, end: Path, pause_s: float = 0.05) -> tuple[str, ...]:
    pace = ("--pause", str(pause_s), "--pause-until", str(end))
    return ("--log", str(log), "--epochs", "1000", "--until", str(end), *pace)


def names_in(etcd: Etcd) -> list[str]:
    """Every key that etcd holds."""
    everything = base64.b64encode(b"\0").decode()
    body = json.dumps({"key": everything, "range_end": everything, "keys_only": True}).encode()
    request = urllib.request.Request(f"http://{etcd.address}/v3/kv/range", data=body)
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = json.load(answer).get("kvs", [])
    return [base64.b64decode(pair["key"]).decode() for pair in found]


def test_a_job_is_scaled_through_an_outage_of_its_store(
    start: Start, log: Path, tmp_path: Path, server: Server
) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), name="stored", store=server.url)
    joined = job.scale_out(1)
    assert joined is not None
    assert joined.size == 3
    before = job.status()
    server.kill()
    step = before.step

    def trains_on() -> bool:
        # The store cannot be asked for the leader now; what the workers wrote tells.
        return max(read_journal(log).counted()) > step + 5

    until(trains_on, "steps without a store")
    server.start()
    leader = next(worker for worker in before.workers if worker.leader)
    left = job.scale_in([str(leader.id)])
    assert left is not None
    assert left.left == (leader.id,)
    after = job.status()
    assert [worker.id for worker in after.workers if worker.leader] != [leader.id]
    assert after.generation == before.generation + 1
    end.touch()
    result = job.wait(120)
    assert (result.state, result.failures) == ("finished", ())
    journal = read_journal(log)
    epochs = set(range(max(journal.used()) + 1))
    journal.check_exactly_once(samples=1003, epochs=epochs)
    journal.check_replicas()
    with_it = open_store(server.url, job="stored", secret=b"")
    assert with_it.get("current").value is None
    with_it.close()


def test_a_used_name_meets_no_old_keys_and_leaves_none(start: Start, log: Path, etcd: Etcd) -> None:
    # As after a launcher that was killed: somebody's keys under the same name.
    old = open_store(etcd.url, job="again", secret=b"")
    for key in ("leader", "generation", "state", "current"):
        assert old.compare_and_swap(key, expected=0, value=b"{}").done
    old.close()
    for _ in range(2):
        job = start("journal.py", "--log", str(log), "--epochs", "1", name="again", store=etcd.url)
        assert job.wait(120).state == "finished"
    assert names_in(etcd) == [f"/edl/again/{key}" for key in ("generation", "leader", "state")]


def test_a_job_that_has_not_begun_has_no_leader(etcd: Etcd) -> None:
    old = open_store(etcd.url, job="again", secret=b"")
    assert old.compare_and_swap("leader", expected=0, value=b"{}").done
    old.close()
    # The launcher is up, but its job's folder does not say yet where the keys of this run are.
    here = Access(
        job="again",
        store=etcd.url,
        secret=b"",
        launcher=Address("127.0.0.1", free_port()),
        run=lambda: "",
    )
    assert here.leader() is None


def test_a_job_is_found_by_its_store_alone(
    start: Start, log: Path, tmp_path: Path, etcd: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = tmp_path / "end"
    job = start("journal.py", *endless(log, end), name="far", store=etcd.url)
    monkeypatch.setenv("EDL_SECRET_FILE", str(job.folder / "secret"))
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "another"))
    there = Job("far", store=etcd.url)
    until(lambda: there.status().state == "training", "the job to train")
    joined = there.scale_out(1)
    assert joined is not None
    assert joined.size == 3
    end.touch()
    assert job.wait(120).state == "finished"


def test_a_password_lies_in_one_file_that_others_cannot_read(
    start: Start, log: Path, tmp_path: Path, etcd: Etcd
) -> None:
    end = tmp_path / "end"
    url = etcd.url.replace("etcd://", "etcd://root:s3same@")
    etcd_login(etcd)
    job = start("journal.py", *endless(log, end), name="secret", store=url)
    until(lambda: job.status().state == "training", "the job to train")
    assert stat.S_IMODE(job.folder.stat().st_mode) == 0o700
    files = [path for path in job.folder.rglob("*") if path.is_file()]
    holders = [path for path in files if b"s3same" in path.read_bytes()]
    assert [path.name for path in holders] == ["store"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    launcher = psutil.Process(json.loads((job.folder / "job.json").read_text())["pid"])
    for process in [launcher, *launcher.children(recursive=True)]:
        assert not any("s3same" in word for word in process.cmdline())
        assert not any("s3same" in value for value in process.environ().values())
    end.touch()
    assert job.wait(120).state == "finished"


def etcd_login(etcd: Etcd) -> None:
    """Switch logins on, with the user that the test's URL names."""
    for path, body in (
        ("user/add", {"name": "root", "password": "s3same"}),
        ("role/add", {"name": "root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("enable", {}),
    ):
        request = urllib.request.Request(
            f"http://{etcd.address}/v3/auth/{path}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"etcd://127.0.0.1:{free_port()}", "does not answer.*start it, correct the URL"),
        (f"zookeeper://127.0.0.1:{free_port()}", "does not answer.*start it, correct the URL"),
        ("consul://127.0.0.1:8500", "of no known kind; known:"),
        ("etcd://me:s3same@127.0.0.1", "HOST:PORT"),
    ],
    ids=["etcd", "zookeeper", "unknown", "no-port"],
)
def test_a_store_that_cannot_be_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, words: str
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=words) as caught:
        run(str(SCRIPTS / "journal.py"), "--log", str(tmp_path), name="never", store=url)
    assert "s3same" not in str(caught.value)
    assert os.listdir(tmp_path / "home/jobs") == []
