"""The examples of docs/data.md run as they stand there."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import SCRIPTS

pytestmark = pytest.mark.paired

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def test_every_python_block_of_the_page_runs(tmp_path: Path) -> None:
    text = PAGE.read_text()
    absent = importlib.util.find_spec("tensorflow") is None
    check(tmp_path, blocks=text.count("```python\n") - absent * text.count("import tensorflow"))


@pytest.mark.slow
def test_every_python_block_of_the_page_runs_with_tensorflow(tmp_path: Path) -> None:
    text = PAGE.read_text()
    assert "import tensorflow" in text
    check(tmp_path, blocks=text.count("```python\n"))


def check(folder: Path, *, blocks: int) -> None:
    assert blocks >= 7
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPTS / "page.py"), str(PAGE), str(folder)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == f"{blocks} of {blocks} blocks ran\n", done.stderr
