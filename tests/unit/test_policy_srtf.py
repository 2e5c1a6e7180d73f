"""Shortest remaining time first: the order, who is stopped, and that shortcuts change nothing."""

from __future__ import annotations

from hypothesis import given, settings

from edl.policy.base import Policy
from edl.policy.decisions import Decision, Preempt, Start
from edl.policy.srtf import Srtf
from edl.policy.view import Job, View
from tests.unit.clusters import Drawn, Stage, drawn, plain


def test_the_shortest_start_first_and_whoever_does_not_fit_is_passed_over() -> None:
    stage = Stage(Srtf())
    stage.submit(4, left_s=30)
    stage.submit(6, left_s=20)
    stage.submit(5, left_s=25)
    stage.submit(1, left_s=90)
    assert stage.decide() == [
        Start(1, 6, "20 s left: nobody with less could use its 6 GPUs"),
        Start(3, 1, "90 s left: nobody with less could use its 1 GPUs"),
    ]


def test_whoever_has_more_left_is_stopped_and_keeps_its_progress() -> None:
    stage = Stage(Srtf())
    stage.submit(8, left_s=100)
    stage.decide()
    stage.view.now = 40.0
    stage.submit(8, left_s=59)
    assert stage.decide() == [
        Preempt(0, "those with less time left need its GPUs"),
        Start(1, 8, "59 s left: nobody with less could use its 8 GPUs"),
    ]
    stage.view.now = 99.0
    stage.finish(1)
    assert stage.decide() == [Start(0, 8, "60 s left: nobody with less could use its 8 GPUs")]


def test_of_equals_whoever_runs_goes_on() -> None:
    stage = Stage(Srtf())
    stage.submit(8, left_s=100)
    stage.decide()
    stage.view.now = 40.0
    stage.submit(8, left_s=60)
    assert stage.decide() == []


def test_a_job_that_is_just_being_started_is_not_stopped_for_its_equal() -> None:
    stage = Stage(Srtf())
    stage.submit(8, left_s=5)
    stage.submit(8, left_s=5)
    assert plain(stage.decide()) == ["start 0: 8"]
    # Its first step comes at 20 s: until then it has 5 s left and makes no progress.
    stage.book.tell(20.0, stage.view.jobs[0], 40.0, 8.0)
    stage.policy.forget()
    assert stage.decide(1.0) == []
    assert stage.decide(19.0) == []
    stage.submit(8, left_s=4)
    assert plain(stage.decide()) == ["stop 0", "start 2: 8"]


def test_what_a_stopped_job_leaves_goes_to_whoever_is_next_and_fits() -> None:
    stage = Stage(Srtf())
    stage.submit(6, left_s=100)
    stage.submit(2, left_s=200)
    stage.decide()
    stage.submit(3, left_s=150)
    stage.submit(3, left_s=10)
    # 3 come first, then 6 do not fit into 5, so the other 3 do, then 2.
    assert plain(stage.decide()) == ["stop 0", "start 3: 3", "start 2: 3"]


def test_those_of_whom_nothing_is_known_come_last_and_do_not_stop_each_other() -> None:
    stage = Stage(Srtf())
    stage.submit(8, left_s=None)
    stage.submit(8, left_s=None)
    assert stage.decide() == [
        Start(0, 8, "nobody knows how long: nobody with less could use its 8 GPUs")
    ]
    assert stage.decide(50.0) == []
    stage.submit(8, left_s=1e9)
    assert plain(stage.decide()) == ["stop 0", "start 2: 8"]


class Naive(Policy):
    """The rule, word by word."""

    name = "naive"

    def decide(self, view: View) -> list[Decision]:
        def order(job: Job) -> tuple[float, bool, int]:
            left = job.left_at(view.now)
            assert left is not None
            return left / job.gpus, not job.held, job.key

        free, runs = view.capacity, []
        for job in sorted(view.jobs.values(), key=order):
            if job.gpus <= free:
                free -= job.gpus
                runs.append(job)
        stops = [job for job in view.jobs.values() if job.held and job not in runs]
        return [
            *(Preempt(job.key, "") for job in stops),
            *(Start(job.key, job.gpus, "") for job in runs if not job.held),
        ]


class Compared(Srtf):
    def decide(self, view: View) -> list[Decision]:
        naive = [(type(one), one.job) for one in Naive().decide(view)]
        decisions = super().decide(view)
        assert sorted(map(str, naive)) == sorted(str((type(one), one.job)) for one in decisions)
        return decisions


@given(case=drawn())
@settings(max_examples=12, deadline=None)
def test_looking_at_a_few_places_finds_what_the_rule_says(case: Drawn) -> None:
    case.engine(Compared(), together=False).run()
