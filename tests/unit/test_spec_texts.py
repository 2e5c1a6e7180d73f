"""Texts of a job that no process could be started with."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.launch.base import JobSpec


@pytest.mark.parametrize(
    "spec",
    [
        JobSpec(script="train\0.py"),
        JobSpec(script="train.py", args=("--lr", "0.1\0")),
        JobSpec(script="train.py", env={"LR": "0.1\0"}),
        JobSpec(script="train.py", env={"L\0R": "0.1"}),
    ],
)
def test_nul_character_is_refused(spec: JobSpec) -> None:
    with pytest.raises(UsageError, match="has a NUL character"):
        spec.check()


@pytest.mark.parametrize("name", ["", "LR=0.1"])
def test_environment_variable_that_the_system_does_not_take_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="its name must not be empty and not have '='"):
        JobSpec(script="train.py", env={name: "1"}).check()
