"""First in, first out; and Static, which is the same by the paper's name."""

from __future__ import annotations

from edl.policy.decisions import Preempt, Start
from edl.policy.fifo import Fifo
from edl.policy.static import Static
from tests.unit.clusters import Stage, arrival, engine, plain


def test_jobs_start_in_the_order_of_submission_with_what_users_asked_for() -> None:
    stage = Stage(Fifo())
    stage.submit(4)
    stage.submit(2)
    assert stage.decide() == [
        Start(0, 4, "first of those that wait, and its 4 GPUs are free"),
        Start(1, 2, "first of those that wait, and its 2 GPUs are free"),
    ]


def test_nobody_passes_the_first_one_though_gpus_are_idle() -> None:
    stage = Stage(Fifo())
    for gpus in (4, 5, 1):
        stage.submit(gpus)
    assert plain(stage.decide()) == ["start 0: 4"]
    stage.finish(0)
    assert plain(stage.decide()) == ["start 1: 5", "start 2: 1"]


def test_nobody_is_stopped_or_resized() -> None:
    stage = Stage(Fifo())
    stage.submit(4)
    assert plain(stage.decide()) == ["start 0: 4"]
    stage.submit(8, left_s=0.1)
    assert stage.decide() == []
    assert stage.held() == {0: 4, 1: 0}
    assert stage.policy.wake(stage.view) is None


def test_whoever_was_stopped_by_others_has_its_old_place_in_line() -> None:
    stage = Stage(Fifo())
    stage.submit(8)
    stage.submit(8)
    stage.decide()
    stage.apply([Preempt(0, "its machine is repaired")])
    assert plain(stage.decide()) == ["start 0: 8"]


def test_static_runs_the_first_8_of_the_papers_16_jobs_and_lets_the_others_wait() -> None:
    run = engine(
        [arrival(30.0 * i, 4, 10_000.0) for i in range(16)], Static(), nodes=4, gpus_per_node=8
    )
    while run.now < 450.0:
        run.step()
    assert [job.held for job in run.book.view.jobs.values()] == [4] * 8 + [0] * 8
    run.run()
    assert [done.start_s for _, done in run.finished[8:]] == [10_000.0 + 30 * i for i in range(8)]
    assert Static.name == "static"
