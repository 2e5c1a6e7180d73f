"""Water filling in cases small enough to work out by hand."""

from __future__ import annotations

from random import Random

import pytest

from edl.policy.book import Book
from edl.policy.decisions import Decision, ScaleOut
from edl.policy.throughput import Curve
from edl.policy.view import Job
from edl.policy.water_filling import WaterFilling, WaterFillingBlind
from tests.unit.clusters import LINEAR, arrival, engine

FALLING = Curve([0.0, 1.0, 1.8, 2.4, 2.8, 3.0, 3.1], label="falling")


class Stage:
    def __init__(self, policy: WaterFilling, gpus: int) -> None:
        self.policy = policy
        self.book = Book(nodes=1, gpus_per_node=gpus)

    def submit(
        self, gpus: int, left_gpu_s: float, *, curve: Curve = FALLING, elastic: bool = True
    ) -> Job:
        return self.book.submit(
            self.book.view.now, "job", gpus=gpus, curve=curve, elastic=elastic,
            left_gpu_s=left_gpu_s,
        )  # fmt: skip

    def at(self, now: float) -> list[Decision]:
        view = self.book.view
        view.now = now
        decisions = self.policy.decide(view)
        for decision in decisions:
            self.book.apply(now, decision)
        self.book.check()
        return decisions


def test_whoever_has_least_left_runs_first() -> None:
    stage = Stage(WaterFilling(), gpus=2)
    long, short = stage.submit(2, 1e6, elastic=False), stage.submit(2, 1e3, elastic=False)
    stage.at(0.0)
    assert (long.held, short.held) == (0, 2)


def test_blind_it_is_whoever_has_had_least() -> None:
    stage = Stage(WaterFillingBlind(), gpus=2)
    first = stage.submit(2, 1e3, elastic=False)
    stage.at(0.0)
    second = stage.submit(2, 1e6, elastic=False)
    stage.at(5_000.0)
    assert (first.held, second.held) == (0, 2), "10,000 GPU*s against none"


def test_blind_and_overrun_for_months_jobs_take_few_turns() -> None:
    """Whoever has waited for long looks small, and is not to take every runner's place."""
    policy = WaterFillingBlind()
    run = engine([arrival(float(i), 4, 1e6 * (1 + i % 7)) for i in range(30)], policy)
    run.run()
    turns = [outcome.preemptions for _, outcome in run.finished]
    assert len(turns) == 30
    assert max(turns) <= 20, turns


def test_a_decision_at_the_moment_that_work_ends_is_made() -> None:
    """What rounding leaves of it ends at that same moment once more."""
    for seed in range(40):
        chance = Random(seed)
        stage = Stage(WaterFilling(), gpus=8)
        now = chance.uniform(0.0, 1e5)
        job = stage.submit(4, chance.uniform(1e3, 1e5))
        stage.at(now)
        stage.book.tell(now, job, left_gpu_s=chance.uniform(1e3, 1e5), pace=chance.uniform(0.5, 4))
        for _ in range(3):
            left = job.left_at(now)
            assert left is not None
            stage.at(now)
            now += left / job.pace
        assert job.held == 6, "it goes on until it is told that it is over"


def test_a_crowd_costs_first_what_nobody_asked_for() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    first = stage.submit(2, 1e4)
    stage.at(0.0)
    assert first.held == 4
    second = stage.submit(2, 1e4)
    stage.at(1.0)
    assert (first.held, second.held) == (2, 2)


def test_then_everybody_gives_down_to_half_and_not_below() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    jobs = [stage.submit(2, 1e4) for _ in range(6)]
    stage.at(0.0)
    assert sorted(job.held for job in jobs) == [0, 0, 1, 1, 1, 1]


def test_the_tenth_gpu_of_one_yields_to_the_second_of_another() -> None:
    stage = Stage(WaterFilling(), gpus=12)
    wide = stage.submit(1, 1e5, curve=LINEAR)
    narrow = stage.submit(1, 1e5, curve=FALLING)
    stage.at(0.0)
    # Linear: the p-th GPU adds 1/(p-1). Falling: 0.8, 0.33, 0.17, 0.07, 0.03 of what is there.
    assert wide.held + narrow.held == 12
    assert narrow.held >= 3


