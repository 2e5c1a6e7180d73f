"""The command line: what is understood, and how nonsense is told."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from edl.cli.main import main, make_parser
from edl.cli.run import store_url

COMMANDS = sorted(
    name
    for action in make_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
    for name in action.choices
)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"examples:\n  edl {command}" in capsys.readouterr().out


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"simulate"}))
def test_examples_in_help_can_be_parsed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    examples = capsys.readouterr().out.split("examples:\n")[1].splitlines()
    for line in examples:
        # An explanation may follow, after several spaces.
        program, *arguments = re.split(r"  +", line.strip())[0].split()
        assert program == "edl"
        assert make_parser().parse_args(arguments).command is not None


def test_the_commands_are_these() -> None:
    assert [
        *("audit", "clean", "events", "logs", "migrate", "profile", "ps", "run"),
        *("scale-in", "scale-out", "simulate", "status", "stop"),
    ] == COMMANDS


def test_what_follows_the_script_is_for_the_script() -> None:
    options = make_parser().parse_args(["run", "-n", "3", "train.py", "-n", "7", "--min", "x"])
    assert (options.workers, options.script, options.args) == (
        3,
        "train.py",
        ["-n", "7", "--min", "x"],
    )


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["run"],
        ["run", "-n", "0", "train.py"],
        ["run", "--max", "-1", "train.py"],
        ["run", "--output", "some", "train.py"],
        ["run", "--max-restarts", "-1", "train.py"],
        ["run", "--keep", "0", "train.py"],
        ["run", "--grace", "0", "train.py"],
        ["run", "--warm", "-1", "train.py"],
        ["run", "--warm", "some", "train.py"],
        ["scale-out", "mnist"],
        ["scale-out", "mnist", "--add", "0"],
        ["scale-out", "mnist", "--add", "1", "--gpus", "localhost:0"],
        ["scale-out", "mnist", "--add", "1", "--timeout", "soon"],
        ["scale-out", "mnist", "--add", "1", "--for", "0s"],
        ["scale-out", "mnist", "--add", "1", "--for", "m"],
        ["scale-out", "mnist", "--add", "1", "--for", "4y"],
        ["clean", "--older-than", "soon"],
        ["scale-in", "mnist", "--remove", "0"],
        ["migrate", "mnist"],
        ["migrate", "mnist", "--to", "localhost:1"],
        ["migrate", "mnist", "--from", "localhost:0"],
        ["migrate", "mnist", "--from", "localhost:0", "--workers", "w0", "--to", "localhost:1"],
        ["migrate", "mnist", "--from", "localhost:0", "--to", "localhost:1", "--add", "1"],
        ["migrate", "mnist", "--from", "localhost:0", "--add", "0"],
    ],
)
def test_nonsense_ends_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("edl: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "mnist"],
        ["logs", "mnist"],
        ["events", "mnist"],
        ["stop", "mnist"],
        ["scale-out", "mnist", "--add", "1"],
        ["scale-in", "mnist", "--remove", "1"],
    ],
)
def test_an_unknown_job_ends_with_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "edl: there is no job 'mnist'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "script 'nowhere.py' does not exist"),
        (["."], "script '.' is a folder"),
        (["-n", "1", "--min", "2", "SELF"], "-n 1 is under --min 2"),
        (["-n", "3", "--max", "2", "SELF"], "-n 3 is over --max 2"),
        (["-n", "3", "--slots", "2", "SELF"], "2 of 2"),
        (["--name", "a/b", "SELF"], "job name 'a/b'"),
        (["--keep", "3", "--max", "2", "SELF"], "--keep 3 is not from 1 to --max 2"),
        (["--checkpoint", "", "SELF"], "--checkpoint is empty"),
        (["--checkpoint", "SELF", "SELF"], "no checkpoints in"),
        (["--store", "", "SELF"], "--store is empty"),
        (["--store", "@nowhere.url", "SELF"], "--store @nowhere.url: the file cannot be read"),
        (["--store", "consul://host:1", "SELF"], "of no known kind"),
        (["--host", "192.0.2.1", "SELF"], "cannot listen on 192.0.2.1"),
    ],
)
def test_a_job_that_cannot_start_says_why_and_leaves_nothing(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["run", *(__file__ if each == "SELF" else each for each in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.glob("jobs/*")) == []


def test_no_jobs_are_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    assert "no jobs" in capsys.readouterr().out
    assert main(["ps", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_a_password_on_the_command_line_is_told_and_one_in_a_file_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "store.url"
    file.write_text("etcd://me:s3same@127.0.0.1:9\n")
    assert store_url(f"@{file}") == "etcd://me:s3same@127.0.0.1:9"
    assert capsys.readouterr().err == ""
    assert store_url("etcd://me:s3same@127.0.0.1:9") == "etcd://me:s3same@127.0.0.1:9"
    told = capsys.readouterr().err
    assert "give --store @FILE" in told
    assert "s3same" not in told
    assert store_url(None) == ""


@pytest.mark.parametrize(
    ("text", "for_s"), [("240", 240.0), ("240s", 240.0), ("4m", 240.0), ("1h", 3600.0)]
)
def test_workers_are_added_for_a_time(text: str, for_s: float) -> None:
    options = make_parser().parse_args(["scale-out", "mnist", "--add", "1", "--for", text])
    assert options.for_s == for_s
    assert make_parser().parse_args(["scale-out", "mnist", "--add", "1"]).for_s is None
