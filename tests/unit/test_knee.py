"""The knee of a profile: the most workers of which each is still used well."""

from __future__ import annotations

import pytest

from edl.protocol.profiling import judged, row_of


@pytest.mark.parametrize(
    ("speeds", "knee"),
    [
        ({4: 1316.7, 3: 1126.2, 2: 885.4, 1: 462.1}, 3),
        ({2: 1000.0, 1: 1000.0}, 1),
        ({8: 8000.0, 4: 4000.0}, 8),
        ({1: 462.1}, None),
    ],
)
def test_the_knee_is_the_largest_number_with_80_percent_efficiency(
    speeds: dict[int, float], knee: int | None
) -> None:
    rows = [row_of(workers=p, samples=speed, seconds=1.0, steps=20) for p, speed in speeds.items()]
    assert judged("mnist", rows).knee == knee


def test_what_was_measured_before_counts_too() -> None:
    rows = [row_of(workers=2, samples=1000.0, seconds=1.0, steps=20)]
    assert judged("mnist", rows, known={1: 510.0, 3: 480.0, 4: 300.0}).knee == 3
