"""What every test has: slots of its own, as if it had the machine to itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def slots_of_this_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For jobs of fixtures that outlive one test."""
    before = os.environ.get("EDL_SLOTS_DIR")
    os.environ["EDL_SLOTS_DIR"] = str(tmp_path_factory.mktemp("session") / "slots")
    yield
    if before is None:
        del os.environ["EDL_SLOTS_DIR"]
    else:
        os.environ["EDL_SLOTS_DIR"] = before


@pytest.fixture(autouse=True)
def slots_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is still ending when the next test begins does not shift its slots."""
    monkeypatch.setenv("EDL_SLOTS_DIR", str(tmp_path / "slots"))
