"""Slow is not dead: a minute without a step evicts nobody. And steps need no control message."""

from __future__ import annotations

import time

import pytest

from tests.integration.conftest import Start

pytestmark = pytest.mark.paired


def test_a_minute_without_a_step_evicts_nobody(start: Start) -> None:
    # Both at once: a pausing job needs no processor.
    began = time.monotonic()
    jobs = [start("pauses.py", "--who", who, workers=3, name=who) for who in ("one", "all")]
    for job in jobs:
        assert job.wait(180).state == "finished"
        ends = [line for line in job.logs() if "steps" in line]
        assert len(ends) == 3
        assert all(line.endswith("steps 30 workers 3") for line in ends)
        assert not any(event.what == "worker.lost" for event in job.events())
    assert time.monotonic() - began > 60.0


def test_a_step_needs_no_control_message(start: Start) -> None:
    # Every agent sleeps until 80 steps are done: one message on their path, and none would be.
    job = start("agent_asleep.py", workers=3)
    assert job.wait(120).state == "finished"
    ends = [line for line in job.logs() if "asleep for" in line]
    assert len(ends) == 3
    assert all(line.endswith("steps 100 asleep for 80") for line in ends)
