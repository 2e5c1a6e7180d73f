"""Section 5.1's two rules, each in a case small enough to work out by hand."""

from __future__ import annotations

import pytest

from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.view import Job
from tests.paper.cluster import Cluster, curve, linear

# Worth of 1, 2, 3, 4 GPUs: 1, 1.8, 2.4, 2.8. So the last GPU of four is worth 0.4.
FALLING = curve(1.0, 1.8, 2.4, 2.8)


def behind(policy: ElasticTiresias, waiting: int) -> tuple[Cluster, Job, list[Job]]:
    """A job of 4 GPUs in G1 has the whole cluster, and so many of 1 GPU wait behind it in G1."""
    cluster = Cluster(policy, gpus=4)
    long = cluster.submit("long", 4, FALLING)
    cluster.at(0)
    cluster.at(125.0)
    assert (long.queue, long.held) == (1, 4)
    jobs = [cluster.submit(f"w{number}", 1, FALLING) for number in range(waiting)]
    for job in jobs:
        cluster.demote(job, 1)
    return cluster, long, jobs


def test_r1_takes_from_running_jobs_where_the_cluster_gains() -> None:
    """Each waiting job is worth 1; the long one loses 0.4 by its fourth GPU and 0.6 by its third.

    The third one waits: r = 0.5 leaves the long job two.
    """
    cluster, long, waiting = behind(ElasticTiresias(crowd=0), 3)
    assert cluster.told(cluster.at(126.0)) == ["ScaleIn long 2", "Start w0 1", "Start w1 1"]
    assert cluster.held([long, *waiting]) == [2, 1, 1, 0]


def test_r1_starts_nobody_by_whom_the_cluster_loses() -> None:
    """On one GPU the newcomer does 0.3 of what each of its GPUs does at best: less than 0.4."""
    cluster, long, _ = behind(ElasticTiresias(crowd=0), 0)
    slow = cluster.submit("slow", 1, curve(0.3, 2.0))
    cluster.demote(slow, 1)
    assert slow.curve.worth[1] == 0.3
    assert cluster.told(cluster.at(126.0)) == []
    assert cluster.held([long, slow]) == [4, 0]


def test_r1_takes_the_p_of_the_largest_gain() -> None:
    """Donors are two jobs of 4 in G1; a third one of 4 waits there. How many of its 4 does it get?

    Units cost 0.4, 0.4 (the fourth GPU of each donor), 0.6, 0.6 (the third). 4, 3 and 2 GPUs are
    worth 2.8, 2.4 and 1.8 to it, so it gains 0.8, 1.0 and 1.0: of equals the one with more GPUs.
    """
    cluster = Cluster(ElasticTiresias(crowd=0), gpus=8)
    jobs = [cluster.submit(name, 4, FALLING) for name in "ab"]
    cluster.at(0)
    cluster.at(125.0)
    jobs.append(cluster.submit("c", 4, FALLING))
    cluster.demote(jobs[2], 1)
    assert cluster.told(cluster.at(126.0)) == ["ScaleIn a 2", "ScaleIn b 3", "Start c 3"]
    assert cluster.held(jobs) == [2, 3, 3]


def test_r1_serves_g0_first() -> None:
    """The job in G0 starts by Tiresias' own plan, and whom it pushed out is let in by R1."""
    cluster = Cluster(ElasticTiresias(crowd=0), gpus=8)
    jobs = [cluster.submit(name, 4, FALLING) for name in "ab"]
    cluster.at(0)
    cluster.at(125.0)
    jobs.append(cluster.submit("c", 4, FALLING))
    # b keeps what it can: the two that a gives up.
    assert cluster.told(cluster.at(126.0)) == ["ScaleIn a 2", "ScaleIn b 2", "Start c 4"]
    assert cluster.held(jobs) == [2, 2, 4]


@pytest.mark.parametrize(("crowd", "held"), [(2, [2, 1, 1, 0]), (3, [4, 0, 0, 0])])
def test_r1_is_for_more_waiting_jobs_than_n(crowd: int, held: list[int]) -> None:
    """ "If the number of waiting jobs exceeds a threshold N": three wait."""
    cluster, long, waiting = behind(ElasticTiresias(crowd=crowd), 3)
    cluster.at(126.0)
    assert cluster.held([long, *waiting]) == held


