"""Section 2.2's sum: what a GPU is worth that is idle for four minutes, by adjustments' price."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.policy.view import Job
from edl.simulator.cost import SimulatedJob
from edl.simulator.setting import MECHANISMS, Prices
from tests.paper.cluster import linear

IDLE_S = 240.0


def work_done(prices: Prices, *, leave_s: float) -> float:
    """GPU*s that a job on 4 GPUs does in four minutes with a fifth that goes again at `leave_s`."""
    curve = linear()
    job = SimulatedJob(
        Job(0, "job", gpus=4, curve=curve, submitted_s=0.0), 1e6, list(curve.rate), prices
    )
    useful: list[float] = []

    def hear(begin: float, end: float, worth: float) -> None:
        useful.append((end - begin) * worth)

    job.start(0.0, 4)
    job.stalled_s = 0.0  # it has been running all the time
    job.grow(0.0, 1)
    job.aim()
    while job.next_s < leave_s:
        now = job.next_s
        job.settle(now, hear)
        job.take_in_lot(now)
        job.aim()
    job.settle(leave_s, hear)
    job.shrink(leave_s, 1)
    job.settle(IDLE_S, hear)
    assert sum(useful) == pytest.approx(1e6 - job.left_gpu_s)
    return 1e6 - job.left_gpu_s


def test_stop_resume_at_30_s_an_adjustment_does_900_gpu_s_and_without_the_gpu_it_is_960() -> None:
    """ "Training is conducted with 5 GPUs for at most 3 minutes." """
    slow = replace(MECHANISMS["stop-resume"], stop_s=30.0, shrink_s=30.0)
    assert work_done(slow, leave_s=IDLE_S - 30.0) == pytest.approx(5 * 180)
    assert work_done(slow, leave_s=IDLE_S - 30.0) < 4 * IDLE_S


def test_edl_does_1175_of_1200() -> None:
    """20 s on 4 GPUs while the fifth is prepared, a second of standing still, 219 s on 5."""
    done = work_done(MECHANISMS["edl"], leave_s=IDLE_S)
    assert done == pytest.approx(4 * 20 + 5 * 219)
    assert done / work_done(MECHANISMS["ideal"], leave_s=IDLE_S) == pytest.approx(1175 / 1200)
