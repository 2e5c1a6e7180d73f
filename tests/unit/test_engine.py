"""The simulation, worked by hand: when jobs end, what adjustments cost, and what is recorded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Migrate, Preempt, ScaleIn, ScaleOut, Start
from edl.policy.fifo import Fifo
from edl.policy.throughput import Curve, StepModel
from edl.policy.view import View
from edl.simulator.cost import SimulatedJob
from edl.simulator.engine import Engine
from edl.simulator.outcome import JobOutcome
from edl.simulator.timeline import Recorder
from tests.unit.clusters import FALLING, Drawn, arrival, drawn, engine


class Plan(Policy):
    """Decides at given moments what a test says."""

    name = "plan"

    def __init__(self, **at: list[Decision]) -> None:
        self.at = {float(key[1:]): decisions for key, decisions in at.items()}

    def decide(self, view: View) -> list[Decision]:
        view.take_news()
        return self.at.pop(view.now, [])

    def wake(self, view: View) -> float | None:
        return min(self.at, default=None)


def outcome(run: Engine) -> JobOutcome:
    run.run()
    ((_, done),) = run.finished
    return done


def alone(mechanism: str, **at: list[Decision]) -> JobOutcome:
    """One job that takes 100 s with its 4 GPUs, and goes at 31, 18 and 45 of a unit on 4, 2, 8."""
    return outcome(engine([arrival(0.0, 4, 100.0, curve=FALLING)], Plan(**at), mechanism=mechanism))


# -- prices ----------------------------------------------------------------------------------------


def test_alone_with_what_its_user_asked_for_a_job_takes_its_duration() -> None:
    done = alone("ideal", t0=[Start(0, 4, "x")])
    assert (done.start_s, done.end_s, done.held_gpu_s) == (0.0, 100.0, 400.0)
    assert (done.wait_s, done.stopped_s, done.adjustments, done.preemptions) == (0.0, 0.0, 0, 0)


def test_a_start_takes_a_while() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")])
    assert (done.end_s, done.stopped_s) == (120.0, 20.0)


def test_speed_changes_with_the_number_of_gpus() -> None:
    done = alone("ideal", t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")])
    # Half of it is left, at 45 / 31 of the speed.
    assert done.end_s == pytest.approx(50 + 50 * 31 / 45)
    assert done.held_gpu_s == pytest.approx(200 + 8 * 50 * 31 / 45)
    assert done.adjustments == 1


def test_with_edl_new_gpus_are_prepared_beside_training() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")])
    # From 20 to 70 with 4, then a second still, then 50 s worth of work with 8.
    assert done.end_s == pytest.approx(71 + 50 * 31 / 45)
    assert done.stopped_s == 21.0


def test_with_stop_and_resume_everybody_stands_still() -> None:
    done = alone("stop-resume", t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")])
    # From 20 to 50, then until 90 nothing, then 70 s worth of work with 8.
    assert done.end_s == pytest.approx(90 + 70 * 31 / 45)
    assert done.stopped_s == 60.0


def test_giving_back_costs_nothing_with_edl_and_a_restart_without() -> None:
    plan: dict[str, list[Decision]] = {"t0": [Start(0, 4, "x")], "t50": [ScaleIn(0, 2, "x")]}
    assert alone("edl", **plan).end_s == pytest.approx(50 + 70 * 31 / 18)
    plan = {"t0": [Start(0, 4, "x")], "t50": [ScaleIn(0, 2, "x")]}
    assert alone("stop-resume", **plan).end_s == pytest.approx(90 + 70 * 31 / 18)


def test_what_is_being_prepared_is_given_back_first() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")], t60=[ScaleIn(0, 5, "x")])
    # One of the four new ones stays: 5 from 70 on.
    assert done.end_s == pytest.approx(71 + 50 * 31 / 36)
    assert done.held_gpu_s == pytest.approx(200 + 80 + 5 * (done.end_s - 60))
    done = alone("edl", t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")], t60=[ScaleIn(0, 2, "x")])
    # All of them and two more: 2 from 60 on, when 60 s of work are left.
    assert done.end_s == pytest.approx(60 + 60 * 31 / 18)


def test_a_job_that_ends_before_its_new_gpus_are_ready_never_uses_them() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")], t110=[ScaleOut(0, 8, "x")])
    assert (done.end_s, done.held_gpu_s) == (120.0, 440.0 + 80.0)


def test_a_stopped_job_keeps_its_progress_and_pays_for_starting_again() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")], t50=[Preempt(0, "x")], t80=[Start(0, 4, "x")])
    # 30 s of work are done at 50. From 100 on the other 70.
    assert (done.end_s, done.wait_s, done.preemptions) == (170.0, 30.0, 1)
    assert done.stopped_s == 40.0


def test_a_job_stopped_while_it_starts_has_done_nothing() -> None:
    done = alone("edl", t0=[Start(0, 4, "x")], t5=[Preempt(0, "x")], t10=[Start(0, 4, "x")])
    assert (done.end_s, done.stopped_s, done.wait_s) == (130.0, 25.0, 5.0)


def test_a_move_is_one_switch() -> None:
    plan = Plan(
        t0=[Start(0, 4, "x", ((0, 4),))],
        t50=[Migrate(0, 4, "x", ((1, 4),))],
    )
    jobs = [arrival(0.0, 4, 100.0, curve=FALLING)]
    run = engine(jobs, plan, nodes=2, together=True, mechanism="edl", window_s=(0.0, 999.0))
    assert outcome(run).end_s == 121.0
    # The chart has two spans that meet.
    assert [(span.begin_s, span.end_s) for span in run.spans] == [(0.0, 50.0), (50.0, 121.0)]


# -- places ----------------------------------------------------------------------------------------

MODEL = StepModel(a=0.0, b=0.01, c=0.0, d=0.0, e=0.1)


def test_a_job_on_more_machines_than_need_be_is_slower() -> None:
    curve = Curve.fitted(MODEL, 100, gpus_per_node=4, least=4, most=4)
    # A step takes 0.25 s on one machine, 0.35 s on two.
    jobs = [arrival(0.0, 4, 100.0, curve=curve, most=4)]
    plan = Plan(t0=[Start(0, 4, "x", ((0, 2), (1, 2)))])
    assert outcome(engine(jobs, plan, nodes=2, together=True)).end_s == pytest.approx(140.0)


def test_it_is_slower_also_after_new_gpus_are_ready() -> None:
    curve = Curve.fitted(MODEL, 100, gpus_per_node=4, least=4, most=4)
    jobs = [arrival(0.0, 4, 100.0, curve=curve, most=4)]
    plan = Plan(
        t0=[Start(0, 2, "x", ((0, 1), (1, 1)))],
        t20=[ScaleOut(0, 4, "x", ((0, 2), (1, 2)))],
    )
    done = outcome(engine(jobs, plan, nodes=2, gpus_per_node=4, together=True, mechanism="edl"))
    # From 20 to 40 a step takes 0.6 s instead of 0.25, from 41 on 0.35.
    left = 100 - 20 * 0.25 / 0.6
    assert done.end_s == pytest.approx(41 + left * 0.35 / 0.25)


# -- events ----------------------------------------------------------------------------------------


def test_jobs_that_come_at_one_moment_are_decided_about_at_once() -> None:
    run = engine([arrival(5.0, 4, 10.0), arrival(5.0, 4, 10.0)], Fifo())
    assert run.step()
    assert (run.now, run.running, run.events) == (5.0, 2, 1)
    assert run.step()
    assert (run.now, len(run.finished)) == (15.0, 2)
    assert not run.step()


def test_a_policy_that_leaves_jobs_waiting_for_ever_is_told_of() -> None:
    run = engine([arrival(0.0, 4, 10.0)], Plan())
    with pytest.raises(AssertionError, match="1 jobs wait for ever under plan"):
        run.run()


def test_a_policy_that_wakes_again_and_again_is_told_of() -> None:
    class Restless(Fifo):
        def wake(self, view: View) -> float | None:
            return view.now

    with pytest.raises(AssertionError, match="again and again"):
        engine([arrival(0.0, 4, 10.0)], Restless()).run()


def test_nobody_is_woken_in_an_empty_cluster() -> None:
    class Early(Fifo):
        asked: list[float]

        def decide(self, view: View) -> list[Decision]:
            self.asked.append(view.now)
            return super().decide(view)

        def wake(self, view: View) -> float | None:
            return view.now + 7.0

    policy = Early()
    policy.asked = []
    engine([arrival(0.0, 4, 10.0), arrival(50.0, 4, 1.0)], policy).run()
    assert policy.asked == [0.0, 7.0, 10.0, 50.0, 51.0]


def test_a_job_tells_what_it_has_left_and_how_fast_it_goes() -> None:
    plan = Plan(t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")])
    run = engine([arrival(0.0, 4, 100.0, curve=FALLING)], plan, mechanism="edl")
    run.step()
    job = run.book.view.jobs[0]
    assert [job.left_at(now) for now in (0.0, 20.0, 50.0)] == [400.0, 400.0, 280.0]
    run.step()
    run.step()
    assert run.now == 70.0
    assert job.left_at(71.0) == pytest.approx(200.0)
    assert job.left_at(72.0) == pytest.approx(200.0 - 4 * 45 / 31)


def test_late_moments_are_no_trouble() -> None:
    for late in (1e6, 1e7, 1.7e9):
        run = engine([arrival(late + 0.1 * i, 3, 0.7, curve=FALLING) for i in range(20)], Fifo())
        run.run()
        assert len(run.finished) == 20


def test_progress_is_told_of() -> None:
    heard: list[tuple[int, int]] = []
    engine([arrival(float(i), 8, 1.0) for i in range(3)], Fifo()).run(
        lambda done, of: heard.append((done, of))
    )
    assert heard == [(1, 3), (2, 3), (3, 3), (3, 3)]


def test_the_same_trace_gives_the_same_outcome() -> None:
    jobs = [arrival(3.0 * i, 1 + i % 5, 7.0 * i + 1, curve=FALLING) for i in range(30)]
    first, second = (engine(jobs, Fifo(), mechanism="edl") for _ in range(2))
    first.run()
    second.run()
    assert first.finished == second.finished


def test_work_done_is_never_lost_between_settlements() -> None:
    run = engine([arrival(0.0, 4, 100.0, curve=FALLING)], Plan(t0=[Start(0, 4, "x")]))
    run.step()
    (job,) = run.jobs.values()
    assert isinstance(job, SimulatedJob)
    heard: list[tuple[float, float, float]] = []
    for now in (1.0, 1.0, 33.3, 70.0):
        job.settle(now, lambda begin, end, worth: heard.append((begin, end, worth)))
    assert job.left_gpu_s == pytest.approx(400 - 70 * 4)
    assert [(begin, end) for begin, end, _ in heard] == [(0.0, 1.0), (1.0, 33.3), (33.3, 70.0)]


# -- what is recorded ------------------------------------------------------------------------------


def test_spans_cover_what_was_held() -> None:
    plan = Plan(t0=[Start(0, 4, "x")], t50=[ScaleOut(0, 8, "x")])
    run = engine([arrival(0.0, 4, 100.0, curve=FALLING)], plan, window_s=(0.0, 1000.0))
    done = outcome(run)
    assert [(span.begin_s, span.gpus) for span in run.spans] == [(0.0, 4), (50.0, 8)]
    held = sum((span.end_s - span.begin_s) * span.gpus for span in run.spans)
    assert held == pytest.approx(done.held_gpu_s)


def test_the_timeline_is_what_happened_in_each_bin() -> None:
    run = engine([arrival(0.0, 4, 10.0, curve=FALLING), arrival(5.0, 8, 10.0)], Fifo())
    run.run()
    line = run.recorder.timeline(20.0)
    assert line.bin_s * len(line.used) == pytest.approx(20.0)
    half = len(line.used) // 2
    assert line.used == pytest.approx([4.0] * half + [8.0] * half)
    assert line.worth == pytest.approx([3.1] * half + [8.0] * half)
    assert line.running == pytest.approx([1.0] * 2 * half)
    assert sum(line.waiting) * line.bin_s == pytest.approx(5.0)
    assert line.waiting[:1] == (0.0,)


spans = st.lists(
    st.tuples(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0, 9)), min_size=1, max_size=12
)


@given(spans=spans, bins=st.integers(1, 9), expected_s=st.floats(0, 2e3))
@settings(max_examples=50, deadline=None)
def test_bins_hold_all_of_every_span(
    spans: list[tuple[float, float, float]], bins: int, expected_s: float
) -> None:
    recorder = Recorder(expected_s, bins)
    for begin, length, worth in spans:
        recorder.useful(begin, begin + length, worth)
    end_s = 1.0 + max(begin + length for begin, length, _ in spans)
    line = recorder.timeline(end_s)
    assert len(line.worth) <= bins + 1
    rest = end_s - (len(line.worth) - 1) * line.bin_s
    total = sum(line.worth[:-1]) * line.bin_s + line.worth[-1] * rest
    assert total == pytest.approx(sum(length * worth for _, length, worth in spans), abs=1e-3)
    assert recorder.worth_gpu_s == pytest.approx(total, abs=1e-3)


@given(case=drawn())
@settings(max_examples=20, deadline=None)
def test_useful_work_is_what_the_jobs_needed(case: Drawn) -> None:
    run = case.engine(Fifo(), together=False)
    run.run()
    # With its user's GPUs each job does its work in its duration, however it was interrupted.
    needed = sum(job.size_gpu_s / job.gpus * job.curve.worth[job.gpus] for job in case.arrivals)
    assert run.recorder.worth_gpu_s == pytest.approx(needed)
