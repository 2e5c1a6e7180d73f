"""Names of jobs, workers and slots that come from the environment or a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.runtime.identity import identify
from edl.types import Gpu

HOSTILE = ["w1,w2", "w 1", "w\n1", "\x1b[31mw1", "[red]w1[/red]", "../w1", "w1/x", "é", "w" * 129]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "secret").write_text("00" * 32)
    return {
        "EDL_JOB": "mnist-7",
        "EDL_WORKER": "w1",
        "EDL_SLOT": "node-2.example_a:0",
        "EDL_STORE": "edl://127.0.0.1:1",
        "EDL_SECRET_FILE": str(tmp_path / "secret"),
    }


@pytest.mark.parametrize("variable", ["EDL_JOB", "EDL_WORKER"])
@pytest.mark.parametrize("name", HOSTILE)
def test_name_with_other_characters_is_refused_by_its_variable(
    environment: dict[str, str], variable: str, name: str
) -> None:
    with pytest.raises(UsageError, match=variable) as caught:
        identify({**environment, variable: name})
    assert "letters, digits, '.', '_' and '-'" in str(caught.value)
    assert name not in str(caught.value) or name.isprintable()


@pytest.mark.parametrize("name", HOSTILE)
def test_slot_on_a_host_with_other_characters_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="HOST:INDEX"):
        Gpu.parse(f"{name}:0")


def test_ordinary_names_are_accepted(environment: dict[str, str]) -> None:
    identity = identify(environment)
    assert identity is not None
    assert (identity.worker, str(identity.slot)) == ("w1", "node-2.example_a:0")
