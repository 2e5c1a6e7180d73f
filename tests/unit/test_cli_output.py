"""Which lines of the workers' logs reach the terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.cli.output import Output
from edl.launch.jobs import JobFolder
from edl.launch.logs import Tail


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    (tmp_path / "logs").mkdir()
    return JobFolder(tmp_path)


def write(folder: JobFolder, worker: str, text: str) -> None:
    with folder.log(worker).open("a") as log:
        log.write(text)


def test_a_tail_reads_each_line_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_text("one\ntw")
    assert tail.lines() == ["one"]
    path.write_text("one\ntwo\nthr")
    assert tail.lines() == ["two"]
    assert tail.lines(rest=True) == ["thr"]


def test_a_letter_cut_in_two_is_put_together(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    whole = "ü\n".encode()
    path.write_bytes(whole[:1])
    assert tail.lines() == []
    path.write_bytes(whole)
    assert tail.lines() == ["ü"]


def test_all_workers_are_shown_with_their_names(folder: JobFolder) -> None:
    output = Output(folder, "all")
    write(folder, "w0", "a\n")
    write(folder, "w1", "b\n")
    assert output.poll(None) == [("w0", "a"), ("w1", "b")]


def test_nothing_is_shown_if_nothing_is_wanted(folder: JobFolder) -> None:
    write(folder, "w0", "a\n")
    assert Output(folder, "none").poll("w0", rest=True) == []


def test_rank_zero_is_shown_from_its_beginning(folder: JobFolder) -> None:
    output = Output(folder, "one")
    write(folder, "w0", "loading\n")
    write(folder, "w1", "loading\n")
    assert output.poll(None) == [("w0", "loading")]
    # Now w1 turns out to be rank 0: what both said is not repeated.
    write(folder, "w1", "loss 0.5\n")
    assert output.poll("w1") == [("w1", "loss 0.5")]
    write(folder, "w0", "quiet\n")
    write(folder, "w1", "loss 0.4\n")
    assert output.poll("w1") == [("w1", "loss 0.4")]


def test_when_rank_zero_leaves_the_next_one_is_shown_from_there_on(folder: JobFolder) -> None:
    output = Output(folder, "one")
    write(folder, "w1", "old\n")
    write(folder, "w0", "step 1\n")
    assert output.poll("w0") == [("w0", "step 1")]
    write(folder, "w1", "step 2\n")
    assert output.poll("w1") == [("w1", "step 2")]


def test_of_a_progress_bar_the_last_state_is_shown(folder: JobFolder) -> None:
    write(folder, "w0", "10%\r50%\r100%\n")
    assert Output(folder, "one").poll("w0") == [("w0", "100%")]
