"""`pytest tests/scenarios --rewrite` writes the transcripts anew; then read the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", default=False, help="write the transcripts anew"
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    # Not known where this folder is reached through a higher one; then nothing is rewritten.
    return bool(request.config.getoption("--rewrite", default=False))
