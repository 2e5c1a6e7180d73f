"""Who is a straggler, by the step records alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from edl.protocol.record import StepRecord
from edl.protocol.stragglers import Judgement, Stragglers
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.types import WorkerId
from tests.seeded.cast import first, member, record, w

STEPS = 10
NOBODY = Judgement()
EVEN = {0: 100, 1: 100, 2: 100, 3: 100}
SLOW = EVEN | {2: 130}


class Job:
    """Workers that take so many microseconds a sample."""

    def __init__(
        self, *ranks: int, factor: float = 1.2, steps: int = STEPS, least_s: float = 0.0
    ) -> None:
        self.judge = Stragglers(factor=factor, steps=steps, least_s=least_s)
        self.generation: Generation = first(*ranks)
        self.last: dict[WorkerId, int] = {}

    def step(
        self, us: Mapping[int, float], *, samples: Mapping[int, int] | None = None
    ) -> Judgement:
        """One step; its records time the one before, as those of real workers do."""
        records: list[StepRecord] = []
        for worker in self.generation.workers():
            rank = int(worker[1:])
            took = int(us.get(rank, 0) * self.last.get(worker, 0))
            share = samples[rank] if samples is not None else 16
            records.append(replace(record(samples=share), compute_us=took))
            self.last[worker] = share
        return self.judge.on_step(self.generation, records)

    def steps(self, count: int, us: Mapping[int, float]) -> list[Judgement]:
        return [self.step(us) for _ in range(count)]

    def warmed(self) -> Job:
        assert set(self.steps(20, EVEN)) == {NOBODY}
        return self

    def join(self, rank: int) -> None:
        self.generation = draw_next(
            self.generation,
            number=self.generation.number + 1,
            joiners=[member(rank)],
            leavers=(),
            token=3,
            request_id="",
        )

    def lose(self, rank: int) -> None:
        self.generation = draw_again(
            self.generation,
            number=self.generation.number + 1,
            dead=[w(rank)],
            leader=w(0),
            token=3,
        )


def test_a_worker_over_the_factor_for_so_many_steps_in_a_row_is_found_once() -> None:
    job = Job(0, 1, 2, 3).warmed()
    assert job.steps(STEPS - 1, SLOW) == [NOBODY] * (STEPS - 1)
    assert job.step(SLOW) == Judgement(found=(w(2),))
    assert job.steps(30, SLOW) == [NOBODY] * 30
    assert job.judge.slow == {w(2): 1.3}


def test_of_two_workers_one_is_measured_by_the_other() -> None:
    job = Job(0, 1).warmed()
    assert job.steps(STEPS, EVEN | {0: 125})[-1] == Judgement(found=(w(0),))


def test_just_under_the_factor_is_no_straggler() -> None:
    assert set(Job(0, 1).warmed().steps(50, EVEN | {1: 119})) == {NOBODY}


def test_factor_and_steps_can_be_set() -> None:
    job = Job(0, 1, factor=2.0, steps=3).warmed()
    assert set(job.steps(20, EVEN | {1: 190})) == {NOBODY}
    assert job.steps(3, EVEN | {1: 210})[-1] == Judgement(found=(w(1),))


def test_a_job_that_is_slow_as_a_whole_has_no_straggler() -> None:
    job = Job(0, 1, 2, 3).warmed()
    assert set(job.steps(50, dict.fromkeys(EVEN, 1000))) == {NOBODY}


def test_a_hiccup_makes_no_straggler_and_begins_no_row() -> None:
    job = Job(0, 1, 2, 3).warmed()
    assert job.step(EVEN | {1: 5000}) == NOBODY
    job.steps(STEPS - 1, SLOW)
    assert job.step(EVEN) == NOBODY
    assert set(job.steps(STEPS - 1, SLOW)) == {NOBODY}


def test_hiccups_of_another_worker_do_not_hide_a_straggler() -> None:
    job = Job(0, 1, 2, 3).warmed()
    job.steps(4, SLOW)
    job.step(SLOW | {1: 5000})
    assert job.steps(5, SLOW)[-1] == Judgement(found=(w(2),))


def test_a_straggler_that_has_recovered_for_as_many_steps_is_gone() -> None:
    job = Job(0, 1, 2, 3).warmed()
    job.steps(STEPS, SLOW)
    assert job.steps(STEPS - 1, EVEN) == [NOBODY] * (STEPS - 1)
    assert job.step(EVEN) == Judgement(gone=(w(2),))
    assert job.judge.slow == {}


def test_several_stragglers_are_found_at_once() -> None:
    job = Job(0, 1, 2, 3).warmed()
    found = job.steps(STEPS, EVEN | {1: 150, 3: 200})[-1]
    assert found == Judgement(found=(w(1), w(3)))
    assert job.judge.slow == {w(1): 1.5, w(3): 2.0}


def test_a_larger_share_makes_no_straggler() -> None:
    job = Job(0, 1, 2, 3).warmed()
    shares = {0: 16, 1: 16, 2: 64, 3: 2}
    assert {job.step(EVEN, samples=shares) for _ in range(40)} == {NOBODY}


def test_whoever_is_slow_and_has_so_little_to_do_that_nobody_waits_is_not_found() -> None:
    job = Job(0, 1, 2, 3).warmed()
    shares = {0: 16, 1: 16, 2: 8, 3: 16}
    assert {job.step(SLOW, samples=shares) for _ in range(40)} == {NOBODY}


def test_a_straggler_with_a_smaller_share_is_still_one() -> None:
    job = Job(0, 1, 2, 3).warmed()
    job.steps(STEPS, SLOW)
    shares = {0: 16, 1: 16, 2: 12, 3: 16}
    assert {job.step(SLOW, samples=shares) for _ in range(40)} == {NOBODY}
    assert job.judge.slow == {w(2): 1.3}


def test_steps_that_cost_the_same_whatever_the_shares_make_no_straggler() -> None:
    job = Job(0, 1, 2).warmed()
    same = {0: 100 / 3, 1: 100 / 2, 2: 100 / 2}
    assert {job.step(same, samples={0: 3, 1: 2, 2: 2}) for _ in range(40)} == {NOBODY}


def test_steps_without_a_share_neither_count_nor_interrupt() -> None:
    job = Job(0, 1, 2, 3).warmed()
    job.steps(5, SLOW)
    job.step(SLOW, samples={0: 16, 1: 16, 2: 0, 3: 0})
    job.step(SLOW)
    assert job.steps(4, SLOW)[-1] == Judgement(found=(w(2),))


def test_whoever_does_not_tell_its_time_is_not_judged() -> None:
    job = Job(0, 1, 2, 3).warmed()
    assert set(job.steps(40, {0: 100, 1: 100})) == {NOBODY}


def test_a_worker_alone_is_no_straggler() -> None:
    assert set(Job(0).steps(40, {0: 100})) == {NOBODY}


def test_the_first_steps_of_a_newcomer_are_not_judged() -> None:
    job = Job(0, 1, 2, steps=3).warmed()
    job.join(3)
    # Its first record times nothing, the second a step without a share.
    job.last[w(3)] = 0
    assert set(job.steps(6, EVEN | {3: 900})) == {NOBODY}
    assert set(job.steps(20, EVEN)) == {NOBODY}


def test_a_newcomer_that_stays_slow_is_found() -> None:
    job = Job(0, 1, 2).warmed()
    job.join(3)
    assert Judgement(found=(w(3),)) in job.steps(30, EVEN | {3: 150})


def test_steps_before_and_after_a_change_of_generation_are_no_row() -> None:
    job = Job(0, 1, 2).warmed()
    job.steps(STEPS - 1, SLOW)
    job.join(3)
    assert set(job.steps(STEPS - 1, SLOW)) == {NOBODY}


def test_what_is_done_again_after_a_failure_is_not_judged() -> None:
    job = Job(0, 1, 2, 3, steps=2).warmed()
    job.lose(3)
    # The attempt that broke waited for whoever was lost.
    assert job.step(EVEN | {1: 9000}) == NOBODY
    assert job.step(EVEN | {1: 9000}) == NOBODY
    assert set(job.steps(20, EVEN)) == {NOBODY}


def test_a_straggler_stays_one_through_a_change_of_generation() -> None:
    job = Job(0, 1, 2).warmed()
    job.steps(STEPS, SLOW)
    job.join(3)
    assert set(job.steps(30, SLOW)) == {NOBODY}
    assert job.judge.slow == {w(2): 1.3}


def test_a_straggler_that_left_is_gone() -> None:
    job = Job(0, 1, 2, 3).warmed()
    job.steps(STEPS, SLOW)
    job.lose(2)
    assert job.step(EVEN) == Judgement(gone=(w(2),))


def test_ten_short_steps_in_a_row_are_a_slow_spell_until_they_have_lasted() -> None:
    # 16 samples of 130 microseconds are 2.08 ms: 25 of them are the first that last for 0.05 s.
    job = Job(0, 1, 2, 3, least_s=0.05).warmed()
    assert job.steps(24, SLOW) == [NOBODY] * 24
    assert job.step(EVEN) == NOBODY
    assert job.steps(24, SLOW) == [NOBODY] * 24
    assert job.step(SLOW) == Judgement(found=(w(2),))
