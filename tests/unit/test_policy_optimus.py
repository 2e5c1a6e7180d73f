"""Optimus: whose remaining time falls most by a GPU, and the rounds."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.policy.decisions import ScaleIn, ScaleOut, Start
from edl.policy.optimus import Optimus
from edl.policy.throughput import Curve
from tests.unit.clusters import Stage, arrival, engine, plain

# With 100 s on one GPU: 100, 66.7, 55.6, 50 s on 1, 2, 3, 4.
CURVE = Curve([0.0, 1, 1.5, 1.8, 2.0])


def test_gpus_go_to_whoever_gets_nearest_to_its_end() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    stage.submit(1, left_s=100, curve=CURVE)
    stage.submit(1, left_s=240, curve=CURVE)
    # Second GPUs bring 33.3 and 80 s, a third one the second job 26.7 s.
    assert stage.decide() == [
        Start(0, 2, "its turn in this round, with 2 GPUs"),
        Start(1, 2, "its turn in this round, with 2 GPUs"),
    ]


def test_a_job_that_has_much_left_gets_more() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    stage.submit(1, left_s=100, curve=CURVE)
    stage.submit(1, left_s=1000, curve=CURVE)
    assert plain(stage.decide()) == ["start 0: 1", "start 1: 3"]


def test_a_round_changes_what_runs() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    stage.submit(1, left_s=10_000, curve=CURVE)
    assert plain(stage.decide()) == ["start 0: 4"]
    stage.submit(1, left_s=100_000, curve=CURVE)
    # At 600 s the first has 8,800 s left: second to fourth GPU bring 2,933, 978 and 489 s.
    # The other gets 33,333, 11,111 and 5,556 s by the same.
    assert stage.decide(600.0) == [
        ScaleIn(0, 1, "others get faster by what it has beyond 1 GPUs"),
        Start(1, 3, "its turn in this round, with 3 GPUs"),
    ]
    stage.finish(0)
    assert stage.decide(1200.0) == [
        ScaleOut(1, 4, "nobody's remaining time falls more by them: now 4 GPUs"),
    ]


def test_whoever_comes_between_rounds_waits_for_the_next() -> None:
    stage = Stage(Optimus(interval_s=600.0))
    stage.submit(1, left_s=10_000)
    assert plain(stage.decide(0.0)) == ["start 0: 8"]
    stage.view.now = 10.0
    stage.submit(1, left_s=5200)
    assert stage.decide() == []
    assert stage.policy.wake(stage.view) == 600.0
    # Both have 5,200 s left then; no GPU more helps one as much as the other.
    assert plain(stage.decide(600.0)) == ["in 0: 4", "start 1: 4"]
    assert stage.policy.wake(stage.view) == 1200.0


def test_a_round_that_began_in_an_idle_cluster_is_made_up_for_at_once() -> None:
    stage = Stage(Optimus(interval_s=600.0))
    stage.submit(1, most=1)
    stage.decide(0.0)
    stage.finish(0)
    assert stage.decide(1.0) == []
    stage.view.now = 4321.0
    stage.submit(1, most=1)
    assert plain(stage.decide()) == ["start 1: 1"]
    assert stage.policy.wake(stage.view) == 4800.0


@pytest.mark.parametrize("interval_s", [0.1, 0.3, 7.7])
def test_every_round_is_planned_once_whatever_floats_make_of_it(interval_s: float) -> None:
    policy = Optimus(interval_s=interval_s)
    stage = Stage(policy)
    now = 0.0
    for number in range(200):
        job = stage.submit(1, most=1)
        assert plain(stage.decide(now)) == [f"start {number}: 1"], now
        stage.finish(job.key)
        assert stage.decide(now) == []
        wake = policy.wake(stage.view)
        assert wake is not None
        assert wake > now
        now = wake


def test_with_no_interval_every_event_is_a_round() -> None:
    stage = Stage(Optimus(interval_s=0.0))
    for now in (0.0, 0.5, 0.5):
        stage.view.now = now
        stage.submit(1, most=1)
        assert len(stage.decide()) == 1
    assert stage.policy.wake(stage.view) is None


def test_in_a_crowd_those_that_came_first_have_their_least() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    stage.submit(4, least=3)
    stage.submit(4, least=2)
    stage.submit(1)
    stage.submit(1)
    assert plain(stage.decide()) == ["start 0: 3", "start 2: 1"]


def test_jobs_that_are_not_elastic_have_what_was_asked_for_or_nothing() -> None:
    stage = Stage(Optimus())
    stage.submit(5, elastic=False)
    stage.submit(5, elastic=False)
    stage.submit(2, elastic=False, left_s=1e6)
    assert plain(stage.decide()) == ["start 0: 5", "start 2: 2"]


def test_a_job_that_ran_by_backfilling_gives_way_to_one_that_came_before_it() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    for gpus in (2, 4, 2):
        stage.submit(gpus, elastic=False)
    assert plain(stage.decide()) == ["start 0: 2", "start 2: 2"]
    stage.finish(0)
    assert plain(stage.decide(600.0)) == ["stop 2", "start 1: 4"]


def test_gpus_that_help_only_together_are_given_together() -> None:
    # A second one brings nothing, the second and the third half as much again.
    curve = Curve([0.0, 10, 10, 15])
    stage = Stage(Optimus(), gpus_per_node=3)
    stage.submit(1, curve=curve)
    assert plain(stage.decide()) == ["start 0: 3"]
    stage = Stage(Optimus(), gpus_per_node=2)
    stage.submit(1, curve=curve)
    assert plain(stage.decide()) == ["start 0: 1"]


def test_nobody_gets_a_gpu_that_slows_it_down_or_more_than_its_most() -> None:
    stage = Stage(Optimus())
    stage.submit(1, curve=Curve([0.0, 10, 18, 12, 30], peak=False), most=3)
    assert plain(stage.decide()) == ["start 0: 2"]


def test_a_job_that_tells_nothing_counts_as_an_hour() -> None:
    stage = Stage(Optimus(), gpus_per_node=4)
    stage.submit(1, left_s=None, curve=CURVE)
    stage.submit(1, left_s=60, curve=CURVE)
    assert plain(stage.decide()) == ["start 0: 3", "start 1: 1"]


def test_jobs_end_though_rounds_are_rare() -> None:
    run = engine([arrival(10.0 * i, 2, 50.0) for i in range(6)], Optimus(interval_s=300.0))
    run.run()
    assert [done.start_s for _, done in run.finished] == [0.0, *[300.0] * 4, 300.0]


def test_the_interval_is_checked() -> None:
    with pytest.raises(UsageError, match="interval_s is -1"):
        Optimus(interval_s=-1.0)
