"""Section 5.1, as far as Tiresias goes: each rule in a case small enough to work out by hand."""

from __future__ import annotations

from edl.policy.tiresias import Tiresias
from tests.paper.cluster import Cluster


def test_a_job_is_first_placed_into_g0_and_moved_as_it_keeps_running() -> None:
    """ "A job can only consume up to t_i GPU*sec and after that it will be moved to G_i+1." """
    cluster = Cluster(Tiresias(quanta=(500.0, 10_000.0)), gpus=4)
    job = cluster.submit("a", 4)
    assert cluster.told(cluster.at(0)) == ["Start a 4"]
    # 4 GPUs hold 500 GPU*s after 125 s, and 10,000 after 2,500 s.
    assert cluster.wake() == 125.0
    assert cluster.told(cluster.at(125.0)) == ["Requeue a 1"]
    assert cluster.wake() == 2_500.0
    assert cluster.told(cluster.at(2_500.0)) == ["Requeue a 2"]
    assert cluster.wake() is None
    assert (job.queue, job.held) == (2, 4)


def test_higher_priority_groups_are_served_first_and_preempt() -> None:
    """ "A running job will be preempted if it cannot be scheduled in the new plan." """
    cluster = Cluster(Tiresias(), gpus=4)
    long = cluster.submit("long", 4)
    cluster.at(0)
    cluster.at(125.0)
    short = cluster.submit("short", 2)
    assert cluster.told(cluster.at(200.0)) == ["Preempt long", "Start short 2"]
    # All or nothing: half of the cluster is idle, and the long job waits.
    assert cluster.book.view.free == 2
    cluster.now = 300.0
    cluster.finish(short)
    assert cluster.told(cluster.at(300.0)) == ["Start long 4"]
    assert long.service_at(300.0) == 800.0


def test_peers_never_preempt_each_other_and_wait_in_order() -> None:
    cluster = Cluster(Tiresias(), gpus=4)
    first = cluster.submit("first", 3)
    cluster.at(0)
    cluster.submit("second", 4)
    cluster.submit("third", 2)
    cluster.submit("fourth", 1)
    # The second and the third do not fit and are passed over; the fourth does.
    assert cluster.told(cluster.at(1.0)) == ["Start fourth 1"]
    cluster.now = 2.0
    cluster.finish(first)
    # 3 are free: the second still does not fit.
    assert cluster.told(cluster.at(2.0)) == ["Start third 2"]


def test_a_demoted_job_stands_behind_those_that_wait_in_its_new_group() -> None:
    cluster = Cluster(Tiresias(quanta=(500.0, 10_000.0)), gpus=4)
    a = cluster.submit("a", 4)
    cluster.at(0)
    cluster.at(125.0)  # a is in G1
    b = cluster.submit("b", 4)
    assert cluster.told(cluster.at(126.0)) == ["Preempt a", "Start b 4"]
    # When b has used its quantum it goes behind a, which waits there.
    assert cluster.told(cluster.at(251.0)) == ["Requeue b 1", "Preempt b", "Start a 4"]
    assert (a.held, b.held) == (4, 0)


def test_whoever_was_stopped_comes_before_those_that_only_waited() -> None:
    cluster = Cluster(Tiresias(quanta=(500.0, 10_000.0)), gpus=4)
    cluster.submit("a", 4)
    cluster.at(0)
    cluster.at(125.0)
    b = cluster.submit("b", 2)
    cluster.at(126.0)
    # b goes to G1 in its turn, where a waits for all four; it stays, for b is alone.
    c = cluster.submit("c", 4)
    assert cluster.told(cluster.at(130.0)) == []
    cluster.now = 140.0
    cluster.finish(b)
    assert cluster.told(cluster.at(140.0)) == ["Start c 4"]
    cluster.now = 150.0
    cluster.finish(c)
    assert cluster.told(cluster.at(150.0)) == ["Start a 4"]


def test_a_job_that_is_not_scheduled_for_a_long_time_is_moved_to_g0() -> None:
    """ "If a job is not scheduled for a long time, it will be moved to G_0" """
    cluster = Cluster(Tiresias(knob=2.0), gpus=4)
    a = cluster.submit("a", 4)
    cluster.at(0)
    cluster.at(125.0)
    b = cluster.submit("b", 4)
    cluster.at(200.0)  # a ran for 200 s
    assert (a.held, b.held) == (0, 4)
    assert cluster.told(cluster.at(325.0)) == ["Requeue b 1", "Preempt b", "Start a 4"]
    c = cluster.submit("c", 4)
    cluster.at(326.0)
    cluster.submit("d", 4)
    cluster.at(451.0)
    assert (a.held, c.held) == (0, 0)
    # b ran for 125 s and waits since 325; twice that is over at 575.
    assert cluster.wake() == 575.0
    assert "Requeue b 0" in cluster.told(cluster.at(575.0))
    assert b.service_at(575.0) == 0.0


def test_every_decision_says_why() -> None:
    cluster = Cluster(Tiresias(), gpus=4)
    cluster.submit("long", 4)
    (start,) = cluster.at(0)
    assert start.reason == "first in queue 0 whose 4 GPUs are free"
    (moved,) = cluster.at(125.0)
    assert moved.reason == "has held 500 GPU*s: goes to queue 1"
