"""What `edl simulate` understands, prints and writes; simulating itself is tried elsewhere."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from edl.cli import simulate as command
from edl.cli.main import main, make_parser
from edl.cli.simulate_table import JOB_FIELDS, print_comparison, trace_notes
from edl.simulator.generate import generate
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.outcome import Outcome
from edl.simulator.setting import MECHANISMS, Setting
from edl.simulator.summary import Summary
from tests.unit.asked import ASKED, CLUSTER, any_engine, jobs, simulated
from tests.unit.outcomes import an_outcome, compared, done

__all__ = ["any_engine", "jobs"]

PAGE = (Path(__file__).parents[2] / "docs/simulate.md").read_text()


# -- what is told ----------------------------------------------------------------------------


def test_a_table_with_a_row_per_policy(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(jobs) == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert lines[0] == "jobs: 3 jobs on 1 x 4 GPUs, offered load 0.75, edl adjustments"
    rows = [re.sub(r"  +", "|", line.strip()) for line in lines]
    assert rows[5:7] == [
        "tiresias|2m 13s|1m 40s|3m 10s|3m 18s|50.0s|3m 20s|81.2 %|75.0 %|92.3 %|0|0",
        "elastic-tiresias|1m 50s|-17.5 %|2m|2m 36s|2m 39s|0s|2m 40s|93.8 %|92.2 %|98.3 %|4|0",
    ]
    assert "change: of the mean, from tiresias" in told
    left_out = "note: 2 jobs of the trace were left out: 1 without a duration; 1 larger than the"
    assert left_out in told
    assert max(map(len, lines[:6])) <= 120


def test_jobs_that_all_come_at_once_offer_no_load(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = replace(an_outcome(done("a")), load=float("inf"))
    print_comparison(Trace(name="t", jobs=()), [outcome], [])
    assert capsys.readouterr().out.startswith("t: 1 jobs on 1 x 4 GPUs, all submitted at once, edl")
    assert "all submitted at once" in generate(1, capacity=4).notes[0]


def test_one_policy_changes_nothing(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(jobs, policy="tiresias") == 0
    assert "change" not in capsys.readouterr().out
    assert [policy for _, policy, _ in ASKED] == ["tiresias"]


def test_large_figures_fit_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 115,000 jobs under a heavy load."""
    ends = [1080.0] * 90 + [1_914_470.0] * 10
    jobs = [
        done(f"j{i}", start_s=end - 100, end_s=end, adjustments=12_345, preemptions=1_234)
        for i, end in enumerate(ends)
    ]
    outcomes = [
        replace(an_outcome(*jobs, policy=policy), makespan_s=100 * 86_400.0 - 3600)
        for policy in ("tiresias-gittins", "elastic-tiresias")
    ]
    print_comparison(Trace(name="t", jobs=()), outcomes, [])
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[5].split()) == (
        "tiresias-gittins 2d 5h 18m 22d 3h 22d 3h 2d 5h 99d 23h "
        "0.0 % 0.0 % 80.0 % 1,234,500 123,400"
    )
    assert max(map(len, lines)) <= 120


def test_a_narrow_terminal_gets_a_column_per_policy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edl.cli.simulate_table.WIDTH", 80)
    print_comparison(Trace(name="t", jobs=()), compared(), [])
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= 80
    rows = [re.split(r"  +", line.strip()) for line in lines]
    assert ["tiresias", "elastic-tiresias"] in rows
    assert ["mean JCT", "2m 13s", "1m 50s"] in rows
    assert ["change", "-17.5 %"] in rows
    assert ["GPU efficiency", "92.3 %", "98.3 %"] in rows


def test_policies_with_equal_results_are_noted() -> None:
    trace = Trace(name="t", jobs=())
    jobs = [done("a"), done("b", end_s=260.0)]
    fifo, static = (an_outcome(*jobs, policy=policy) for policy in ("fifo", "static"))
    other = an_outcome(done("a"), done("b", end_s=270.0), policy="tiresias")
    (note,) = trace_notes(trace, [fifo, other, static])
    assert note == "fifo and static gave every job the same times: they differ in placement only"
    srtf = an_outcome(*jobs, policy="srtf")
    assert trace_notes(trace, [fifo, srtf]) == ["fifo and srtf gave every job the same times"]
    assert trace_notes(trace, [fifo, other]) == []


