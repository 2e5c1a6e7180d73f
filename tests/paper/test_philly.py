"""Sections 2.2 and 6.3 on the reconstructed Philly trace: its sizes, and who wins by how much."""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import replace
from pathlib import Path

import pytest

from edl.simulator.generate import with_load
from edl.simulator.jobs import Trace
from edl.simulator.run import simulate
from edl.simulator.setting import Setting
from edl.simulator.summary import Summary, percentile, summarise
from edl.simulator.trace import read_trace

HERE = Path(__file__).resolve().parents[2].parent / "shared" / "data"
DATA = Path(os.environ.get("EDL_DATA", HERE))

pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the traces are not here: ../shared/data or $EDL_DATA"
)


@pytest.fixture(scope="module")
def philly() -> Trace:
    return read_trace(DATA / "philly_all_recon.csv.gz", capacity=2304)


def run(trace: Trace, policy: str, nodes: int) -> Summary:
    setting = Setting(nodes=nodes, gpus_per_node=8, models=str(DATA / "speedup_model.csv"), seed=0)
    return summarise(simulate(trace, policy, setting))


def test_sizes_are_those_that_the_paper_names(philly: Trace) -> None:
    """ "The 20th percentile takes 85 GPU*sec while the 90th percentile takes 58,330" """
    sizes = sorted(job.gpus * job.duration_s for job in philly.jobs)
    assert len(sizes) == 114_900
    assert percentile(sizes, 0.2) == pytest.approx(85, rel=0.02)
    assert percentile(sizes, 0.9) == pytest.approx(58_330, rel=0.02)


def test_elasticity_cuts_completion_times_and_ours_cuts_them_further(philly: Trace) -> None:
    """6,000 jobs of October on 75 machines, at a load of 0.9.

    The whole trace takes minutes: `bench/scheduling.py table`.
    """
    month = replace(philly, jobs=philly.jobs[30_000:36_000])
    trace = with_load(replace(month, name="a month"), 600, 0.9)
    plain, elastic, ours = (
        run(trace, policy, 75) for policy in ("tiresias", "elastic-tiresias", "wf-srpt")
    )
    assert elastic.jct_mean_s < 0.75 * plain.jct_mean_s
    assert elastic.jct_p95_s < plain.jct_p95_s
    assert ours.jct_mean_s < 0.95 * elastic.jct_mean_s
    assert ours.jct_median_s < 1.05 * elastic.jct_median_s
    assert ours.jct_p95_s < 1.01 * elastic.jct_p95_s
    assert ours.jct_max_s < 1.5 * plain.jct_max_s
    # "Elastic-Tiresias achieves higher GPU utilization rate and cluster efficiency."
    assert elastic.utilisation > plain.utilisation
    assert elastic.cluster_efficiency > plain.cluster_efficiency


def test_tiresias_in_the_pollux_artifacts_rounds_is_near_what_was_published() -> None:
    """Mean over its eight workloads, rounds of 60 s, restarts of 30 s: within 15 %."""
    with gzip.open(DATA / "pollux" / "published_jcts.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if float(row["load"]) == 1.0]
    jcts = [float(row["jct"]) for row in rows if row["policy"] == "tiresias"]
    published = sum(jcts) / len(jcts)
    prices = replace(Setting(nodes=1, gpus_per_node=1).prices, stop_s=30.0, shrink_s=30.0)
    setting = Setting(
        nodes=16,
        gpus_per_node=4,
        mechanism="custom",
        prices=replace(prices, prepare_s=0.0, start_s=30.0),
        models=str(DATA / "pollux" / "standalone.csv"),
        round_s=60.0,
    )
    means = [
        summarise(
            simulate(read_trace(DATA / "pollux" / f"workload-{number}.csv"), "tiresias", setting)
        ).jct_mean_s
        for number in range(1, 9)
    ]
    assert sum(means) / len(means) == pytest.approx(published, rel=0.15)
