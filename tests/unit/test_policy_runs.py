"""Every policy, on drawn traces: every job ends, no GPU is held twice, and no work is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from edl.policy.base import Policy
from edl.policy.decisions import Decision, ScaleOut, Start
from edl.policy.placement import machines_for
from edl.policy.together import Together
from edl.policy.view import View
from tests.unit.clusters import MAKERS, Drawn, drawn

few = settings(max_examples=12, deadline=None)
# Those whose index is a shortcut and no memory. (Optimus remembers which round it was.)
INDEXED = (
    "wf-srpt",
    "wf-las",
    "fifo",
    "srtf",
    "tiresias",
    "tiresias-gittins",
    "elastic-tiresias",
    "uniform",
)


class Watched(Policy):
    """Looks at the decisions of another one: each job has one, and a reason; places are lawful."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.name = inner.name

    def wake(self, view: View) -> float | None:
        return self.inner.wake(view)

    def decide(self, view: View) -> list[Decision]:
        before = {key: job.held for key, job in view.jobs.items()}
        decisions = self.inner.decide(view)
        changed = [decision.job for decision in decisions if type(decision).__name__ != "Requeue"]
        assert len(changed) == len(set(changed)), decisions
        for decision in decisions:
            assert decision.reason
            if view.together and isinstance(decision, Start | ScaleOut):
                self.lies_together(view, decision)
        assert before == {key: job.held for key, job in view.jobs.items()}, "a policy only reads"
        return decisions

    @staticmethod
    def lies_together(view: View, decision: Start | ScaleOut) -> None:
        job = view.jobs[decision.job]
        # The constraint of R1 for whoever starts; whoever grows may have lain apart before.
        allowed = machines_for(max(job.gpus, decision.gpus), view.gpus_per_node)
        allowed = max(allowed, len(job.where))
        assert len(decision.where) <= allowed, (decision, job)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", MAKERS)
@given(case=drawn())
@few
def test_every_job_ends_and_no_work_is_lost(name: str, together: bool, case: Drawn) -> None:
    run = case.engine(MAKERS[name](), together=together)
    run.policy = Watched(run.policy)
    run.run()
    assert sorted(key for key, _ in run.finished) == list(range(len(case.arrivals)))
    view = run.book.view
    assert view.free == view.capacity
    assert view.free_on == [case.gpus_per_node] * case.nodes * together
    for key, done in run.finished:
        asked = case.arrivals[key]
        # It cannot be faster than its fastest, and held what it held while it did not wait.
        rate = asked.curve.rate
        quickest = asked.size_gpu_s / asked.gpus * rate[asked.gpus] / max(rate)
        assert done.end_s - done.submit_s >= done.wait_s + done.stopped_s + quickest * (1 - 1e-9)
        ran = done.end_s - done.submit_s - done.wait_s
        assert done.held_gpu_s <= ran * view.capacity * (1 + 1e-9)
        if not asked.elastic:
            assert done.held_gpu_s == pytest.approx(ran * asked.gpus)
    held = sum(done.held_gpu_s for _, done in run.finished)
    assert run.recorder.used_gpu_s == pytest.approx(held)


class Doubled(Policy):
    """Asks the one that was there all the time, and one that was made a moment ago."""

    def __init__(self, inner: Policy, make: Callable[[], Policy]) -> None:
        self.inner = inner
        self.make = make
        self.name = inner.name

    def wake(self, view: View) -> float | None:
        return self.inner.wake(view)

    def decide(self, view: View) -> list[Decision]:
        # Not the curves: jobs are alike if they have the same one.
        curves = {id(job.curve): job.curve for job in view.jobs.values()}
        fresh = self.make().decide(copy.deepcopy(view, dict(curves)))
        decisions = self.inner.decide(view)
        assert decisions == fresh
        return decisions


class Asked(Policy):
    """Remembers when it was asked last."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.name = inner.name
        self.resizes = inner.resizes
        self.places = inner.places
        self.at_s = -1.0

    def wake(self, view: View) -> float | None:
        return self.inner.wake(view)

    def decide(self, view: View) -> list[Decision]:
        self.at_s = view.now
        return self.inner.decide(view)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("name", INDEXED)
@given(case=drawn())
@few
def test_an_index_is_no_memory(name: str, together: bool, case: Drawn) -> None:
    make = MAKERS[name]
    run = case.engine(make(), together=together)
    wrapped = isinstance(run.policy, Together)
    run.policy = Doubled(run.policy, (lambda: Together(make())) if wrapped else make)
    run.run()


# Elastic-Tiresias may need a second look: whom compaction started now runs, and runs before others.
@pytest.mark.parametrize("name", sorted(set(MAKERS) - {"elastic-tiresias"}))
@given(case=drawn())
@few
def test_deciding_again_changes_nothing_more(name: str, case: Drawn) -> None:
    run = case.engine(MAKERS[name](), together=False)
    run.policy = asked = Asked(run.policy)
    while run.step():
        # A policy that rests between its decisions may have changed its mind at other events.
        if asked.at_s == run.now:
            again = asked.inner.decide(run.book.view)
            assert again == [], (run.now, again)


@pytest.mark.parametrize("name", MAKERS)
@given(case=drawn())
@few
def test_what_was_not_carried_out_is_decided_again(name: str, case: Drawn) -> None:
    run = case.engine(MAKERS[name](), together=False)
    policy, view = run.policy, run.book.view
    for arrival in case.arrivals:
        run.book.submit(
            0.0,
            arrival.name,
            gpus=arrival.gpus,
            curve=arrival.curve,
            least=arrival.least,
            most=arrival.most,
            elastic=arrival.elastic,
            left_gpu_s=arrival.size_gpu_s,
        )
    first = policy.decide(view)
    assert first
    if name == "optimus":
        view.now = 60.0
    assert policy.decide(view) == first
