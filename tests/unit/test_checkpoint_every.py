"""`--checkpoint-every`: steps, a time, or both; anything else is refused in clear words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edl.cli.main import make_parser
from edl.client import run
from edl.errors import UsageError
from edl.launch.base import JobSpec, checkpoint_interval

SPEC = JobSpec(script="train.py", checkpoint="ck")


@pytest.mark.parametrize(
    ("text", "interval"),
    [
        ("500", (500, 0.0)),
        ("10m", (0, 600.0)),
        ("90s", (0, 90.0)),
        ("1.5h", (0, 5400.0)),
        ("500,10m", (500, 600.0)),
        ("10m, 500", (500, 600.0)),
    ],
)
def test_an_interval_is_steps_or_a_time_or_both(text: str, interval: tuple[int, float]) -> None:
    assert checkpoint_interval(text) == interval


@pytest.mark.parametrize(
    "text", ["0", "-5", "0m", "ten", "5x", "1.5", "", "10,20", "5m,6m", "nanm"]
)
def test_another_text_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"--checkpoint-every .*: give steps \(500\), a time \(90s"
    ):
        checkpoint_interval(text)


def test_it_needs_a_folder() -> None:
    with pytest.raises(UsageError, match="--checkpoint-every 500 needs --checkpoint URL"):
        replace(SPEC, checkpoint="", checkpoint_every="500").check()
    replace(SPEC, checkpoint_every="500").check()
    with pytest.raises(UsageError, match="--checkpoint-every 5x"):
        replace(SPEC, checkpoint_every="5x").check()


def test_the_command_line_has_it() -> None:
    options = make_parser().parse_args(
        ["run", "--checkpoint", "ck", "--checkpoint-every", "10m", "train.py"]
    )
    assert options.checkpoint_every == "10m"


def test_python_has_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(UsageError, match="--checkpoint-every 0: give steps"):
        run(str(script), checkpoint=str(tmp_path / "ck"), checkpoint_every=0)
