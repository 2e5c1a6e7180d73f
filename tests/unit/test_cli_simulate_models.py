"""What `edl simulate` lists, and the tables of speeds and times that it takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from edl.cli.main import main
from edl.simulator.speeds import BUILT_IN
from tests.unit.asked import ASKED, any_engine, jobs, simulated

__all__ = ["any_engine", "jobs"]

SPEEDS = """\
model,num_gpus,num_nodes,batch,samples_per_sec,gpu,source
bert,1,1,64,100,A100,ours
bert,4,1,64,300,A100,ours
bert,1,1,64,20,K80,theirs
"""


def test_policies_and_models_are_listed_without_a_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def listed(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["simulate", *arguments])
        assert end.value.code == 0
        return capsys.readouterr().out

    assert listed("--list-policies").splitlines()[0] == (
        "tiresias          jobs that got little go first"
    )
    models = listed("--list-models")
    assert [line.split()[0] for line in models.splitlines()] == list(BUILT_IN)
    assert all(" as fast on 8 as on 1, " in line for line in models.splitlines())
    assert models.splitlines()[0] in listed("--help").replace("\n  ", "\n")
    table = tmp_path / "speeds.csv"
    table.write_text(SPEEDS)
    assert listed("--list-models", str(table)).splitlines() == [
        "bert  ours on A100, 1 to 4 GPUs, batches 64 to 64",
        "bert  theirs on K80, 1 GPU, batches 64 to 64",
    ]
    table.write_text("workers,throughput\n1,10\n2,18\n")
    assert "a profile of up to 2 workers" in listed("--list-models", str(table))


def test_a_table_that_cannot_be_listed_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--list-models", "/nowhere.csv"])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("edl: /nowhere.csv: there is no such file")


def test_rows_of_a_table_of_speeds_are_chosen(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "speeds.csv"
    table.write_text(SPEEDS)
    more = ["--models", str(table), "--models-source", "theirs", "--models-gpu", "K80"]
    report = ["--report", str(tmp_path / "out")]
    assert simulated(jobs, *more, *report) == 0
    setting = ASKED[0][2]
    assert (setting.models_source, setting.models_gpu) == ("theirs", "K80")
    assert shlex.join(more) in (tmp_path / "out" / "index.html").read_text()
    capsys.readouterr()
    assert simulated(jobs, "--models", str(table), "--models-source", "nobody") == 2
    assert capsys.readouterr().err == (
        "edl: speeds.csv has no speeds of source 'nobody'; it has ours on A100 (1 models), theirs "
        "on K80 (1 models)\n"
    )
    assert simulated(jobs, "--models-gpu", "A100") == 2
    assert "give a table of speeds (--models)" in capsys.readouterr().err
    table.write_text("workers,throughput\n1,10\n")
    assert simulated(jobs, "--models", str(table), "--models-gpu", "A100") == 2
    assert "leave --models-source and --models-gpu out" in capsys.readouterr().err


# -- a Pollux workload -----------------------------------------------------------------------


@pytest.fixture
def workload(tmp_path: Path) -> str:
    path = tmp_path / "workload.csv"
    path.write_text("name,time,application,num_replicas,batch_size\njob-a,0,bert,2,48\n")
    return str(path)


def test_a_pollux_workload_alone_says_what_to_give(
    workload: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(workload) == 2
    told = capsys.readouterr().err
    assert "its folder has no standalone.csv to look that up" in told
    assert "application,batch_size,num_gpus,num_nodes,seconds_alone by --standalone FILE" in told


def test_times_alone_are_named_and_their_speeds_count(workload: str, tmp_path: Path) -> None:
    (tmp_path / "else").mkdir()
    table = tmp_path / "else" / "times.csv"
    table.write_text(
        "application,batch_size,num_gpus,num_nodes,samples_per_sec,seconds_alone\n"
        "bert,48,1,1,13,1000\nbert,48,2,1,20,650\n"
    )
    assert simulated(workload, "--standalone", str(table)) == 0
    trace, _, setting = ASKED[0]
    assert [job.duration_s for job in trace.jobs] == [650.0]
    # Whoever names no models gets the speeds that are at hand.
    assert setting.models == str(table)
    ASKED.clear()
    table.write_text("application,batch_size,num_gpus,num_nodes,seconds_alone\nbert,48,2,1,650\n")
    assert simulated(workload, "--standalone", str(table)) == 0
    assert ASKED[0][2].models is None


def test_times_alone_are_for_nothing_else(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(jobs, "--standalone", jobs) == 2
    assert "is EDL's own format, which says itself how long jobs run" in capsys.readouterr().err
    assert simulated("generate:5", "--standalone", jobs) == 2
    assert "a generated trace needs none" in capsys.readouterr().err
