"""Measured throughputs as speeds: whose rows count, and what a batch that was not measured does."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.simulator.speeds import Speeds
from tests.unit.test_simulate_run import job

SPEEDS = """\
model,num_gpus,num_nodes,batch,samples_per_sec,gpu,source
bert,1,1,8,80,T4,weak
bert,1,1,16,100,T4,weak
bert,2,1,16,150,T4,weak
bert,2,1,32,180,T4,weak
bert,4,1,32,290,T4,weak
bert,4,1,64,350,T4,weak
bert,1,1,64,100,A100,strong
bert,2,1,64,180,A100,strong
bert,4,1,64,320,A100,strong
bert,4,2,64,250,A100,strong
gpt,1,1,64,10,A100,strong
bert,1,1,64,300,H100,strong
"""


@pytest.fixture
def measured(tmp_path: Path) -> str:
    table = tmp_path / "speeds.csv"
    table.write_text(SPEEDS)
    return str(table)


def speeds_of(table: str, **more: str) -> Speeds:
    return Speeds(models=table, seed=0, gpus_per_node=4, capacity=8, **more)


def test_of_two_origins_the_one_with_most_numbers_of_gpus_counts(measured: str) -> None:
    speeds = speeds_of(measured)
    curve = speeds.curve(job(0, 0.0, model="bert", batch=64))
    assert curve.rate == (0.0, 100.0, 180.0, 250.0, 320.0), "packed, where that was measured"
    note, end = speeds.notes()
    assert note == (
        "speeds are those of strong on A100 (2 models), from speeds.csv; --models-source and "
        "--models-gpu choose others: weak on T4 (1 models), strong on H100 (1 models)"
    )
    assert end.startswith("measured speeds end at 4 GPUs for bert; ")


def test_a_table_with_a_batch_for_each_gpu_serves_as_well(measured: str) -> None:
    speeds = speeds_of(measured, source="weak")
    # 24 on 2 GPUs: steps of 16 take 16/150 s, of 32 32/180 s, so of 24 what lies between.
    rate = speeds.curve(job(0, 0.0, model="bert", batch=24)).rate
    between = 24 / ((16 / 150 + 32 / 180) / 2)
    assert rate == pytest.approx((0.0, between / 2, between))
    assert speeds.curve(job(0, 0.0, model="bert", batch=32)).rate[1:] == (90.0, 180.0, 235.0, 290.0)


def test_a_job_that_says_no_batch_has_one_that_was_measured(measured: str) -> None:
    speeds = speeds_of(measured, source="weak")
    assert speeds.curve(job(0, 0.0, gpus=4)).rate[4] == 350.0, "16 a GPU"
    strong = speeds_of(measured, gpu="A100")
    # 64 a GPU would be 256, which nobody measured: the nearest is 64.
    assert strong.curve(job(0, 0.0, gpus=4, model="bert")).rate[4] == 320.0
    assert any("batch outside of those measured: bert 1;" in note for note in strong.notes())


def test_a_batch_that_was_not_measured_makes_no_model_unknown(measured: str) -> None:
    speeds = speeds_of(measured, gpu="A100")
    assert speeds.curve(job(0, 0.0, model="bert", batch=640)).label == "bert"
    assert not any("is not known" in note for note in speeds.notes())


def test_origins_that_measured_different_models_count_together(tmp_path: Path) -> None:
    table = tmp_path / "speeds.csv"
    rows = "bert,1,1,64,100,A100,ours\nvgg,1,1,64,20,K80,theirs\n"
    table.write_text(SPEEDS.splitlines()[0] + "\n" + rows)
    assert speeds_of(str(table)).names == ["bert", "vgg"]
    assert speeds_of(str(table), gpu="K80").names == ["vgg"]
