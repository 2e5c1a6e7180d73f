"""The Gittins index, worked by hand, and what it changes in Tiresias' queues."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.policy.decisions import Start
from edl.policy.gittins import Gittins, Sizes, usual_sizes
from edl.policy.view import Job
from tests.unit.clusters import Stage, plain

# Of four jobs three end soon after 50 GPU*s, one is large.
SAMPLE = (60.0, 60.0, 60.0, 5000.0)


def test_the_index_is_ends_for_each_gpu_second() -> None:
    sizes = Sizes([10, 1, 2])
    # Within 2: two end, after 1 and 2, and the third is there for 2.
    assert sizes.index(0, 2) == pytest.approx(2 / (1 + 2 + 2))
    # Of those larger than 1, one ends after 1 more, the other is there for 2.
    assert sizes.index(1, 2) == pytest.approx(1 / (1 + 2))
    # None ends between 2 and 4.
    assert sizes.index(2, 2) == 0
    assert sizes.index(9, 2) == pytest.approx(1 / 1)


def test_beyond_the_sample_the_index_is_lowest() -> None:
    assert Sizes([1, 2, 10]).index(10, 5) == 0


@pytest.mark.parametrize("sample", [[], [1.0, 0.0], [float("nan")], [float("inf")]])
def test_a_sample_must_be_sizes(sample: list[float]) -> None:
    with pytest.raises(UsageError, match="sample of sizes"):
        Gittins(sizes=sample)


def test_the_usual_sizes_are_many_small_ones_and_a_few_large() -> None:
    sizes = usual_sizes()
    assert sizes == sorted(sizes)
    assert sizes[500] == pytest.approx(2000, rel=0.01)
    largest = sum(sizes[-100:])
    assert largest > 0.7 * sum(sizes)


def in_queue_1(stage: Stage, gpus: int, attained: float) -> Job:
    """A job that ran before, until another queue took its GPUs."""
    job = stage.submit(gpus)
    job.queue, job.has_run = 1, True
    job.total_gpu_s = job.service_gpu_s = attained
    return job


def test_whoever_ends_soonest_by_the_sample_is_next_in_its_queue() -> None:
    stage = Stage(Gittins(quanta=(50.0, 1000.0), sizes=SAMPLE))
    in_queue_1(stage, 8, attained=500.0)
    in_queue_1(stage, 8, attained=50.0)
    # 3 of 4 end within 10 GPU*s of the second; the first is surely the large one.
    assert stage.decide() == [
        Start(1, 8, "ends soonest by its index, of queue 1: 8 GPUs are free"),
    ]


def test_of_equals_whoever_came_first() -> None:
    stage = Stage(Gittins(sizes=SAMPLE))
    for _ in range(3):
        stage.submit(4)
    assert plain(stage.decide()) == ["start 0: 4", "start 1: 4"]


def test_peers_never_stop_each_other() -> None:
    stage = Stage(Gittins(quanta=(50.0, 1000.0), sizes=SAMPLE))
    in_queue_1(stage, 8, attained=500.0)
    assert plain(stage.decide()) == ["start 0: 8"]
    in_queue_1(stage, 8, attained=50.0)
    assert stage.decide() == []


def test_when_a_queue_above_takes_gpus_those_keep_theirs_that_end_soonest() -> None:
    stage = Stage(Gittins(quanta=(50.0, 1000.0), sizes=SAMPLE))
    in_queue_1(stage, 4, attained=500.0)
    assert plain(stage.decide()) == ["start 0: 4"]
    in_queue_1(stage, 4, attained=51.0)
    assert plain(stage.decide()) == ["start 1: 4"]
    stage.submit(4)
    assert plain(stage.decide()) == ["stop 0", "start 2: 4"]


def test_a_starved_job_is_promoted_as_in_tiresias() -> None:
    stage = Stage(Gittins(quanta=(80.0, 1000.0), knob=2.0, sizes=SAMPLE))
    stage.submit(8)
    stage.decide()
    # After 10 s it has its 80 GPU*s, and a newcomer takes its place.
    stage.view.now = 10.0
    stage.submit(8)
    assert plain(stage.decide()) == ["queue 0: 1", "stop 0", "start 1: 8"]
    # So does the newcomer: now it is behind the other one.
    assert stage.policy.wake(stage.view) == 20.0
    assert plain(stage.decide(20.0)) == ["queue 1: 1", "stop 1", "start 0: 8"]
    # At 40 s it has waited for twice as long as it ran.
    assert stage.policy.wake(stage.view) == 40.0
    both = stage.decide(40.0) + stage.decide(40.0)
    assert plain(both) == ["queue 1: 0", "stop 0", "start 1: 8"]
