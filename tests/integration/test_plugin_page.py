"""docs/writing-a-plugin.md: its plug-in trains as it stands there, and it quotes what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.conftest import Start

pytestmark = pytest.mark.paired

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "writing-a-plugin.md"
BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks() -> dict[str, str]:
    """The page's Python blocks by the file that each names in its first line."""
    text = PAGE.read_text()
    found = dict(BLOCK.findall(text))
    assert len(found) == text.count("```python\n") == 5
    return found


@pytest.fixture
def written(tmp_path: Path) -> Path:
    for name in ("jot.py", "edl_jot.py", "train.py"):
        (tmp_path / name).write_text(blocks()[name])
    return tmp_path


def test_what_is_quoted_is_in_the_source() -> None:
    quoted = {name: text for name, text in blocks().items() if name.startswith("src/")}
    assert len(quoted) == 2
    for name, text in quoted.items():
        assert text in (ROOT / name).read_text(), f"{PAGE.name} quotes {name} as it is no more"


def test_the_plug_in_of_the_page_trains_alone(written: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(written / "train.py")],
        env={**os.environ, "PYTHONPATH": f"{written}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[ 3. -1.] 320\n", done.stderr


def test_the_plug_in_of_the_page_trains_with_workers_that_come_and_go(
    written: Path, start: Start
) -> None:
    script = written / "train.py"
    # Long enough for a newcomer.
    slowly = "time.sleep(0.01)\n        edl.notify_batch_end()"
    script.write_text(
        "import time\n" + script.read_text().replace("edl.notify_batch_end()", slowly)
    )
    job = start(str(script), workers=2)
    assert job.scale_out(1) is not None
    assert job.scale_in(1) is not None
    result = job.wait(60)
    assert (result.state, result.steps) == ("finished", 320), result
    logs = [job.logs(worker) for worker in ("w0", "w1", "w2")]
    said = [line for log in logs for line in log if line.startswith("[")]
    assert said == ["[ 3. -1.] 320"] * 2
