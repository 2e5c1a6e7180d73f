"""Elastic-Tiresias, rule by rule: compaction when many wait, expansion when nobody does."""

from __future__ import annotations

import pytest

from edl.policy.decisions import ScaleIn, ScaleOut, Start
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.throughput import Curve
from tests.unit.clusters import FALLING, Stage, plain


def policy(crowd: int = 0, share: float = 0.5) -> ElasticTiresias:
    """Queue 0 is left after one second on 8 GPUs."""
    return ElasticTiresias(quanta=(8.0,), crowd=crowd, share=share)


def crowded(gpus: int = 4, curve: Curve = FALLING, *, elastic: bool = True) -> Stage:
    """Two jobs with 4 GPUs each, not in the first queue any more, and another one."""
    stage = Stage(policy())
    stage.submit(4, curve=curve, elastic=elastic)
    stage.submit(4, curve=curve, elastic=elastic)
    stage.decide()
    stage.decide(2.0)
    assert stage.held() == {0: 4, 1: 4}
    for job in stage.view.jobs.values():
        # The newcomer is in their queue, so that they do not just give way to it.
        assert job.queue == 1
    job = stage.submit(gpus, curve=FALLING)
    job.queue = 1
    return stage


# -- R1 --------------------------------------------------------------------------------------------


def test_running_jobs_give_gpus_up_for_one_that_waits() -> None:
    stage = crowded()
    # The newcomer's worth on 2, 3, 4 GPUs is 1.8, 2.5, 3.1; the others lose 0.6, 0.6, 0.7, 0.7.
    # Gains: 0.6, 0.6, 0.5; which of the equals is left to floats.
    decisions = stage.decide()
    assert [type(decision) for decision in decisions] == [ScaleIn, ScaleIn, Start]
    assert {decision.reason for decision in decisions} == {"compaction: 1 jobs wait"}
    assert sum(stage.held().values()) == 8
    assert stage.held()[2] in (2, 3)


def test_nobody_goes_below_its_share() -> None:
    stage = crowded(gpus=8)
    # 8 GPUs ask for 4 at least, and 4 is all that two jobs of 4 can give.
    assert plain(stage.decide()) == ["in 0: 2", "in 1: 2", "start 2: 4"]


def test_no_more_than_the_crowd_means_no_compaction() -> None:
    stage = crowded()
    assert isinstance(stage.policy, ElasticTiresias)
    stage.policy.crowd = 1
    assert stage.decide() == []


def test_nothing_is_taken_from_the_first_queue() -> None:
    stage = Stage(ElasticTiresias(crowd=0))
    for _ in range(3):
        stage.submit(4, curve=FALLING)
    assert plain(stage.decide()) == ["start 0: 4", "start 1: 4"]


def test_nothing_is_taken_from_those_that_are_not_elastic() -> None:
    assert crowded(elastic=False).decide() == []


def test_nothing_is_taken_without_a_gain() -> None:
    linear = Curve([float(p) for p in range(9)])
    stage = crowded(curve=linear)
    # They lose one for each GPU; the newcomer's worth is less than its number.
    assert stage.decide() == []


def test_idle_gpus_are_used_first() -> None:
    stage = crowded(gpus=6)
    stage.finish(1)
    # 4 are idle and cost nothing. Worth on 3 to 6 is 2.5, 3.1, 3.6, 4.0; a fifth and a sixth GPU
    # cost the other one 0.6 and 0.7. Gains: 2.5, 3.1, 3.0, 2.7.
    assert plain(stage.decide()) == ["start 2: 4"]


def test_an_inelastic_newcomer_starts_with_its_number_or_not_at_all() -> None:
    stage = crowded()
    stage.finish(2)
    job = stage.submit(3, curve=FALLING, elastic=False)
    job.queue = 1
    assert "start 3: 3" in plain(stage.decide())


def test_afterwards_everybody_gets_its_number_back() -> None:
    stage = crowded(gpus=8)
    stage.decide()
    stage.finish(2)
    # Nobody waits any more, so they get theirs back.
    assert stage.decide() == [
        ScaleOut(0, 4, "as its user asked for"),
        ScaleOut(1, 4, "as its user asked for"),
    ]


# -- R2 --------------------------------------------------------------------------------------------


def test_idle_gpus_go_to_whoever_gets_relatively_fastest_by_one() -> None:
    stage = Stage(policy())
    stage.submit(1, curve=FALLING)
    stage.submit(2, curve=Curve([0.0, 10, 20, 26, 30, 32, 33]))
    # From 1 and 2 on: 0.8, 0.39, 0.24, 0.16, ... and 0.3, 0.15, 0.07, ...
    # Of 5 idle GPUs the best are 0.8, 0.39, 0.3, 0.24 and 0.16.
    assert plain(stage.decide()) == ["start 0: 5", "start 1: 3"]


def test_nobody_is_expanded_while_somebody_waits() -> None:
    stage = Stage(policy(crowd=10))
    stage.submit(6, curve=FALLING)
    stage.submit(4, curve=FALLING)
    assert plain(stage.decide()) == ["start 0: 6"]


def test_nobody_is_expanded_beyond_its_most_or_past_its_peak() -> None:
    stage = Stage(policy())
    stage.submit(1, curve=FALLING, most=2)
    stage.submit(1, curve=Curve([0.0, 10, 15, 12, 11]))
    stage.submit(1, elastic=False)
    assert plain(stage.decide()) == ["start 0: 2", "start 1: 2", "start 2: 1"]


def test_an_expansion_is_undone_when_somebody_comes() -> None:
    stage = Stage(policy(crowd=10))
    stage.submit(4, curve=FALLING)
    assert plain(stage.decide()) == ["start 0: 8"]
    stage.submit(4, curve=FALLING)
    assert stage.decide() == [
        ScaleIn(0, 4, "as its user asked for"),
        Start(1, 4, "as its user asked for"),
    ]


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_the_share_binds_the_one_that_starts_too(share: float) -> None:
    stage = Stage(policy(share=share), gpus_per_node=4)
    stage.submit(3, curve=FALLING)
    stage.decide()
    stage.submit(4, curve=FALLING)
    stage.decide(1.0)
    # One GPU is idle, which is a quarter of what the second asked for.
    assert (stage.held()[1] > 0) == (share == 0.25)