def test_for_programs(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(jobs, "--json", "--seed", "7") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trace"]["jobs"] == 3
    assert sum(told["trace"]["skipped"].values()) == 2
    assert told["cluster"] == {
        "nodes": 1,
        "gpus_per_node": 4,
        "gpus": 4,
        "placement": "counts",
    }
    assert (told["mechanism"], told["prices"]["stop_s"], told["seed"]) == ("edl", 1.0, 7)
    assert told["baseline"] == "tiresias"
    assert (told["models_source"], told["models_gpu"]) == (None, None)
    assert (told["round_s"], told["knob"]) == (0.0, 0.0)
    first, second = told["policies"]
    assert (first["policy"], first["change"]) == ("tiresias", None)
    assert second["change"] == pytest.approx(-0.175)
    assert [each["jobs"] for each in second["by_size"]] == [1, 1, 1, 0]
    assert second["by_size"][3]["jct_mean_s"] is None


def promised(heading: str) -> list[str]:
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w.]+)` \|", part, re.MULTILINE)


def test_the_fields_for_programs_are_promised(
    jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """New ones may come, and nothing else changes."""
    assert simulated(jobs, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    found = []
    for name, value in told.items():
        found += [f"{name}.{inner}" for inner in value] if isinstance(value, dict) else [name]
    found = [name for name in found if not name.startswith("prices.")]
    assert sorted(promised("The fields of `--json`")) == sorted([*found, "prices"])
    policy = promised("A policy in `--json`")
    assert sorted(policy) == sorted(told["policies"][0])
    assert set(Summary.__dataclass_fields__) < set(policy)
    assert promised("A class of sizes in `--json`") == list(told["policies"][0]["by_size"][0])


def test_the_columns_of_jobs_are_promised() -> None:
    assert promised("The table of `--jobs-csv`") == list(JOB_FIELDS)


def test_a_link_is_followed_and_a_pipe_is_written_to(jobs: str, tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    link.symlink_to(target)
    assert simulated(jobs, "--jobs-csv", str(link)) == 0
    assert link.is_symlink()
    rows = target.read_bytes()
    assert rows.startswith(b"policy,id,")
    assert b"\r" not in rows
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert simulated(jobs, "--jobs-csv", str(tmp_path / "pipe")) == 0
        assert os.read(reader, 1 << 16) == rows
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    # As a shell gives one: >(gzip).
    reader, writer = os.pipe()
    try:
        assert simulated(jobs, "--jobs-csv", f"/dev/fd/{writer}") == 0
        assert os.read(reader, 1 << 16) == rows
    finally:
        os.close(reader)
        os.close(writer)


def test_a_row_per_job_and_policy(jobs: str, tmp_path: Path) -> None:
    table = tmp_path / "out.csv"
    assert simulated(jobs, "--jobs-csv", str(table)) == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [(row["policy"], row["id"]) for row in rows] == [
        (policy, job)
        for policy in ("tiresias", "elastic-tiresias")
        for job in ("job-a", "job-b", "job-c")
    ]
    assert rows[1] == {
        "policy": "tiresias",
        "id": "job-b",
        "model": "resnet50",
        "gpus": "2",
        "elastic": "true",
        "size_gpu_s": "9000.0",
        "submit_s": "0.0",
        "start_s": "100.0",
        "end_s": "200.0",
        "jct_s": "200.0",
        "wait_s": "100.0",
        "held_gpu_s": "200.0",
        "adjustments": "0",
        "preemptions": "0",
        "stopped_s": "0.0",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.csv", "out.csv"]


def test_a_report_says_how_it_was_run(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a report"
    assert simulated(jobs, "--report", str(folder), "--stop-s", "2", "--window", "1m,3m") == 0
    text = (folder / "index.html").read_text()
    assert "stop 2 s, shrink 0 s, prepare 20 s, start 20 s, preempt 0 s" in text
    assert "--policy tiresias,elastic-tiresias --nodes 1 --gpus-per-node 4" in text
    assert "--stop-s 2 --report" in text
    assert "--window 60,180" in text
    assert "2 jobs of the trace were left out" in text
    assert f"the report is {folder / 'index.html'}" in capsys.readouterr().err


# -- what is asked ---------------------------------------------------------------------------


def test_prices_of_a_mechanism_and_of_ones_own(jobs: str) -> None:
    assert simulated(jobs, "--mechanism", "stop-resume") == 0
    assert (ASKED[0][2].mechanism, ASKED[0][2].prices) == (
        "stop-resume",
        MECHANISMS["stop-resume"],
    )
    ASKED.clear()
    assert simulated(jobs, "--mechanism", "ideal", "--start-s", "0.5", "--preempt-s", "3") == 0
    prices = ASKED[0][2].prices
    assert (prices.start_s, prices.preempt_s, prices.stop_s) == (0.5, 3.0, 0.0)
    assert ASKED[0][2].mechanism == "custom"
    ASKED.clear()
    # Saying what is so anyhow makes it nothing else.
    assert simulated(jobs, "--stop-s", "1") == 0
    assert ASKED[0][2].mechanism == "edl"


def test_a_setting_is_handed_on_whole(jobs: str, tmp_path: Path) -> None:
    models = tmp_path / "models.csv"
    models.write_text("workers,throughput\n1,10\n2,18\n")
    more = ["--placement", "consolidated", "--models", str(models), "--seed", "3"]
    more += ["--report", str(tmp_path / "out"), "--window", "0,1.5h", "--knob", "2"]
    assert simulated(jobs, *more) == 0
    trace, _, setting = ASKED[0]
    assert [job.id for job in trace.jobs] == ["job-a", "job-b", "job-c"]
    assert setting == Setting(
        nodes=1,
        gpus_per_node=4,
        placement="consolidated",
        seed=3,
        models=str(models),
        window_s=(0.0, 5400.0),
        knob=2.0,
    )


def test_a_trace_is_generated_or_stretched(jobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []
    made = Trace(name="made", jobs=(TraceJob(id="job-a", submit_s=0.0, gpus=1, duration_s=1.0),))

    def generate(jobs: int, *, capacity: int, load: float, seed: int) -> Trace:
        asked.append((jobs, capacity, load, seed))
        return made

    def with_load(trace: Trace, capacity: int, load: float) -> Trace:
        asked.append((len(trace.jobs), capacity, load))
        return made

    monkeypatch.setattr("edl.simulator.generate.generate", generate)
    monkeypatch.setattr("edl.simulator.generate.with_load", with_load)
    assert simulated("generate:50") == 0
    assert simulated("generate:60", "--load", "1.2", "--seed", "5") == 0
    assert simulated(jobs, "--load", "0.5") == 0
    assert asked == [(50, 4, 0.9, 0), (60, 4, 1.2, 5), (3, 4, 0.5)]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--policy", "tiresias", *CLUSTER],
        ["--trace", "t.csv", *CLUSTER],
        ["--trace", "t.csv", "--policy", "tiresias", "--nodes", "1"],
        ["--trace", "t.csv", "--policy", "tiresias", "--nodes", "0", "--gpus-per-node", "4"],
        ["--trace", "t.csv", "--policy", "tiresias", "--nodes", "1", "--gpus-per-node", "x"],
        *(
            ["--trace", "t.csv", "--policy", "tiresias", *CLUSTER, *more]
            for more in (
                ["--load", "0"],
                ["--load", "inf"],
                ["--load", "much"],
                ["--seed", "-1"],
                ["--knob", "-1"],
                ["--round-s", "1e-9"],
                ["--knob", "nan"],
                ["--stop-s", "-1"],
                ["--prepare-s", "nan"],
                ["--mechanism", "magic"],
                ["--placement", "anywhere"],
                ["--window", "10"],
                ["--window", "20,10"],
                ["--window", "-1,10"],
                ["--window", "a,b"],
                ["--window", "1h,"],
                ["--window", "1,2,3"],
            )
        ),
    ],
)
def test_nonsense_ends_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("edl: ")


@pytest.mark.parametrize(
    ("policy", "more", "told"),
    [
        ("tetris", [], "no policy 'tetris'; choose from tiresias, elastic-tiresias"),
        ("tiresias,", [], "there is no policy ''"),
        ("tiresias, tiresias", [], "policy tiresias is given twice"),
        ("tiresias", ["--models", "/nowhere.csv"], "/nowhere.csv"),
        ("tiresias", ["--report", "/no/where"], "/no/where cannot be written: there is no such"),
        ("tiresias", ["--report", __file__], "cannot be written: it is no folder"),
        ("tiresias", ["--report", "/proc/report"], "the report /proc/report cannot be written: No"),
        ("tiresias", ["--jobs-csv", "/proc/jobs"], "--jobs-csv /proc/jobs cannot be written: No"),
        ("tiresias", ["--jobs-csv", "/no/where"], "/no/where cannot be written"),
        ("tiresias", ["--jobs-csv", "/"], "--jobs-csv / cannot be written: it is a folder"),
        ("tiresias", ["--window", "1,2"], "give --report DIR too"),
        ("tiresias", ["--knob", "1"], "--knob is of no use without a policy of elastic-tiresias"),
    ],
)
def test_what_cannot_work_is_told_before_any_work(
    policy: str, more: list[str], told: str, jobs: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(jobs, *more, policy=policy) == 2
    assert told in capsys.readouterr().err
    assert ASKED == []


@pytest.mark.parametrize("trace", ["generate:", "generate:0", "generate:-5", "generate:1e3"])
def test_no_number_of_jobs_is_told(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated(trace) == 2
    assert "is not a number of jobs" in capsys.readouterr().err


def test_more_jobs_than_memory_holds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated("generate:99999999999") == 2
    assert "at most 10,000,000 jobs are generated" in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulated("nowhere.csv") == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_help_names_policies_and_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--help"])
    assert end.value.code == 0
    told = capsys.readouterr().out
    assert "  elastic-tiresias  the same, and jobs shrink and grow\n" in told
    assert "examples:\n  edl simulate --trace generate:5000" in told


def test_examples_of_the_help_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    lines = command.EXAMPLES.replace("\\\n", " ").splitlines()[1:]
    assert len(lines) == 6
    for line in lines:
        options = make_parser().parse_args(shlex.split(line, comments=True)[1:])
        assert options.command is command.simulate


# -- signals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_nothing_written(
    number: signal.Signals, jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where the tests run under nohup, which has SIGHUP ignored.
    usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    outside = signal.signal(number, usual)

    def interrupted(*_: object, **__: object) -> list[Outcome]:
        signal.raise_signal(number)
        raise AssertionError("not interrupted")

    monkeypatch.setattr(command, "run_policies", interrupted)
    try:
        outputs = ["--report", str(tmp_path / "out"), "--jobs-csv", str(tmp_path / "out.csv")]
        assert simulated(jobs, *outputs) == 128 + number
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, outside)
    assert [path.name for path in tmp_path.iterdir()] == ["jobs.csv"]