def test_an_inelastic_job_is_all_or_nothing() -> None:
    stage = Stage(WaterFilling(), gpus=3)
    job = stage.submit(4, 10.0, elastic=False, curve=FALLING)
    other = stage.submit(2, 1e6, elastic=False, curve=FALLING)
    stage.at(0.0)
    assert (job.held, other.held) == (0, 2)


def test_a_job_that_is_nearly_done_is_left_alone() -> None:
    stage = Stage(WaterFilling(resize_s=2.0), gpus=4)
    job = stage.submit(2, 1e4)
    other = stage.submit(2, 1e4)
    stage.at(0.0)
    assert (job.held, other.held) == (2, 2)
    stage.book.tell(10.0, job, left_gpu_s=4.0, pace=2.0)
    stage.book.view.now = 10.0
    stage.book.finish(10.0, other.key)
    # Two seconds are left; with all four GPUs it would be 1.3.
    assert stage.at(10.0) == []
    stage.book.tell(11.0, job, left_gpu_s=400.0, pace=2.0)
    (decision,) = stage.at(11.0)
    assert isinstance(decision, ScaleOut)
    assert decision.reason == "2 more GPUs speed it up by more than others"


def test_nobody_waits_for_ever() -> None:
    """A long job gets its turn though shorter ones keep coming: its size shrinks as it waits."""
    stage = Stage(WaterFilling(patience=0.2), gpus=2)
    long = stage.submit(2, 10_000.0, elastic=False)
    now = 0.0
    while not long.held:
        short = stage.submit(2, 2_000.0, elastic=False)
        stage.at(now)
        now += 1_000.0
        assert now < 20_000.0, "it waits for ever"
        if short.held:
            stage.book.view.now = now
            stage.book.finish(now, short.key)
    assert now > 2_000.0, "not before it has waited"


def test_a_wait_is_long_or_short_beside_the_longest_job() -> None:
    """The same story 32 times faster has the same end."""
    turns = []
    for pace in (1.0, 1 / 32):
        stage = Stage(WaterFilling(patience=0.2), gpus=2)
        long = stage.submit(2, 1e6 * pace, elastic=False)
        rounds = 0
        while not long.held:
            short = stage.submit(2, 2e5 * pace, elastic=False)
            stage.at(rounds * 1e5 * pace)
            rounds += 1
            if short.held:
                stage.book.view.now = rounds * 1e5 * pace
                stage.book.finish(rounds * 1e5 * pace, short.key)
        turns.append(rounds)
    assert turns[0] == turns[1] > 2


def test_patience_follows_whoever_is_longest_now() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    short = stage.submit(2, 2_000.0)
    stage.at(0.0)
    assert stage.policy._patience_s == 0.25 * 1024
    month = stage.submit(2, 2_000_000.0)
    stage.at(1.0)
    assert stage.policy._patience_s == 0.25 * 2**20
    years = stage.submit(2, 2e8)
    stage.at(1.5)
    assert stage.policy._patience_s == 1e6
    for job in (month, years):
        stage.book.view.now = 2.0
        stage.book.finish(2.0, job.key)
    stage.at(2.0)
    assert stage.policy._patience_s == 0.25 * 1024
    assert short.held


def waits_among_shorter_ones(length_s: float, *, longest_s: float, until_s: float) -> float | None:
    """When a job for both GPUs gets them though shorter ones keep coming; None: not until then.

    The longest job that was ever told of has come and gone before.
    """
    stage = Stage(WaterFilling(patience=1e9), gpus=2)
    gone = stage.submit(2, 2 * longest_s)
    stage.at(0.0)
    stage.book.finish(0.0, gone.key)
    stage.at(0.0)
    job = stage.submit(2, 2 * length_s)
    for now in range(0, int(until_s), 100):
        short = stage.submit(2, 200.0, elastic=False)
        stage.at(float(now))
        if job.held:
            assert job.held == 2, "all that its user asked for"
            return float(now)
        stage.book.view.now = now + 100.0
        stage.book.finish(now + 100.0, short.key)
    return None


