"""Water filling in cases small enough to work out by hand."""

from __future__ import annotations

from edl.policy.book import Book
from edl.policy.decisions import Decision, ScaleOut
from edl.policy.throughput import Curve
from edl.policy.view import Job
from edl.policy.water_filling import WaterFilling, WaterFillingBlind
from tests.unit.clusters import LINEAR

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
    """The same story 128 times slower has the same end."""
    turns = []
    for pace in (1.0, 128.0):
        stage = Stage(WaterFilling(patience=0.2, turn=-30.0), gpus=2)
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
    stage.book.view.now = 2.0
    stage.book.finish(2.0, month.key)
    stage.at(2.0)
    assert stage.policy._patience_s == 0.25 * 1024
    assert short.held


def test_nobody_waits_for_gpus_that_hardly_speed_another_up() -> None:
    """Its last two GPUs bring the short job 7 and 3 %; a month's job begins before that."""
    for turn, share in ((-2.0, 1), (-30.0, 0)):
        stage = Stage(WaterFilling(turn=turn, own=0.0), gpus=6)
        month, short = stage.submit(2, 5e6), stage.submit(2, 1e4)
        stage.at(0.0)
        assert (month.held >= 1) == bool(share), (turn, month.held, short.held)
        assert short.held >= 3


def test_what_was_not_carried_out_is_decided_again() -> None:
    stage = Stage(WaterFilling(), gpus=4)
    stage.submit(2, 1e4)
    view = stage.book.view
    first = stage.policy.decide(view)
    assert first
    assert stage.policy.decide(view) == first
