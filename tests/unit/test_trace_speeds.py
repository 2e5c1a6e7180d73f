"""Tables of speed beside a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.simulator.formats import ModelRow, read_models, read_profile, read_speeds

PROFILE = """\
workers,throughput,per_worker,efficiency,step_s,steps
2,885.4,442.7,0.96,0.1083,20
1,462.1,462.1,,0.2074,20
"""
MODELS = """\
model,a,b,c,d,e,mean_err_pct,max_err_pct,min_batch,max_batch
bert,0.05,0.0017,0,0.005,0.003,2.3,5.9,64,128
"""
SPEEDS = """\
model,num_gpus,num_nodes,batch,samples_per_sec,gpu,source,placement
bert,1,1,64,100,A100,ours,
bert,4,2,64,300,A100,ours,13
bert,4,2,64,320,A100,ours,22
bert,2,,64,110,A100,ours,unconsolidated
a3c,1,1,,3.5,K80,theirs,
bert,1,1,64,20,K80,theirs,
"""

Write = Callable[[str], Path]


@pytest.fixture
def table(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        (tmp_path / "t.csv").write_text(text)
        return tmp_path / "t.csv"

    return write


def test_a_profile(table: Write) -> None:
    found = read_profile(table(PROFILE))
    assert list(found.items()) == [(1, 462.1), (2, 885.4)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,1,1,,1,20", r"t\.csv:4: workers is '0'; expected a whole number, 1 or more"),
        ("1.5,1,1,,1,20", r"t\.csv:4: workers is '1\.5'; expected a whole number, 1 or more"),
        ("2,1,1,,1,20", r"t\.csv:4: a row for 2 workers is there twice; keep one"),
        ("3,0,1,,1,20", r"t\.csv:4: throughput is 0; expected a number above 0"),
        ("3,-1,1,,1,20", r"t\.csv:4: throughput is '-1'; expected a number, 0 or more"),
        ("3,,1,,1,20", r"t\.csv:4: throughput is ''; expected a number, 0 or more"),
        ("3,nan,1,,1,20", r"t\.csv:4: throughput is 'nan'; expected a number, 0 or more"),
    ],
)
def test_a_profile_that_cannot_be_true(table: Write, row: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_profile(table(PROFILE + row + "\n"))


def test_tables_without_their_columns_or_rows(table: Write) -> None:
    with pytest.raises(UsageError, match=r"t\.csv:1: missing columns: throughput; a table of `edl"):
        read_profile(table("workers,speed\n1,2\n"))
    with pytest.raises(UsageError, match=r"t\.csv:1: missing columns: c, max_batch; a table of st"):
        read_models(table("model,a,b,d,e,min_batch\nx,1,1,1,1,1\n"))
    with pytest.raises(
        UsageError, match=r"t\.csv:1: missing columns: num_nodes; a table of speeds"
    ):
        read_speeds(table("model,batch,num_gpus,samples_per_sec\nx,1,1,1\n"))
    for read, text in ((read_profile, PROFILE), (read_models, MODELS), (read_speeds, SPEEDS)):
        with pytest.raises(UsageError, match="no row is left under its header; expected at least"):
            read(table(text.splitlines()[0]))


def test_fitted_step_times(table: Write) -> None:
    assert read_models(table(MODELS)) == {
        "bert": ModelRow(
            a=0.05, b=0.0017, c=0, d=0.005, e=0.003, min_batch=64, max_batch=128, batch_per_gpu=64
        )
    }


def test_the_batch_of_a_gpu_may_be_said(table: Write) -> None:
    text = (
        "model,a,b,c,d,e,min_batch,max_batch,batch_per_gpu\nx,1,1,0,0,0,8,16,4\ny,1,1,0,0,0,8,8,\n"
    )
    assert {name: row.batch_per_gpu for name, row in read_models(table(text)).items()} == {
        "x": 4,
        "y": 8,
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("bert,1,1,0,0,0,1,1,1,1", "model 'bert' is there twice; keep one row"),
        (",1,1,0,0,0,1,1,1,1", "model is empty; expected a name"),
        ("x,-1,1,0,0,0,1,1,1,1", "a is '-1'; expected a number, 0 or more"),
        ("x,1,1,0,0,inf,1,1,1,1", "e is 'inf'; expected a number, 0 or more"),
        ("x,0,0,1,1,1,1,1,1,1", "a and b of 'x' are 0; a step takes some time"),
        ("x,1,1,0,0,0,1,1,9,8", r"max_batch is 8; expected 9 \(min_batch\) or more"),
        ("x,1,1,0,0,0,1,1,0,8", "min_batch is '0'; expected a whole number, 1 or more"),
    ],
)
def test_step_times_that_cannot_be_true(table: Write, row: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"t\.csv:3: {said}"):
        read_models(table(MODELS + row + "\n"))


def test_measured_speeds(table: Write) -> None:
    # Placements on as many nodes are averaged; without a number of nodes a row says too little.
    assert read_speeds(table(SPEEDS), gpu="A100") == {("bert", 64): {(1, 1): 100.0, (4, 2): 310.0}}
    assert read_speeds(table(SPEEDS), source="theirs") == {
        ("a3c", 0): {(1, 1): 3.5},
        ("bert", 64): {(1, 1): 20.0},
    }


def test_speeds_of_two_kinds_of_gpu_are_not_mixed(table: Write) -> None:
    said = (
        r"t\.csv:7: bert with batch 64 on 1 GPUs was measured on K80 by theirs and elsewhere too; "
        r"choose one by source= or gpu="
    )
    with pytest.raises(UsageError, match=said):
        read_speeds(table(SPEEDS))
    with pytest.raises(UsageError, match="no row is left"):
        read_speeds(table(SPEEDS), gpu="H100")


def test_speeds_of_times_alone(table: Write) -> None:
    text = (
        "application,batch_size,num_gpus,num_nodes,samples_per_sec,seconds_alone\n"
        "bert,12,1,1,13.022,13614.5\n"
    )
    assert read_speeds(table(text)) == {("bert", 12): {(1, 1): 13.022}}
