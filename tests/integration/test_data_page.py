"""The examples of docs/data.md run as they stand there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.integration.conftest import SCRIPTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "data.md"


def test_every_python_block_of_the_page_runs(tmp_path: Path) -> None:
    blocks = PAGE.read_text().count("```python\n")
    assert blocks >= 7
    done = subprocess.run(
        [sys.executable, "-W", "error", str(SCRIPTS / "page.py"), str(PAGE), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == f"{blocks} of {blocks} blocks ran\n", done.stderr
