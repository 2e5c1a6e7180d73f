"""The real files: `$EDL_DATA`, or a folder of shared data beside the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.simulator.formats import read_models, read_speeds
from edl.simulator.jobs import TraceJob
from edl.simulator.measured import read_measured
from edl.simulator.speeds import Speeds
from edl.simulator.trace import read_trace

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("EDL_DATA", ROOT / "../shared/data"))

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"no traces in {DATA}; EDL_DATA says where"
)


def test_philly_with_all_statuses() -> None:
    trace = read_trace(DATA / "philly_4vc_all.csv.gz")
    assert len(trace.jobs) == 10_879
    assert trace.jobs[1] == TraceJob(
        id="1", submit_s=201694.0, gpus=8, duration_s=4472936.0, user="7f04ca"
    )
    assert sum(job.gpus * job.duration_s for job in trace.jobs) == 5_504_403_543
    assert trace.skipped == {}
    assert trace.notes == ()


def test_tiresias() -> None:
    trace = read_trace(DATA / "tiresias" / "60_job.csv", capacity=4)
    assert len(trace.jobs) + trace.skipped["larger than the cluster of 4 GPUs"] == 60
    assert trace.jobs[0] == TraceJob(id="0", submit_s=0.0, gpus=1, duration_s=164.0, model="vgg19")


@pytest.mark.parametrize(
    ("name", "jobs"),
    [
        *((f"workload-{n}", 160) for n in range(1, 9)),
        ("workload-6-load0.5", 80),
        ("workload-6-load1.5", 240),
        ("workload-6-load2.0", 320),
        ("workload-6-realistic", 160),
    ],
)
def test_every_job_of_pollux_was_measured_as_it_asks(name: str, jobs: int) -> None:
    trace = read_trace(DATA / "pollux" / f"{name}.csv", capacity=64)
    assert len(trace.jobs) == jobs
    assert trace.skipped == {}
    assert not [note for note in trace.notes if "not measured" in note]


def test_a_pollux_job() -> None:
    trace = read_trace(DATA / "pollux" / "workload-6.csv")
    assert trace.jobs[1] == TraceJob(
        id="cifar10-1", submit_s=101.0, gpus=6, duration_s=897.3, model="cifar10", batch=2048
    )


@pytest.mark.parametrize(
    "name",
    ["philly_long_sizes.csv.gz", "tiresias/yarn-gput1000.csv", "pollux/standalone.csv"],
)
def test_what_is_no_trace_is_told_so(name: str) -> None:
    with pytest.raises(UsageError, match=r":1: (missing columns|no trace has the columns)"):
        read_trace(DATA / name)


def test_tables_of_speed() -> None:
    models = read_models(DATA / "speedup_model.csv")
    assert len(models) == 6
    assert models["resnet50"].batch_per_gpu == 64
    speeds = read_speeds(DATA / "pollux" / "standalone.csv")
    assert len(speeds) == 26
    assert speeds["bert", 12] == {(1, 1): 13.022, (2, 1): 20.462, (3, 1): 24.143}
    assert len(read_speeds(DATA / "throughput.csv", source="elasticflow")) == 17


@pytest.mark.parametrize(
    ("source", "gpu", "names", "origin"),
    [
        (None, None, 7, "elasticflow on A100"),
        ("elasticflow", None, 7, "elasticflow on A100"),
        ("pollux", None, 6, "pollux on T4"),
        ("gavel", None, 7, "gavel on V100"),
        (None, "P100", 7, "gavel on P100"),
    ],
)
def test_measured_throughputs_are_speeds(
    source: str | None, gpu: str | None, names: int, origin: str
) -> None:
    table = str(DATA / "throughput.csv")
    speeds = Speeds(models=table, seed=0, gpus_per_node=8, capacity=64, source=source, gpu=gpu)
    assert len(speeds.names) == names
    for number, gpus in enumerate((1, 2, 8, 64) * 20):
        job = TraceJob(id=str(number), submit_s=0.0, gpus=gpus, duration_s=1.0)
        assert len(speeds.curve(job).rate) > gpus
    assert speeds.notes()[0].startswith(f"speeds are those of {origin} ({names} models), from")


def test_pollux_rows_at_a_fixed_batch_are_near_the_times_alone() -> None:
    """The two tables are made of the same measurements: one of them by hand, the other here."""
    alone = read_speeds(DATA / "pollux" / "standalone.csv")
    found = read_measured(DATA / "throughput.csv", source="pollux", gpu=None)
    rates = found.models["cifar10"].rates(2048)
    pairs = [
        (rates[gpus], rate) for (gpus, _), rate in alone["cifar10", 2048].items() if gpus in rates
    ]
    assert len(pairs) > 15
    assert all(0.8 < ours / theirs < 1.25 for ours, theirs in pairs), pairs
