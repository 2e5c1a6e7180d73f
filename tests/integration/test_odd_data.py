"""Data that hardly fills a batch, and samples that raise, in real jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.client import Job
from tests.integration.conftest import Start
from tests.integration.judge import read_journal
from tests.integration.test_face import alone
from tests.integration.test_failures import wait_step

pytestmark = pytest.mark.paired

FETCHING = [("map", 0), ("map", 2), ("lines", 0), ("lines", 2)]
# These fetch like one of the above, so `make test` leaves them out here.
ALIKE = [pytest.param(kind, 0, marks=pytest.mark.slow) for kind in ("stream", "parquet")]


def reading(start: Start, log: Path, kind: str, num_workers: int, **numbers: int) -> Job:
    workers = numbers.pop("workers")
    return start(
        "reading.py",
        *("--log", str(log), "--until", str(log / "until"), "--kind", kind),
        *("--num-workers", str(num_workers), "--pause", "0.01"),
        *(text for name, number in numbers.items() for text in (f"--{name}", str(number))),
        workers=workers,
    )


@pytest.mark.parametrize(("kind", "num_workers"), [*FETCHING, *ALIKE])
@pytest.mark.parametrize(
    ("samples", "batch", "workers"),
    [(7, 10, 2), (2, 10, 3), (1, 1, 2), (11, 2, 3)],
    ids=["less than a batch", "fewer than workers", "one", "a batch smaller than the workers"],
)
def test_little_data_is_used_once_an_epoch(
    start: Start, log: Path, kind: str, num_workers: int, samples: int, batch: int, workers: int
) -> None:
    sizes = {"samples": samples, "batch": batch, "workers": workers}
    job = reading(start, log, kind, num_workers, **sizes)
    wait_step(job, 8)
    (log / "until").touch()
    result = job.wait(60)
    assert result.state == "finished", result.why
    journal = read_journal(log)
    journal.check_exactly_once(samples=samples, epochs=set(range(len(journal.used()))))
    journal.check_batches(batch=batch, samples=samples)
    journal.check_replicas()
    audit = job.audit()
    assert audit.exact, audit.fault


@pytest.mark.parametrize("kind", ["map", "lines"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sample_that_raises_on_two_workers_ends_the_job_with_both_tracebacks(
    start: Start, log: Path, kind: str, num_workers: int
) -> None:
    job = reading(start, log, kind, num_workers, banana=77, samples=203, batch=10, workers=3)
    result = job.wait(120)
    assert result.state == "failed"
    assert "failed on the same batch" in result.why
    first, second = result.failures[:2]
    assert first.worker != second.worker
    assert kind != "map" or first.step == second.step
    for failure in (first, second):
        if kind == "map":
            assert "in __getitem__" in failure.traceback
            assert "LookupError: sample 77 is a banana" in failure.traceback
        else:
            assert "1.lines, line 11: invalid literal for int()" in failure.traceback
        assert "in main" in failure.traceback


REFUSALS = """
import torch
import edl.torch as edl
from edl.errors import UsageError

edl.init()
for dataset, arguments in [
    ([], {"batch_size": 4}),
    ([1], {"batch_size": 0}),
    ([1], {"batch_size": -1}),
    ([1], {"batch_size": 2.0}),
    ([1], {"batch_size": True}),
    ([1], {"batch_size": "2"}),
    ([1], {"batch_size": 2, "epochs": 0}),
    ([1], {"batch_size": 2, "micro_batch": 0}),
    ([1], {"batch_size": 2, "device": "gpu"}),
    ([1], {"batch_size": 2, "drop_last": True}),
]:
    try:
        edl.DataLoader(dataset, **arguments)
    except UsageError as error:
        print(error)
loader = edl.DataLoader([1.0, 2.0], batch_size=2, epochs=1)
try:
    edl.DataLoader([1], batch_size=2)
except UsageError as error:
    print(error)
for batch in loader:
    print(sorted(batch.tolist()), edl.local_batch_size())
    edl.notify_batch_end()
"""


def test_what_a_loader_refuses_and_that_it_works_after_all() -> None:
    done = alone(REFUSALS)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert told[0].startswith("a dataset of 0 samples gives no step")
    values = ("0", "-1", "2.0", "True", "'2'")
    assert told[1:6] == [f"batch_size={v}: give a whole number, at least 1" for v in values]
    assert told[6:8] == [
        "epochs=0: give a whole number, at least 1",
        "micro_batch=0: give a whole number, at least 1",
    ]
    assert told[8].startswith("device='gpu' is no device of torch")
    assert told[9].startswith("a dataset of 1 samples gives no step with batch_size=2")
    assert told[10].startswith("a second edl.DataLoader")
    assert told[11:] == ["[1.0, 2.0] 2"]
