"""A loop that exchanges no gradients is told of, once."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edl.plugin import face


def steps(monkeypatch: pytest.MonkeyPatch, reduced: list[bool], *, size: int, last: bool) -> None:
    monkeypatch.setattr(face, "_silent", 0)
    for each in reduced:
        session = SimpleNamespace(
            group=SimpleNamespace(size=size), piece=SimpleNamespace(last=last)
        )
        plugin: Any = SimpleNamespace(session=session, reduced=each)
        face._watch_reduction(cast(face.Plugin, plugin))


@pytest.mark.parametrize(
    ("reduced", "size", "last", "times"),
    [
        ([False] * 9, 2, True, 1),
        ([False, False, True, False, False, False], 2, True, 0),
        ([False] * 9, 1, True, 0),
        ([False] * 9, 2, False, 0),
    ],
    ids=["never", "seldom", "alone", "a micro-batch"],
)
def test_workers_that_exchange_nothing_are_told_so_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    reduced: list[bool],
    size: int,
    last: bool,
    times: int,
) -> None:
    with caplog.at_level(logging.WARNING, logger="edl"):
        steps(monkeypatch, reduced, size=size, last=last)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * times
