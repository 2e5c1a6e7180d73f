"""Jobs on a real etcd whose answers are lost after it has carried out what they answer."""

from __future__ import annotations

import base64
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from edl.config import Settings
from edl.launch.keys import Keys
from edl.runtime.agent import Agent
from edl.runtime.identity import Identity
from edl.store.etcd import TIMEOUT_S
from edl.types import Address, Gpu, JobHandle, WorkerId
from tests.contract.servers import Etcd, until
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.lossy import TXN, LossyProxy

SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as made:
        yield made


def keys_of(etcd: Etcd, job: str) -> list[str]:
    """The keys of one job that etcd holds, read without the proxy."""
    body = {"key": _encoded(f"/edl/{job}/"), "range_end": _encoded(f"/edl/{job}0")}
    request = urllib.request.Request(
        f"http://{etcd.address}/v3/kv/range",
        data=json.dumps(body | {"keys_only": True}).encode(),
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        found = json.load(answer).get("kvs", [])
    return [base64.b64decode(pair["key"]).decode() for pair in found]


def has_keys(etcd: Etcd, job: str) -> bool:
    return keys_of(etcd, job) != []


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_lives_through_lost_answers(
    start: Start, log: Path, tmp_path: Path, etcd: Etcd, seed: int
) -> None:
    end, name = tmp_path / "end", f"lossy-{seed}"
    with LossyProxy(etcd.port, seed=seed) as proxy:
        job = start(
            "journal.py",
            *("--log", str(log), "--epochs", "1000", "--until", str(end)),
            *("--pause", "0.05", "--pause-until", str(end)),
            name=name,
            store=proxy.url,
        )
        until(lambda: job.status().state == "training", "the job to train", 60)
        joined = job.scale_out(2)
        assert joined is not None
        assert joined.size == 4
        left = job.scale_in(1)
        assert left is not None
        assert left.size == 3
        before = job.status()
        leader = next(worker for worker in before.workers if worker.leader)
        os.kill(leader.pid, signal.SIGKILL)

        def led_by_another() -> bool:
            status = job.status()
            ids = [worker.id for worker in status.workers]
            return status.state == "training" and leader.id not in ids and len(ids) == 2

        until(led_by_another, "another leader", 60)
        step = job.status().step
        until(lambda: job.status().step > step + 3, "more steps", 60)
        end.touch()
        result = job.wait(120)
        assert result.state == "finished"
        assert proxy.lost[TXN] > 0
        assert sum(proxy.lost_swaps.values()) > 0
    journal = read_journal(log)
    epochs = set(range(max(journal.used()) + 1))
    journal.check_exactly_once(samples=1003, epochs=epochs)
    journal.check_replicas()
    assert keys_of(etcd, name) == []


def test_a_launcher_removes_its_keys_though_requests_are_lost(etcd: Etcd) -> None:
    for seed in range(8):
        name = f"cleared-{seed}"
        with LossyProxy(etcd.port, seed=seed, lose=0.25, drop=0.25, delay_s=0.0) as proxy:
            keys = Keys(
                url=proxy.url,
                job=name,
                secret=b"",
                launcher=Address("127.0.0.1", 1),
                on_key=lambda run, key, found: None,
            )
            keys.begin("run")
            until(partial(has_keys, etcd, name), "the launcher's key")
            keys.close()
        assert keys_of(etcd, name) == [], f"seed {seed}"


def test_a_worker_that_starts_while_the_store_is_away_waits_for_it(etcd: Etcd) -> None:
    identity = Identity(
        job=JobHandle("late"),
        worker=WorkerId("w0"),
        slot=Gpu("localhost", 0),
        bind="127.0.0.1",
        store="",
        secret=b"s3cret",
        request_id="",
        founders=1,
        spawned_at=0.0,
        settings=Settings(unresponsive_s=0.0),
    )
    with LossyProxy(etcd.port, seed=1, drop=1.0) as proxy:
        agent = Agent(replace(identity, store=proxy.url), no_group)
        starting = ThreadPoolExecutor(1).submit(agent.start)
        # Longer than one call of the store takes before it gives up.
        with pytest.raises(TimeoutError):
            starting.result(timeout=2 * TIMEOUT_S)
        proxy.drop = 0.0
        starting.result(timeout=60)
        agent.stop()


def no_group(*_: object) -> NoReturn:
    raise AssertionError("no group is built in this test")
