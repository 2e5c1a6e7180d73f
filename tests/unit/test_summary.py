"""What outcomes come to in numbers, and how these are written."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

import numpy as np
import pytest

from edl.errors import UsageError
from edl.simulator.comparison import (
    COLUMNS,
    best_of,
    change,
    change_text,
    seconds_text,
    share_text,
    time_text,
)
from edl.simulator.summary import by_size, cdf, percentile, summarise
from tests.unit.outcomes import an_outcome, compared, done


def test_a_summary_of_four_jobs() -> None:
    outcome = an_outcome(
        done("a", end_s=10.0, adjustments=2),
        done("b", start_s=10.0, end_s=20.0, preemptions=1),
        done("c", submit_s=10.0, start_s=20.0, end_s=40.0),
        done("d", submit_s=20.0, start_s=40.0, end_s=100.0, adjustments=3),
        rejected=5,
    )
    assert asdict(summarise(outcome)) == pytest.approx(
        {
            "policy": "tiresias",
            "jobs": 4,
            "rejected": 5,
            "jct_mean_s": 35.0,  # of 10, 20, 30 and 80
            "jct_median_s": 25.0,
            "jct_p95_s": 72.5,
            "jct_p99_s": 78.5,
            "jct_max_s": 80.0,
            "wait_mean_s": 10.0,  # of 0, 10, 10 and 20
            "wait_median_s": 10.0,
            "wait_p95_s": 18.5,
            "makespan_s": 100.0,
            "utilisation": 0.75,  # 300 of 4 GPUs x 100 s
            "cluster_efficiency": 0.6,
            "gpu_efficiency": 0.8,
            "adjustments": 5,
            "preemptions": 1,
            "decisions": 7,
            "events": 9,
            "wall_s": 0.25,
        }
    )


def test_no_job_is_no_summary() -> None:
    with pytest.raises(UsageError, match=r"no job of small ran under tiresias \(3 are larger"):
        summarise(an_outcome(rejected=3))


def test_nothing_held_is_no_division_by_zero() -> None:
    nothing = summarise(an_outcome(done("a"), used_gpu_s=0.0, worth_gpu_s=0.0))
    assert (nothing.utilisation, nothing.cluster_efficiency, nothing.gpu_efficiency) == (0, 0, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 1000])
def test_percentiles_are_numpys(count: int) -> None:
    draw = random.Random(count)
    values = sorted(draw.lognormvariate(7, 2) for _ in range(count))
    for share in (0.0, 0.05, 0.5, 0.95, 0.99, 1.0):
        assert percentile(values, share) == pytest.approx(np.percentile(values, 100 * share))


def test_a_class_ends_with_its_limit() -> None:
    outcome = an_outcome(
        *(
            done(f"{size}", end_s=jct, size_gpu_s=size)
            for size, jct in ((1.0, 10.0), (500.0, 30.0), (500.5, 50.0), (100_000.0, 70.0))
        ),
    )
    found = by_size(outcome)
    assert [(each.name, each.most_gpu_s, each.jobs, each.jct_mean_s) for each in found] == [
        ("up to 500", 500.0, 2, 20.0),
        ("up to 10,000", 10_000.0, 1, 50.0),
        ("up to 100,000", 100_000.0, 1, 70.0),
        ("more than 100,000", None, 0, None),
    ]


def test_a_cdf_counts_equal_values_once() -> None:
    assert cdf([3.0, 1.0, 2.0, 2.0]) == ((1.0, 0.25), (2.0, 0.75), (3.0, 1.0))
    assert cdf([]) == ()


def test_points_of_a_thinned_cdf_are_of_the_true_one() -> None:
    draw = random.Random(5)
    values = [float(draw.randrange(3000)) for _ in range(20_000)]
    whole, thin = cdf(values, points=len(values)), cdf(values, points=400)
    assert len(thin) <= 400 < len(whole)
    assert set(thin) <= set(whole)
    assert (thin[0], thin[-1]) == (whole[0], whole[-1])


def test_the_change_is_of_the_mean_and_from_the_first() -> None:
    rigid, elastic = (summarise(outcome) for outcome in compared())
    assert rigid.jct_mean_s == pytest.approx(400 / 3)
    assert elastic.jct_mean_s == pytest.approx(110)
    assert change(rigid, rigid) is None
    assert change(elastic, rigid) == pytest.approx(-0.175)
    assert (change_text(None), change_text(-0.175), change_text(0.5)) == ("", "-17.5 %", "+50.0 %")


def test_what_looks_equal_is_equally_good() -> None:
    mean = COLUMNS[0]
    one = summarise(compared()[0])
    two = replace(one, policy="fifo", jct_mean_s=one.jct_mean_s + 0.001)
    better = replace(one, policy="srtf", jct_mean_s=90.0)
    assert best_of(mean, [one]) is None
    assert best_of(mean, [one, two]) is None
    assert best_of(mean, [one, two, better]) == "90.0"
    assert best_of(COLUMNS[-1], [one, better]) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.25, "0.25"), (42.54, "42.5"), (1312.4, "1,312"), (1_914_470.0, "1,914,470")],
)
def test_seconds_to_compare(value: float, text: str) -> None:
    assert seconds_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (59.4, "59.4 s"),
        (59.9, "1 min"),
        (60.0, "1 min"),
        (200.0, "3 min 20 s"),
        (3599.7, "1 h"),
        (7_890.0, "2 h 11 min"),
        (86_400.0, "1 d"),
        (6_490_800.0, "75 d 3 h"),
    ],
)
def test_times_to_imagine(value: float, text: str) -> None:
    assert time_text(value) == text


def test_shares() -> None:
    assert [share_text(value) for value in (0.0, 0.8734, 1.0)] == ["0.0 %", "87.3 %", "100.0 %"]
