"""The public face of `edl.torch`: its names are promises, and it refuses what it cannot do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edl.torch as edl
from tests.integration.conftest import SCRIPTS, Start

pytestmark = pytest.mark.paired

NAMES = {
    "DataLoader",
    "Leave",
    "Optimizer",
    "Partition",
    "Shard",
    "all_reduce",
    "device",
    "elastic_shard_generator",
    "epoch",
    "epochs",
    "generation",
    "init",
    "is_leader",
    "job",
    "local_batch_size",
    "notify_batch_end",
    "rank",
    "register",
    "report",
    "shutdown",
    "size",
    "step",
}


def alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A script run by plain Python, as in a terminal."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_names_are_the_promised_ones() -> None:
    assert set(edl.__all__) == NAMES
    assert all(hasattr(edl, name) for name in NAMES)


def test_init_refuses_other_launchers() -> None:
    code = "import edl.torch as edl; edl.init()"
    for variables, told in (
        ({"TORCHELASTIC_RUN_ID": "x"}, "torchrun"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpirun"),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE"),
    ):
        done = alone(code, **variables)
        assert done.returncode != 0
        assert "UsageError" in done.stderr
        assert told in done.stderr
        assert "edl run -n N SCRIPT" in done.stderr


REFUSALS = {
    "call edl.init() first": "edl.step()",
    "wrapped in DataParallel": (
        "edl.init(); m = torch.nn.Linear(1, 1);"
        "edl.Optimizer(torch.optim.SGD(m.parameters(), lr=1), model=torch.nn.DataParallel(m))"
    ),
    "has SyncBatchNorm": (
        "edl.init(); m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.SyncBatchNorm(2));"
        "edl.Optimizer(torch.optim.SGD(m.parameters(), lr=1), model=m)"
    ),
    "one of None, 'bf16', 'fp16'": "edl.init(compression='int8')",
    "size of a gradient bucket": "edl.init(bucket_mb=0)",
    "bucket_mb='x'": "edl.init(bucket_mb='x')",
    "compression=[]": "edl.init(compression=[])",
    "wraps a torch optimizer": "edl.init(); edl.Optimizer(3, model=torch.nn.Linear(1, 1))",
    "map-style dataset": "edl.init(); edl.DataLoader(iter([]), batch_size=2)",
    "at least 1": "edl.init(); edl.DataLoader([1, 2], batch_size=0)",
    "gives no step": "edl.init(); edl.DataLoader([1, 2], batch_size=3, drop_last=True)",
    "a second edl.DataLoader": (
        "edl.init(); edl.DataLoader([1], batch_size=1); edl.DataLoader([1], batch_size=1)"
    ),
    "state_dict() and load_state_dict()": "edl.init(); edl.register(3)",
    "before edl.notify_batch_end()": (
        "edl.init(); l = edl.DataLoader([1, 2], batch_size=1); [b for b in l]"
    ),
    "without a batch": (
        "edl.init(); l = edl.DataLoader([1, 2], batch_size=1); edl.notify_batch_end()"
    ),
    "from the first batch on": "edl.init(); edl.all_reduce(1.0)",
    "no data: make the edl.DataLoader": "edl.init(); list(edl.epochs(2))",
    "epochs=2 inside edl.epochs(3)": (
        "edl.init(); l = edl.DataLoader([1, 2], batch_size=1, epochs=2);"
        "[b for e in edl.epochs(3) for b in l]"
    ),
    "is a name; edl.data has readers": "edl.init(); edl.DataLoader('a.txt', batch_size=1)",
    "called before": "edl.init(); edl.init()",
    "a list of (path, offset, length)": (
        "edl.init(); edl.elastic_shard_generator([], batch_size=2)"
    ),
    "samples=3), but this worker's part of the step is 2": (
        "edl.init(); s = edl.elastic_shard_generator([('a', 0, 9)], batch_size=2);"
        "next(iter(s)); edl.notify_batch_end(samples=3)"
    ),
    "only the script knows how many": (
        "edl.init(); s = edl.elastic_shard_generator([('a', 0, 9)]);"
        "next(iter(s)); edl.notify_batch_end()"
    ),
    "serves one process": (
        "edl.init(); s = edl.elastic_shard_generator([('a', 0, 9)], batch_size=2); import os;"
        "pid = os.fork(); pid and os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]));"
        "next(iter(s))"
    ),
    "for rows in shards.batches(pipeline)": (
        "edl.init(); s = edl.elastic_shard_generator([('a', 0, 9)], batch_size=2);"
        "from concurrent.futures import ThreadPoolExecutor as Threads;"
        "Threads(1).submit(next, iter(s)).result()"
    ),
}


@pytest.mark.parametrize("told", REFUSALS)
def test_bad_calls_say_what_to_do(told: str) -> None:
    done = alone(f"import torch, edl.torch as edl; {REFUSALS[told]}")
    assert done.returncode == 1
    assert "edl.errors.UsageError" in done.stderr
    assert told in done.stderr


def test_a_script_runs_alone_as_a_job_of_one() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "pauses.py"), "--who", "all", "--seconds", "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "steps 30 workers 1"


def test_shards_go_to_whoever_is_there(start: Start, log: Path, tmp_path: Path) -> None:
    end = tmp_path / "end"
    job = start("shards.py", "--log", str(log), "--until", str(end), workers=2)
    assert job.scale_out(1) is not None
    assert job.scale_in(1) is not None
    end.touch()
    assert job.wait(120).state == "finished"
    from tests.integration.judge import read_journal

    journal = read_journal(log)
    assert {2, 3} <= set(journal.sizes())
    journal.check_exactly_once(samples=1003, epochs=set(range(len(journal.used()))))
    journal.check_batches(batch=50, samples=1003)
    journal.check_replicas()
