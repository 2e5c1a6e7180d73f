"""Tiresias, rule by rule: queues, who goes before whom, who is stopped, and starvation."""

from __future__ import annotations

from edl.policy.decisions import Preempt, Requeue, Start
from edl.policy.tiresias import Tiresias
from tests.unit.clusters import Stage, arrival, engine, plain


def test_all_or_nothing_and_whoever_does_not_fit_is_passed_over() -> None:
    stage = Stage(Tiresias())
    for gpus in (5, 4, 3):
        stage.submit(gpus)
    assert stage.decide() == [
        Start(0, 5, "first in queue 0 whose 5 GPUs are free"),
        Start(2, 3, "first in queue 0 whose 3 GPUs are free"),
    ]


def test_a_job_leaves_its_queue_when_its_quantum_is_used_up() -> None:
    stage = Stage(Tiresias(quanta=(500.0, 10_000.0)))
    stage.submit(4, left_s=1e6)
    stage.decide()
    # 4 GPUs for 125 s, and then for 2,375 s more.
    assert stage.policy.wake(stage.view) == 125.0
    assert stage.decide(125.0) == [Requeue(0, 1, "has held 500 GPU*s: goes to queue 1")]
    assert stage.policy.wake(stage.view) == 2500.0
    assert stage.decide(2500.0) == [Requeue(0, 2, "has held 10,000 GPU*s: goes to queue 2")]
    assert stage.policy.wake(stage.view) is None


def test_a_queue_above_takes_what_it_needs() -> None:
    stage = Stage(Tiresias(quanta=(500.0,)))
    for gpus in (4, 2, 2):
        stage.submit(gpus)
    stage.decide()
    stage.decide(125.0)
    stage.submit(4)
    # The first is in the last queue now, the others are not there yet.
    assert stage.decide() == [
        Preempt(0, "those before it in queue 1 or above need its GPUs"),
        Start(3, 4, "first in queue 0 whose 4 GPUs are free"),
    ]


def test_peers_never_stop_each_other() -> None:
    stage = Stage(Tiresias())
    stage.submit(8)
    stage.decide()
    stage.submit(1)
    assert stage.decide(1.0) == []


def test_of_those_that_run_whoever_began_last_is_stopped() -> None:
    stage = Stage(Tiresias(quanta=(8.0,)))
    for _ in range(4):
        stage.submit(2)
        stage.decide()
    stage.decide(4.0)
    assert {job.queue for job in stage.view.jobs.values()} == {1}
    stage.submit(3)
    assert plain(stage.decide()) == ["stop 2", "stop 3", "start 4: 3"]


def test_those_that_had_to_stop_come_before_those_that_wait_behind_them() -> None:
    stage = Stage(Tiresias(quanta=(80.0,)))
    stage.submit(8)
    stage.decide()
    stage.view.now = 5.0
    stage.submit(4)
    stage.decide()
    assert plain(stage.decide(10.0)) == ["queue 0: 1", "stop 0", "start 1: 4"]
    stage.finish(1)
    assert plain(stage.decide(11.0)) == ["start 0: 8"]


def test_a_demoted_job_stands_behind_those_that_wait_there() -> None:
    stage = Stage(Tiresias(quanta=(80.0,)))
    stage.submit(8)
    stage.decide()
    stage.view.now = 10.0
    stage.submit(8)
    assert plain(stage.decide()) == ["queue 0: 1", "stop 0", "start 1: 8"]
    assert plain(stage.decide(20.0)) == ["queue 1: 1", "stop 1", "start 0: 8"]


def test_a_starved_job_begins_anew_in_the_first_queue() -> None:
    stage = Stage(Tiresias(quanta=(80.0,), knob=2.0))
    stage.submit(8)
    stage.decide()
    stage.view.now = 10.0
    stage.submit(8)
    stage.decide()
    stage.decide(20.0)
    # The second ran for 10 s and waited for 20.
    assert stage.policy.wake(stage.view) == 40.0
    decisions = stage.decide(40.0)
    reason = "waited 2 times as long as it ran: back to queue 0"
    assert decisions[0] == Requeue(1, 0, reason, fresh=True)
    job = stage.view.jobs[1]
    assert (job.service_gpu_s, job.ran_s, job.total_gpu_s) == (0.0, 0.0, 80.0)


def test_without_the_knob_nobody_is_promoted() -> None:
    stage = Stage(Tiresias(quanta=(80.0,)))
    stage.submit(8)
    stage.decide()
    stage.view.now = 10.0
    stage.submit(8)
    stage.decide()
    stage.decide(20.0)
    assert stage.policy.wake(stage.view) is None
    assert stage.decide(1e6) == []


def test_three_jobs_worked_by_hand() -> None:
    """8 GPUs, quantum 80. A and B ask for 8, C for 4, and take 20, 5 and 30 s.

    A from 0 to 10, then its quantum is used up and B is there: B from 10 to 15. A from 15 to 25; C
    comes at 20, is in the first queue, and takes A's place from 20 to 40, when its 80 GPU*s are
    used up. Then A, who waits in that queue already: 5 s more, to 45. C has 10 s left: 55.
    """
    jobs = [arrival(0.0, 8, 20.0), arrival(10.0, 8, 5.0), arrival(20.0, 4, 30.0)]
    run = engine(jobs, Tiresias(quanta=(80.0,)))
    run.run()
    ends = {key: done.end_s for key, done in run.finished}
    assert ends == {1: 15.0, 0: 45.0, 2: 55.0}
    waits = {key: done.wait_s for key, done in run.finished}
    assert waits == {1: 0.0, 0: 25.0, 2: 5.0}


def test_a_job_that_was_moved_keeps_its_place_among_those_that_run() -> None:
    policy = Tiresias(quanta=(8.0,))
    stage = Stage(policy)
    stage.submit(4)
    stage.submit(4)
    stage.decide()
    stage.decide(2.0)
    # Something about the first changes, its place in line does not.
    stage.view.news.append(stage.view.jobs[0])
    stage.submit(4)
    assert plain(stage.decide()) == ["stop 1", "start 2: 4"]
