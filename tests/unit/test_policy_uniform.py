"""Uniform, on the paper's synthetic workload: 4 machines of 8 GPUs, 16 jobs of 4, one by one."""

from __future__ import annotations

from edl.policy.decisions import ScaleIn, Start
from edl.policy.throughput import Curve
from edl.policy.uniform import Uniform
from tests.unit.clusters import FALLING, LINEAR, Stage, arrival, engine, placed, plain


def paper() -> Stage:
    return Stage(Uniform(), nodes=4, gpus_per_node=8, together=True)


def come(stage: Stage, many: int, curve: Curve = FALLING) -> None:
    for _ in range(many):
        stage.submit(4, curve=curve, left_s=10_000)
        stage.decide(stage.view.now + 30.0)


def by_machine(stage: Stage) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(stage.view.nodes)]
    for job in stage.view.jobs.values():
        for node, count in job.where:
            found[node].append(count)
    return found


def test_the_first_four_have_a_machine_each_for_eight_gpus_are_no_slower() -> None:
    stage = paper()
    come(stage, 4)
    assert by_machine(stage) == [[8], [8], [8], [8]]


def test_a_job_that_eight_gpus_would_slow_down_has_fewer() -> None:
    stage = paper()
    come(stage, 1, Curve([0.0, 10, 18, 25, 31, 34, 34, 33, 32], peak=False))
    assert by_machine(stage) == [[6], [], [], []]


def test_the_next_four_are_let_in_by_compaction() -> None:
    stage = paper()
    come(stage, 4)
    stage.submit(4, curve=FALLING)
    # Worth of 2, 3, 4 GPUs: 1.8, 2.5, 3.1. The other loses 0.2, 0.3, 0.4, 0.5 by one after the
    # other. Gains: 1.3, 1.6, 1.7.
    assert stage.decide() == [
        ScaleIn(0, 4, "makes room for another on machine 0: 2 jobs share 8 GPUs", ((0, 4),)),
        Start(4, 4, "fewest jobs were on machine 0: 2 jobs share 8 GPUs", ((0, 4),)),
    ]
    come(stage, 3)
    assert by_machine(stage) == [[4, 4]] * 4


def test_the_ninth_takes_one_gpu_of_each_of_two() -> None:
    stage = paper()
    come(stage, 9)
    # Gains of 2 and 3 GPUs are both 0.6, so it takes two: 1.8 - 2 * 0.6, 2.5 - 2 * 0.6 - 0.7.
    assert by_machine(stage) == [[3, 3, 2], [4, 4], [4, 4], [4, 4]]


def test_sixteen_have_two_each_and_the_seventeenth_waits() -> None:
    stage = paper()
    come(stage, 16)
    assert by_machine(stage) == [[2, 2, 2, 2]] * 4
    stage.submit(4, curve=FALLING)
    # Nobody goes below half of what its user asked for.
    assert stage.decide() == []


def test_one_that_gains_nothing_waits() -> None:
    stage = paper()
    come(stage, 8, LINEAR)
    assert by_machine(stage) == [[8], [8], [8], [8]]
    assert stage.held()[7] == 0


def test_a_machine_with_idle_gpus_is_shared_anew() -> None:
    stage = Stage(Uniform(), nodes=1, together=True)
    # Each is fastest on 6 GPUs, so two of the machine's are idle.
    curve = Curve([0.0, 10, 18, 25, 31, 34, 35, 33, 32], peak=False)
    come(stage, 1, curve)
    assert by_machine(stage) == [[6]]
    stage.submit(4, curve=curve)
    assert placed(stage.decide()) == ["in 0: 4 at 0*4", "start 1: 4 at 0*4"]


def test_what_a_job_leaves_behind_goes_to_its_neighbours() -> None:
    stage = paper()
    come(stage, 9)
    stage.finish(4)
    # 3 GPUs are left over on machine 0, where others have 3 and 2.
    assert placed(stage.decide()) == ["out 0: 4 at 0*4", "out 8: 4 at 0*4"]
    stage.finish(1)
    stage.finish(5)
    assert stage.decide() == []


def test_inelastic_jobs_have_what_was_asked_for() -> None:
    stage = Stage(Uniform(), nodes=1, together=True)
    stage.submit(5, elastic=False)
    stage.submit(4, elastic=False)
    stage.submit(4, curve=FALLING)
    assert plain(stage.decide()) == ["start 0: 5", "start 2: 3"]
    stage.finish(0)
    assert plain(stage.decide()) == ["out 2: 4", "start 1: 4"]


def test_a_job_larger_than_a_machine_waits_for_idle_ones() -> None:
    stage = Stage(Uniform(), nodes=3, gpus_per_node=4, together=True)
    stage.submit(3, elastic=False)
    stage.decide()
    # The first needs two idle machines and 2 GPUs of another; the second one GPU of another.
    stage.submit(10, elastic=False)
    stage.submit(9, elastic=False)
    assert placed(stage.decide()) == ["start 2: 9 at 0*1 1*4 2*4"]
    stage.finish(0)
    assert stage.decide() == []
    stage.finish(2)
    assert placed(stage.decide()) == ["start 1: 10 at 0*4 1*4 2*2"]
    # What it leaves of the third machine is for others.
    stage.submit(2, curve=FALLING)
    assert placed(stage.decide()) == ["start 3: 2 at 2*2"]


def test_without_machines_the_cluster_is_one() -> None:
    stage = Stage(Uniform(), nodes=2, gpus_per_node=8)
    for _ in range(4):
        stage.submit(4, curve=FALLING)
    assert stage.decide() == [
        Start(key, 4, "fewest jobs were in the cluster: 4 jobs share 16 GPUs") for key in range(4)
    ]


def test_the_papers_workload_ends() -> None:
    jobs = [arrival(30.0 * i, 4, 2000.0, curve=FALLING) for i in range(16)]
    run = engine(jobs, Uniform(), nodes=4, together=True, mechanism="edl")
    run.run()
    assert len(run.finished) == 16
    assert all(done.start_s == done.submit_s for _, done in run.finished)
