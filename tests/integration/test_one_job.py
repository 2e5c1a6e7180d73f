"""A job that left its launcher's machine stays one job while its workers cannot reach the store.

The launcher is `edl run`, the store is etcd, and the last workers run in another network.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl.client import Job
from edl.errors import EdlError
from edl.runtime.checkpoint import CheckpointFolder
from edl.store.base import open_store
from tests.contract.servers import until
from tests.integration.conftest import SCRIPTS
from tests.integration.judge import Journal, read_journal
from tests.integration.networks import Namespace, OpenEtcd, address_taken, outside

pytestmark = pytest.mark.paired

SAMPLES, BATCH = 400, 40
CHECKPOINT_STEPS = 3
PATIENCE_S = 120.0
SLOW_S, FAST_S = 0.3, 0.02  # what a step takes


class Cluster:
    """One job, its launcher, and its workers in the other network."""

    def __init__(self, network: Namespace, etcd: OpenEtcd, folder: Path) -> None:
        self.network = network
        self.etcd = etcd
        self.log = folder / "log"
        self.checkpoints = folder / "checkpoints"
        self._folder = folder
        self._end = folder / "end"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.far: dict[str, subprocess.Popen[bytes]] = {}
        command = [sys.executable, "-m", "edl.cli.main", "run", "-n", "1", "--name", "one"]
        place = ("--store", etcd.url, "--host", network.here, "--gpus", "none")
        checkpoint = ("--checkpoint", str(self.checkpoints))
        environment = {**os.environ, "EDL_CHECKPOINT_STEPS": str(CHECKPOINT_STEPS)}
        script = self._script(SLOW_S)
        self.log.mkdir()
        self.launcher = self._start("edl", [*command, *place, *checkpoint, *script], environment)
        until(lambda: self.over() or self.last_step("w0") > 0, "the job to train", PATIENCE_S)
        assert not self.over(), self.output("edl")
        self.job = Job("one")

    def _script(self, step_s: float) -> list[str]:
        size = ("--samples", str(SAMPLES), "--batch", str(BATCH), "--epochs", "100000")
        pace = ("--pause", str(step_s), "--pause-until", str(self._end))
        script = (str(SCRIPTS / "journal.py"), "--log", str(self.log))
        return [*script, *size, *pace, "--until", str(self._end)]

    def _start(
        self, name: str, command: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.txt").open("wb") as output:
            started = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        self._processes.append(started)
        return started

    def output(self, name: str) -> str:
        return (self._folder / f"{name}.txt").read_text()

    def join(self, name: str, *, step_s: float) -> None:
        """A worker of the other network; it may write checkpoints, as docs/joining.md says."""
        process = self.far[name] = self._start(
            name,
            self.network.command(sys.executable, *self._script(step_s)),
            outside(
                self.job,
                self.etcd.url,
                self.network.there,
                EDL_WORKER=name,
                EDL_SLOT=f"node2:{len(self.far)}",
                EDL_CHECKPOINT=str(self.checkpoints),
                EDL_CHECKPOINT_STEPS=str(CHECKPOINT_STEPS),
            ),
        )
        until(lambda: process.poll() is not None or name in self.members(), "a join", PATIENCE_S)
        assert process.poll() is None, self.output(name)

    def members(self) -> set[str]:
        """Who is in the job; nobody while there is no answer."""
        with contextlib.suppress(EdlError):
            return {str(worker.id) for worker in self.job.status().workers if worker.rank >= 0}
        return set()

    def last_step(self, worker: str) -> int:
        """The last step that this worker has committed, by its own journal; -1: none."""
        lines = read_journal(self.log).lines.get(worker, [])
        done = [line["step"] for line in lines if line["what"] == "outcome" and line["committed"]]
        return max(done, default=-1)

    def train(self, worker: str, steps: int) -> None:
        """Until this worker has committed so many more steps."""
        first = self.last_step(worker)
        until(lambda: self.last_step(worker) >= first + steps, f"{worker} to train", PATIENCE_S)

    def leave_to_far(self, how: str) -> None:
        """The launcher's own worker is scaled in or killed; the far ones go on."""
        for worker in self.far:
            self.train(worker, 2)  # one that has committed no step is no survivor
        if how == "scaled in":
            self.job.scale_in(["w0"])
        else:
            (pid,) = [worker.pid for worker in self.job.status().workers if worker.id == "w0"]
            os.kill(pid, signal.SIGKILL)
        until(lambda: self.members() == set(self.far), "only the far workers", PATIENCE_S)
        for worker in self.far:
            self.train(worker, 2 * CHECKPOINT_STEPS)

    def happened(self, what: str) -> bool:
        return any(event.what == what for event in self.job.events())

    def over(self) -> bool:
        return self.launcher.poll() is not None

    def end(self) -> int:
        """Let the script end; the launcher's exit status."""
        self._end.touch()
        return self.launcher.wait(PATIENCE_S)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster(
    tmp_path: Path, elsewhere: Namespace, open_etcd: OpenEtcd, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """A job with one worker of its launcher's own."""
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    made = Cluster(elsewhere, open_etcd, tmp_path)
    yield made
    made.close()


def generation_changes(etcd: OpenEtcd) -> list[tuple[str, str]]:
    """Every change of a generation in etcd's history, in order: the key, and PUT or DELETE."""
    store = open_store(etcd.url, job="history", secret=b"")
    assert store.compare_and_swap("last", expected=0, value=b"x").done
    store.close()
    everything = {"key": "AA==", "range_end": "AA==", "start_revision": "1"}
    connection = http.client.HTTPConnection(etcd.host, etcd.port, timeout=PATIENCE_S)
    connection.request("POST", "/v3/watch", json.dumps({"create_request": everything}))
    answer, found = connection.getresponse(), list[tuple[str, str]]()
    while not found or not found[-1][0].endswith("/last"):
        for event in json.loads(answer.readline())["result"].get("events", []):
            found.append((base64.b64decode(event["kv"]["key"]).decode(), event.get("type", "PUT")))
    connection.close()
    return [change for change in found if change[0].endswith("/generation")]


def joined(old: Journal, new: Journal, *, at: int) -> Journal:
    """One history: the old run's before the step that the new one went on from, then the new's."""
    lines = {
        worker: [line for line in its if line.get("step", at) < at]
        for worker, its in old.lines.items()
    }
    later = 1 + max(line["generation"] for its in lines.values() for line in its)
    for worker, its in new.lines.items():
        lines[worker] = [{**line, "generation": line.get("generation", 0) + later} for line in its]
    return Journal(lines)


def judge(journal: Journal) -> None:
    journal.check_exactly_once(samples=SAMPLES, epochs=set(range(max(journal.used()) + 1)))
    journal.check_batches(batch=BATCH, samples=SAMPLES)
    journal.check_replicas()
    journal.check_end(steps=max(journal.counted()) + 1)


@pytest.mark.parametrize(
    ("how", "cut_s"),
    [
        ("killed", 0.0),
        pytest.param("killed", 30.0, marks=pytest.mark.slow),
        pytest.param("scaled in", 30.0, marks=pytest.mark.slow),
    ],
    ids=["killed", "killed-30s", "scaled-in-30s"],
)
def test_job_is_neither_over_nor_started_again_while_its_last_workers_cannot_reach_the_store(
    cluster: Cluster, how: str, cut_s: float
) -> None:
    for name in ("far0", "far1"):
        cluster.join(name, step_s=SLOW_S)
    cluster.leave_to_far(how)
    cluster.network.cut()
    cut_at = time.monotonic()
    until(lambda: cluster.happened("job.waiting") or cluster.over(), "the event", PATIENCE_S)
    time.sleep(max(0.0, cut_at + cut_s - time.monotonic()))  # the length of the cut is tried
    # Their leases have lapsed, and they train on.
    for name in cluster.far:
        cluster.train(name, 5)
    assert not cluster.over(), cluster.output("edl")
    assert "far0 at " in cluster.job.waiting()
    cluster.network.restore()
    until(lambda: cluster.members() == set(cluster.far), "the store to be reached", PATIENCE_S)
    assert cluster.end() == 0, cluster.output("edl")
    assert [process.wait(PATIENCE_S) for process in cluster.far.values()] == [0, 0]
    result = cluster.job.result()
    assert result is not None
    assert (result.state, result.restarts) == ("finished", 0)
    journal = read_journal(cluster.log)
    assert set(journal.lines) == {"w0", *cluster.far}
    judge(journal)


def test_job_that_is_started_again_fences_its_old_workers_and_they_stop(cluster: Cluster) -> None:
    """The old worker's host seems to refuse connections, so the launcher takes it for dead."""
    cluster.join("far", step_s=FAST_S)
    cluster.leave_to_far("killed")
    with address_taken(cluster.network):
        until(lambda: cluster.happened("job.resumed") or cluster.over(), "a restart", PATIENCE_S)
        assert not cluster.over(), cluster.output("edl")
        (resumed,) = [event for event in cluster.job.events() if event.what == "job.resumed"]
        from_step, new = int(resumed.fields["from_step"]), str(resumed.fields["worker"])
        until(lambda: cluster.last_step(new) >= from_step, "the new worker to train", PATIENCE_S)
        # The old one, which trains on, gets ahead of it by several checkpoints.
        until(
            lambda: cluster.last_step("far") > cluster.last_step(new) + 4 * CHECKPOINT_STEPS,
            "the old worker to get ahead",
            PATIENCE_S,
        )
        kept = CheckpointFolder(str(cluster.checkpoints)).steps()
        assert kept[-1] <= cluster.last_step(new) + 1, "the old worker writes checkpoints"
    assert cluster.far["far"].wait(PATIENCE_S) == 0, cluster.output("far")
    why = "the job was fenced: its generation was deleted from the store"
    assert why in cluster.output("far")
    cluster.train(new, 2 * CHECKPOINT_STEPS)
    assert cluster.end() == 0, cluster.output("edl")
    result = cluster.job.result()
    assert result is not None
    assert (result.state, result.restarts) == ("finished", 1)

    changes = generation_changes(cluster.etcd)
    first_key = changes[0][0]
    deleted_at = changes.index((first_key, "DELETE"))
    other = [number for number, (key, _) in enumerate(changes) if key != first_key]
    assert deleted_at < min(other), "the new run was recorded before the old one was fenced"

    journal = read_journal(cluster.log)
    assert set(journal.lines) == {"w0", "far", new}
    old = Journal({worker: journal.lines[worker] for worker in ("w0", "far")})
    judge(joined(old, Journal({new: journal.lines[new]}), at=from_step))
