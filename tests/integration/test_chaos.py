"""Nothing is lost, whatever befalls the workers; more of the same in bench/chaos.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.chaos import chaos

pytestmark = pytest.mark.paired

QUICK = range(5)
MORE = range(5, 20)


@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)]
)
def test_nothing_is_lost(
    tmp_path: Path, template: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("EDL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("EDL_TEMPLATE", template)
    report = chaos(seed, tmp_path)
    assert report.happened.total() > 0
    assert report.ended > 0