def test_r1_changes_nothing_more_for_whom_it_has_started() -> None:
    """Whoever it started is let in again at the next event with what it has."""
    cluster, long, waiting = behind(ElasticTiresias(crowd=0), 3)
    cluster.at(126.0)
    assert cluster.told(cluster.at(130.0)) == []
    cluster.now = 140.0
    cluster.finish(waiting[0])
    assert cluster.told(cluster.at(140.0)) == ["Start w2 1"]
    assert cluster.held([long, *waiting[1:]]) == [2, 1, 1]


def test_r1_takes_nothing_from_g0() -> None:
    """ "We do not remove GPU from jobs in G_0" """
    cluster = Cluster(ElasticTiresias(crowd=0), gpus=4)
    first = cluster.submit("first", 4, FALLING)
    cluster.at(0)
    second = cluster.submit("second", 1, FALLING)
    assert cluster.told(cluster.at(10.0)) == []
    assert cluster.held([first, second]) == [4, 0]


@pytest.mark.parametrize(("share", "least"), [(0.5, 4), (0.7, 6), (1.0, 8)])
def test_r1_leaves_a_donor_its_share(share: float, least: int) -> None:
    """ "A running job J_j has a parallelism at least ceil(r p_j)" """
    cluster = Cluster(ElasticTiresias(crowd=0, share=share), gpus=8)
    donor = cluster.submit("donor", 8, curve(1.0, 1.9, 2.7, 3.4, 4.0, 4.5, 4.9, 5.2))
    cluster.at(0)
    cluster.at(62.5)
    assert donor.queue == 1
    others = [cluster.submit(f"o{number}", 1) for number in range(6)]
    for other in others:
        cluster.demote(other, 1)
    cluster.at(63.0)
    assert donor.held == least
    assert sum(cluster.held(others)) == 8 - least


def test_r2_gives_idle_gpus_one_by_one_to_whoever_gains_most() -> None:
    """(S(p+1) - S(p)) / S(p), worked out: two jobs, 3 idle GPUs.

    a: S = 10, 16, 18, 19: gains 0.6, 0.125, 0.056. b: S = 10, 14, 17, 19: gains 0.4, 0.214, 0.118.
    In order: a (0.6), b (0.4), b (0.214).
    """
    cluster = Cluster(ElasticTiresias(), gpus=5)
    a = cluster.submit("a", 1, curve(10.0, 16.0, 18.0, 19.0))
    b = cluster.submit("b", 1, curve(10.0, 14.0, 17.0, 19.0))
    assert sorted(cluster.told(cluster.at(0))) == ["Start a 2", "Start b 3"]
    assert cluster.held([a, b]) == [2, 3]


def test_r2_stops_where_no_gain_is_positive() -> None:
    cluster = Cluster(ElasticTiresias(), gpus=8)
    a = cluster.submit("a", 1, curve(10.0, 12.0, 11.0, 9.0))
    cluster.at(0)
    assert a.held == 2
    assert cluster.book.view.free == 6


def test_r2_is_undone_as_soon_as_somebody_needs_the_gpus() -> None:
    cluster = Cluster(ElasticTiresias(), gpus=4)
    a = cluster.submit("a", 1, linear())
    assert cluster.told(cluster.at(0)) == ["Start a 4"]
    b = cluster.submit("b", 2, linear())
    told = cluster.told(cluster.at(1.0))
    # One GPU is left over: from 1 to 2 a gains 100 %, b from 2 to 3 only 50 %.
    assert told == ["ScaleIn a 2", "Start b 2"]
    assert cluster.held([a, b]) == [2, 2]


def test_an_inelastic_job_has_exactly_what_was_asked_for() -> None:
    """ "They can mark the job as inelastic and Elastic-Tiresias simply skips it" """
    cluster = Cluster(ElasticTiresias(crowd=0), gpus=4)
    job = cluster.submit("job", 2, linear(), elastic=False)
    assert cluster.told(cluster.at(0)) == ["Start job 2"]
    cluster.at(250.0)
    assert job.queue == 1
    # It is no donor either.
    other = cluster.submit("other", 3, FALLING, elastic=False)
    cluster.demote(other, 1)
    assert cluster.told(cluster.at(251.0)) == []
    assert cluster.held([job, other]) == [2, 0]
