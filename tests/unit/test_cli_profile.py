"""What `edl profile` prints and writes; the measuring itself is tried in test_profiling.py."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from edl.cli import profile as command
from edl.cli.main import main, make_parser
from edl.protocol.profiling import Profile, judged, row_of

FOUND = judged(
    "mnist",
    [
        row_of(workers=2, samples=1600, seconds=1.0, steps=20),
        row_of(workers=1, samples=1000, seconds=1.0, steps=20),
    ],
    notes=["not measured with 3 workers: no slot"],
)


class AnyJob:
    name = "mnist"
    asked: tuple[object, ...] = ()

    def __init__(self, handle: str, *, timeout_s: float) -> None:
        assert handle == self.name

    def profile(self, *wish: object, **options: object) -> Profile:
        AnyJob.asked = (*wish, options["steps"], options["warm_up"])
        return FOUND


@pytest.fixture(autouse=True)
def any_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Job", AnyJob)


def test_a_table_for_the_eye(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "mnist", "--min-p", "1", "--max-p", "3"]) == 0
    assert AnyJob.asked == (1, 3, 20, 5)
    said = capsys.readouterr().out
    lines = [line.split() for line in said.splitlines() if line.strip()]
    assert ["2", "1,600.0", "800.0", "0.80", "50.0", "20"] in lines
    assert ["1", "*", "1,000.0", "1,000.0", "1.00", "50.0", "20"] in lines
    assert "best use of each worker: with 1 (*)" in said
    assert "most workers at 80 % efficiency or more: 2" in said
    assert "not measured with 3 workers: no slot" in said


BEFORE = "seen before, by a profile with a range (samples/s a worker)"
UNKNOWN = "efficiency: unknown, for no other number of workers was measured in this job"


@pytest.mark.parametrize(
    ("known", "told"),
    [
        (
            {},
            [f"{UNKNOWN}; `edl profile mnist --min-p P` does, from as many as now down to P"],
        ),
        (
            {1: 1000.0, 2: 700.0, 4: 500.0},
            [
                f"{BEFORE}: 1,000.0 with 1, 500.0 with 4",
                "best use of each worker: seen before with 1; efficiency is beside that",
            ],
        ),
        (
            {4: 500.0},
            [f"{BEFORE}: 500.0 with 4", "best use of each worker: now, with 2 (*)"],
        ),
    ],
)
def test_what_is_measured_now_is_told_apart_from_what_was_seen_before(
    known: dict[int, float],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone = row_of(workers=2, samples=1600, seconds=1.0, steps=20)
    found = judged("mnist", [alone], known=known)
    monkeypatch.setattr(AnyJob, "profile", lambda self, *wish, **options: found)
    assert main(["profile", "mnist"]) == 0
    said = capsys.readouterr().out
    now = "now: the job as it is, with 2 workers, over its last 20 steps"
    assert said.splitlines()[-1 - len(told) :] == [now, *told]
    # Neither is anything told to be the most of one row, nor starred that is not there.
    assert "most samples" not in said
    assert said.count("*") == 2 * (found.best == 2)


def test_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "p.csv"
    assert main(["profile", "mnist", "--json", "--csv", str(table), "--steps", "7"]) == 0
    assert AnyJob.asked == (None, None, 7, 5)
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["best"]) == ("mnist", 1)
    assert [row["efficiency"] for row in told["rows"]] == [0.8, 1.0]
    assert table.read_text().splitlines() == [
        "workers,throughput,per_worker,efficiency,step_s,steps",
        "2,1600.0,800.0,0.8,0.05,20",
        "1,1000.0,1000.0,1.0,0.05,20",
    ]


def test_the_columns_of_the_table_are_promised(tmp_path: Path) -> None:
    """`edl simulate` and others read them: new ones may come at the end, and nothing else."""
    page = (Path(__file__).parents[2] / "docs/profiling.md").read_text()
    promised = re.findall(r"^\| `(\w+)` \|", page.split("## The table of `--csv`")[1], re.MULTILINE)
    columns = ["workers", "throughput", "per_worker", "efficiency", "step_s", "steps"]
    assert promised == columns
    assert list(command.FIELDS[: len(columns)]) == columns


def test_nothing_to_compare_with_is_an_empty_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "p.csv"
    alone = judged("mnist", [row_of(workers=2, samples=1600, seconds=1.0, steps=20)])
    monkeypatch.setattr(AnyJob, "profile", lambda self, *wish, **options: alone)
    assert main(["profile", "mnist", "--json", "--csv", str(table)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["rows"][0]["efficiency"], told["best"]) == (None, None)
    assert table.read_text().splitlines()[1] == "2,1600.0,800.0,,0.05,20"


def test_a_job_that_is_not_put_back_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    left = replace(FOUND, restored=False)
    monkeypatch.setattr(AnyJob, "profile", lambda self, *wish, **options: left)
    assert main(["profile", "mnist", "--min-p", "1"]) == 1


@pytest.mark.parametrize("found", [FOUND, judged("mnist", FOUND.rows[:1])])
def test_a_picture(
    found: Profile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = tmp_path / "p.png"
    measured: list[object] = []

    def measure(self: AnyJob, *wish: object, **options: object) -> Profile:
        measured.append(wish)
        return found

    monkeypatch.setattr(AnyJob, "profile", measure)
    assert main(["profile", "mnist", "--min-p", "1", "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    measured.clear()
    assert main(["profile", "mnist", "--min-p", "1", "--plot", str(tmp_path / "p.nonsense")]) == 2
    assert "p.nonsense is of no kind that can be drawn; known:" in capsys.readouterr().err
    assert not measured, "it is told before minutes of measuring"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interruption_and_then_what_it_was(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Also where the tests run under nohup, which has SIGHUP ignored.
    outside = signal.signal(number, signal.SIG_DFL)
    put_back = []

    def interrupted(self: object, *wish: object, **options: object) -> Profile:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            put_back.append(self)
            raise
        raise AssertionError("not interrupted")

    monkeypatch.setattr(AnyJob, "profile", interrupted)
    try:
        assert main(["profile", "mnist", "--min-p", "1"]) == 128 + number
        assert put_back
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, outside)


def test_a_script_comes_last_with_its_arguments() -> None:
    options = make_parser().parse_args(["profile", "--max-p", "4", "--script", "t.py", "--lr", "1"])
    assert (options.job, options.max_p, options.script) == (None, 4, ["t.py", "--lr", "1"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "give either the name of a job that runs, or --script"),
        (["mnist", "--script", "t.py"], "give either the name"),
        (["mnist", "--csv", "/nowhere/p.csv"], "/nowhere/p.csv cannot be written"),
    ],
)
def test_nonsense_is_told_before_anything_is_measured(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    AnyJob.asked = ()
    assert main(["profile", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert AnyJob.asked == ()


def test_a_missing_matplotlib_is_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> object:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", none)
    assert main(["profile", "mnist", "--plot", "p.png"]) == 2
    assert "pip install 'edl-elastic[plot]'" in capsys.readouterr().err
