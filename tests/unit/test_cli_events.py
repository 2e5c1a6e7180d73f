"""What `edl events` says of a request, and what the command says of a file that it cannot write."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from edl.cli import job as commands
from edl.cli.main import main
from edl.client import Event


class AnyJob:
    def __init__(self, name: str) -> None:
        self.name = name

    def events(self, since: int = 0, *, follow: bool = False) -> Iterator[Event]:
        yield Event(
            seq=1, time=0.0, what="adjust.accepted", request_id="4f2", generation=1, step=5,
            fields={},
        )  # fmt: skip


def test_a_request_that_nothing_is_known_of_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "Job", AnyJob)
    assert main(["events", "mnist", "--request", "4f2"]) == 0
    assert "adjust.accepted" in capsys.readouterr().out
    assert main(["events", "mnist", "--request", "4f3"]) == 2
    assert "job mnist tells nothing of request 4f3" in capsys.readouterr().err


def test_a_full_disk_is_told_with_the_files_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(name: str) -> AnyJob:
        raise OSError(errno.ENOSPC, "No space left on device", "jobs/mnist/info.json")

    monkeypatch.setattr(commands, "Job", full)
    monkeypatch.setattr("edl.cli.run.give_up_stdout", lambda: None)
    assert main(["events", "mnist"]) == 1
    said = "edl: cannot write jobs/mnist/info.json: No space left on device\n"
    assert capsys.readouterr().err == said
