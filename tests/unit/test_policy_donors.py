"""Compaction on machines: those give GPUs up that make room where the newcomer's lie together."""

from __future__ import annotations

import pytest

from edl.policy.decisions import Start, Where
from edl.policy.donors import released, together
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.throughput import Curve
from edl.policy.together import Together
from edl.policy.view import Job
from tests.unit.clusters import FALLING, LINEAR, Stage, placed

FLAT = Curve([0.0, 10, 11], label="flat")


class Machines(Stage):
    """Machines of 4 GPUs, full of jobs that are not in the first queue any more."""

    def __init__(self, *places: Where, curve: Curve = FLAT, moves: int = 2) -> None:
        policy = Together(ElasticTiresias(quanta=(8.0,), crowd=0), moves=moves)
        nodes = 1 + max(node for where in places for node, _ in where)
        super().__init__(policy, nodes=nodes, gpus_per_node=4, together=True)
        for where in places:
            gpus = sum(count for _, count in where)
            job = self.submit(gpus, curve=curve)
            self.apply([Start(job.key, gpus, "before", where)])
            job.queue = 1

    def waits(self, gpus: int, *, elastic: bool = False) -> Job:
        job = self.submit(gpus, curve=FALLING, elastic=elastic)
        job.queue = 1
        return job


def on(node: int, gpus: int = 2) -> Where:
    return ((node, gpus),)


@pytest.mark.parametrize("moves", [0, 2])
def test_donors_lie_on_one_machine(moves: int) -> None:
    """By number the first two would give, one GPU on each machine, and nobody could start without a
    migration."""
    stage = Machines(on(0), on(1), on(1), on(0), moves=moves)
    stage.waits(2)
    assert placed(stage.decide(1.0)) == ["in 0: 1 at 0*1", "in 3: 1 at 0*1", "start 4: 2 at 0*2"]


def test_idle_gpus_are_built_upon() -> None:
    stage = Machines(on(0), on(0), on(1), on(1, 1))
    # One GPU of the second machine is idle, so one donor there is enough.
    stage.waits(2)
    assert placed(stage.decide(1.0)) == ["in 2: 1 at 1*1", "start 4: 2 at 1*2"]


def test_each_of_two_newcomers_has_a_machine() -> None:
    stage = Machines(on(0), on(1), on(2), on(0), on(1), on(2))
    stage.waits(2)
    stage.waits(2)
    told = placed(stage.decide(1.0))
    assert told == [
        "in 0: 1 at 0*1",
        "in 1: 1 at 1*1",
        "in 3: 1 at 0*1",
        "in 4: 1 at 1*1",
        "start 6: 2 at 0*2",
        "start 7: 2 at 1*2",
    ]


def test_by_numbers_alone_the_first_ones_give() -> None:
    stage = Stage(ElasticTiresias(quanta=(8.0,), crowd=0))
    for _ in range(4):
        job = stage.submit(2, curve=FLAT)
        stage.apply([Start(job.key, 2, "before")])
        job.queue = 1
    job = stage.submit(2, curve=FALLING, elastic=False)
    job.queue = 1
    assert placed(stage.decide(1.0)) == ["in 0: 1", "in 1: 1", "start 4: 2"]


def test_whoever_has_few_already_is_not_asked_twice() -> None:
    stage = Machines(on(0), on(1), on(1), on(0))
    jobs = list(stage.view.jobs.values())
    jobs[1].held = 1
    found = together(sorted(jobs, key=lambda job: job.held), 3, 1, [0, 0], [2])
    assert [job.key for job in found] == [1, 0, 3]


def test_as_many_give_as_must_where_no_place_comes_of_it() -> None:
    stage = Machines(on(0), on(1), on(2))
    jobs = list(stage.view.jobs.values())
    # 3 GPUs lie together nowhere; what is idle already is where the others come to.
    found = together(jobs, 2, 1, [0, 0, 1], [3])
    assert [job.key for job in found] == [2, 0]


def test_what_falls_free_is_where_a_job_has_fewest() -> None:
    stage = Machines(((0, 4), (1, 2)), curve=LINEAR)
    (job,) = stage.view.jobs.values()
    assert dict(released(job, 4)) == {0: 0, 1: 2}
    assert dict(released(job, 0)) == {0: 4, 1: 2}
