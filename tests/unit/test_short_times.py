"""Times in the terminal table of `edl simulate`."""

from __future__ import annotations

import pytest

from edl.cli.simulate_table import short_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (4.25, "4.25s"),
        (42.5, "42.5s"),
        (133.0, "2m 13s"),
        (3600.0, "1h"),
        (7885.0, "2h 11m"),
        (578_262.0, "6d 16h"),
        (86_399.6, "1d"),
    ],
)
def test_a_time_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert short_time(seconds) == text