def test_one_of_the_longest_is_not_late_for_ever() -> None:
    # 10,100 s of work are here, which are 9,897 in steps of a tenth. It is late at 1.2 * 10,000 s
    # and 0.8 * 9,897 s, less the 10,000 s that it takes, and then at the next decision.
    assert waits_among_shorter_ones(10_000.0, longest_s=10_000.0, until_s=2e4) == 10_000.0
    # Beside a longer one it has more time: 1.2 * 12,500 + 0.8 * 9,897 - 10,000 s.
    assert waits_among_shorter_ones(10_000.0, longest_s=12_500.0, until_s=2e4) == 13_000.0
    # It is none of the longest: only waiting helps, and this cluster is patient.
    assert waits_among_shorter_ones(10_000.0, longest_s=15_000.0, until_s=1e5) is None


def test_a_late_job_that_runs_on_half_gets_the_rest() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    long = stage.submit(4, 4e4)
    others = [stage.submit(1, 7e3, elastic=False) for _ in range(2)]
    stage.at(0.0)
    assert [long.held, *(each.held for each in others)] == [2, 1, 1]
    # A quarter is done: it is late at 12,000 s and 0.8 * 11,000 s of work here, less 7,500 s.
    for job, left_gpu_s in ((long, 3e4), *((each, 7e3) for each in others)):
        stage.book.tell(13_000.0, job, left_gpu_s=left_gpu_s, pace=0.0)
    stage.at(13_000.0)
    assert long.held == 2
    *_, last = stage.at(13_400.0)
    assert [long.held, *(each.held for each in others)] == [4, 0, 0]
    assert last.reason.startswith("it is one of the longest and late, so it gets what its user")


def test_where_several_are_late_each_has_its_first_piece_before_another_has_its_second() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    long = stage.submit(4, 4e4)
    others = [stage.submit(1, 9e3, elastic=False) for _ in range(2)]
    stage.at(0.0)
    for job, left_gpu_s in ((long, 3e4), *((each, 9e3) for each in others)):
        stage.book.tell(13_000.0, job, left_gpu_s=left_gpu_s, pace=0.0)
    stage.at(20_000.0)
    assert [long.held, *(each.held for each in others)] == [2, 1, 1]


def test_nobody_waits_for_gpus_that_hardly_speed_another_up() -> None:
    """Its last two GPUs bring the short job 7 and 3 %; a month's job begins before that."""
    stage = Stage(WaterFilling(), gpus=6)
    month, short = stage.submit(2, 5e6), stage.submit(2, 1e4)
    stage.at(0.0)
    assert month.held >= 1
    assert short.held >= 3


def test_in_a_crowd_whoever_has_more_left_than_most_has_fewer() -> None:
    for gpus, yields, stays in ((8, [2, 3, 3], [3, 3, 2]), (5, [0, 3, 2], [3, 2, 0])):
        # At a price that stays, sizes do not matter, and equals come in order of submission.
        for hold, held in ((0.5, yields), (1.0, stays)):
            stage = Stage(WaterFilling(hold=hold), gpus=gpus)
            jobs = [stage.submit(4, size) for size in (1e6, 1e3, 1e3)]
            stage.at(0.0)
            assert [job.held for job in jobs] == held


def test_the_mean_is_of_the_work_that_is_left_now() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    job, other = stage.submit(2, 1e5), stage.submit(2, 3e5)
    stage.at(0.0)
    assert stage.policy._mean_gpu_s == pytest.approx(2e5 + 500, rel=0.06)
    stage.book.tell(0.0, job, left_gpu_s=1e5, pace=2.0)
    stage.at(5e4)
    assert stage.policy._mean_gpu_s == pytest.approx(1.5e5 + 500, rel=0.06)
    stage.book.view.now = 5e4
    stage.book.finish(5e4, job.key)
    stage.at(5e4)
    assert stage.policy._mean_gpu_s == pytest.approx(3e5 + 500, rel=0.06)
    assert other.held == 4


def test_what_was_not_carried_out_is_decided_again() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    stage.submit(2, 1e4)
    view = stage.book.view
    first = stage.policy.decide(view)
    assert first
    assert stage.policy.decide(view) == first
