"""A loop over shared arrays that somebody leaves early leaves everybody with the same arrays."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import Start

pytestmark = pytest.mark.paired


@pytest.mark.parametrize("workers", [2, 3])
def test_whoever_leaves_a_loop_ends_it_for_all(start: Start, workers: int) -> None:
    job = start("plain_loops.py", workers=workers)
    result = job.wait(60)
    assert result.state == "finished", result.why
    told = [
        [json.loads(line) for line in job.logs(f"w{n}") if line.startswith("[")]
        for n in range(workers)
    ]
    # Before its gradients were exchanged the step is void; after that it counts.
    assert [steps for steps, _, _ in told[0]] == [4, 4, 10, 13, 25]
    assert all(lines == told[0] for lines in told)
    # A void step leaves no trace in the model: the second epoch had no other.
    assert told[0][1][1] == told[0][0][1]
