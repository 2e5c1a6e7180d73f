"""Promotion of those that waited for long, where a start costs something: every run ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.policy.decisions import Requeue
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.gittins import Gittins
from edl.policy.tiresias import Tiresias
from edl.simulator.engine import Arrival, Engine
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.run import make_policy, simulate
from edl.simulator.setting import Prices, Setting
from tests.unit.clusters import Drawn, Stage, arrival, drawn, engine, plain

QUEUED: dict[str, Callable[..., Tiresias]] = {
    "tiresias": Tiresias,
    "tiresias-gittins": Gittins,
    "elastic-tiresias": ElasticTiresias,
}
# An event for each of some hundred promotions and preemptions is plenty for ten jobs.
ENOUGH = 20_000


def ends(run: Engine) -> bool:
    steps = 0
    while run.step():
        steps += 1
        if steps == ENOUGH:
            return False
    return True


def as_large_as_all(jobs: int) -> list[Arrival]:
    """The first queue's 500 GPU*s are over in 8 s, a start takes 20 s."""
    return [arrival(0.0, 64, 1000.0, elastic=False, name=f"j{n}") for n in range(jobs)]


@pytest.mark.parametrize("name", QUEUED)
@pytest.mark.parametrize("knob", [0.01, 0.5, 4.0])
def test_large_jobs_do_not_stop_each_other_for_ever(name: str, knob: float) -> None:
    run = engine(as_large_as_all(3), QUEUED[name](knob=knob), nodes=8, mechanism="edl")
    assert ends(run)
    assert len(run.finished) == 3
    # Starts that do not pay take no more time than training does.
    assert run.now < 2 * 3000.0


@pytest.mark.parametrize("name", QUEUED)
@pytest.mark.parametrize("together", [False, True])
@given(
    case=drawn(),
    knob=st.sampled_from([0.001, 0.3, 2.0]),
    start_s=st.sampled_from([0.0, 5.0, 60.0]),
    preempt_s=st.sampled_from([0.0, 10.0, 600.0]),
)
@settings(max_examples=15, deadline=None)
def test_every_run_ends_at_any_price(
    name: str, together: bool, case: Drawn, knob: float, start_s: float, preempt_s: float
) -> None:
    run = case.engine(QUEUED[name](knob=knob, quanta=(60.0, 500.0)), together=together)
    run.prices = Prices(
        stop_s=1.0, shrink_s=1.0, prepare_s=5.0, start_s=start_s, preempt_s=preempt_s
    )
    assert ends(run)
    assert len(run.finished) == len(case.arrivals)


def starved(told: bool) -> Stage:
    """The second ran from 10 to 20 s, and since then the first does."""
    stage = Stage(Tiresias(quanta=(80.0,), knob=2.0))
    for now in (0.0, 10.0):
        stage.view.now = now
        stage.submit(8, left_s=100.0 if told else None)
        stage.decide()
    assert plain(stage.decide(20.0)) == ["queue 1: 1", "stop 1", "start 0: 8"]
    return stage


def test_nobody_is_promoted_who_has_done_nothing() -> None:
    stage = starved(told=True)
    job = stage.view.jobs[1]
    assert job.done_gpu_s == 80.0
    # A quarter of what its user's GPUs do in the 10 s in which it ran.
    job.done_gpu_s = 20.0
    assert stage.policy.wake(stage.view) == 40.0
    job.done_gpu_s = 19.9
    stage.policy.forget()
    assert stage.policy.wake(stage.view) is None
    assert stage.decide(1000.0) == []


def test_what_a_preemption_loses_does_not_count_as_done() -> None:
    stage = starved(told=True)
    job = stage.view.jobs[1]
    stage.book.tell(20.0, job, 100.0, 0.0, lost_gpu_s=70.0)
    assert job.done_gpu_s == 10.0


def test_where_nobody_tells_of_progress_who_ran_made_some() -> None:
    stage = starved(told=False)
    assert stage.view.jobs[1].done_gpu_s is None
    assert stage.policy.wake(stage.view) == 40.0


def test_a_promotion_is_earned_anew() -> None:
    stage = starved(told=True)
    promoted = stage.decide(40.0)
    assert isinstance(promoted[0], Requeue)
    assert stage.view.jobs[1].done_gpu_s == 0.0


def test_the_knob_reaches_those_with_queues() -> None:
    for name in QUEUED:
        policy = make_policy(name, knob=3.0)
        assert isinstance(policy, Tiresias)
        assert policy.knob == 3.0
    assert make_policy("fifo", knob=3.0).name == "fifo"
    jobs = [TraceJob(id=f"j{n}", submit_s=0.0, gpus=8, duration_s=900.0) for n in range(3)]
    trace = Trace(name="three", jobs=tuple(jobs))
    waits = [
        max(job.wait_s for job in simulate(trace, "tiresias", setting).jobs)
        for setting in (
            Setting(nodes=1, gpus_per_node=8),
            Setting(nodes=1, gpus_per_node=8, knob=0.2),
        )
    ]
    assert waits[1] != waits[0]
