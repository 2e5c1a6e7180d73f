"""Numbers become places: who is packed, who starts smaller, who moves, and who is left waiting."""

from __future__ import annotations

from edl.policy.decisions import Migrate, Preempt, Requeue, ScaleIn, ScaleOut, Start, Where
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.fifo import Fifo
from edl.policy.srtf import Srtf
from edl.policy.throughput import Curve
from edl.policy.tiresias import Tiresias
from edl.policy.together import Together
from tests.unit.clusters import FALLING, Scripted, Stage, placed


class Machines(Stage):
    """Machines of 4 GPUs and a policy that says what a test wants it to."""

    def __init__(self, nodes: int, *, share: float | None = None, moves: int = 2) -> None:
        self.inner = Scripted()
        together = Together(self.inner, share=share, moves=moves)
        super().__init__(together, nodes=nodes, gpus_per_node=4, together=True)

    def running(self, where: Where, *, elastic: bool = True) -> int:
        gpus = sum(count for _, count in where)
        job = self.submit(gpus, elastic=elastic)
        self.apply([Start(job.key, gpus, "before", where)])
        return job.key

    def told(self, *script: Start | ScaleOut | ScaleIn | Preempt | Requeue) -> list[str]:
        self.inner.script = list(script)
        return placed(self.decide())

    def wake(self) -> float | None:
        return self.policy.wake(self.view)


def test_a_start_is_packed_where_it_fits_best() -> None:
    stage = Machines(3)
    stage.running(((1, 1),))
    stage.submit(2)
    stage.submit(6)
    told = stage.told(Start(1, 2, "x"), Start(2, 6, "x"))
    assert told == ["start 1: 2 at 1*2", "start 2: 6 at 0*4 2*2"]


def test_places_come_in_the_order_in_which_they_fall_free() -> None:
    stage = Machines(4)
    for node in range(3):
        stage.running(((node, 4),))
    mover = stage.running(((3, 1),))
    assert mover == 3
    stage.submit(4)
    stage.submit(2)
    told = stage.told(
        Start(4, 4, "x"),
        ScaleOut(1, 5, "x"),
        Requeue(2, 1, "x"),
        Preempt(0, "x"),
        ScaleIn(2, 2, "x"),
        Start(5, 2, "x"),
    )
    assert told == [
        "queue 2: 1",
        "stop 0",
        "in 2: 2 at 2*2",
        "out 1: 5 at 1*4 3*1",
        "start 4: 4 at 0*4",
        "start 5: 2 at 2*2",
    ]


def test_without_machines_decisions_stay_as_they_are() -> None:
    inner = Scripted(Start(0, 4, "x"))
    stage = Stage(Together(inner))
    stage.submit(4)
    assert stage.decide() == [Start(0, 4, "x")]


def test_waking_and_forgetting_are_the_inner_ones() -> None:
    inner = Scripted()
    policy = Together(inner)
    stage = Stage(policy, together=True)
    inner.wakes = 77.0
    stage.decide()
    assert policy.wake(stage.view) == 77.0
    policy.forget()
    assert inner.forgotten
    assert Together(Tiresias()).name == "tiresias"


# -- starting with fewer ---------------------------------------------------------------------------


def test_an_elastic_job_starts_with_as_many_as_lie_together() -> None:
    stage = Machines(2)
    stage.running(((0, 1),))
    stage.running(((1, 2),))
    stage.submit(4)
    stage.inner.script = [Start(2, 4, "its turn")]
    where = ((0, 3),)
    assert stage.decide() == [Start(2, 3, "its turn; of 4 GPUs 3 lie together", where)]
    assert stage.wake() is None


def test_never_with_fewer_than_half_of_what_its_user_asked_for() -> None:
    stage = Machines(2, moves=0)
    stage.running(((0, 3),))
    stage.running(((1, 3),))
    stage.submit(4)
    assert stage.told(Start(2, 4, "x")) == []
    stage.submit(2)
    assert stage.told(Start(3, 2, "x")) == ["start 3: 1 at 0*1"]


def test_nor_with_fewer_than_its_least() -> None:
    stage = Machines(1, moves=0)
    stage.running(((0, 2),))
    stage.submit(4, least=3)
    assert stage.told(Start(1, 4, "x")) == []


def test_nor_with_a_number_on_which_it_is_slower_than_on_fewer() -> None:
    stage = Machines(1)
    stage.running(((0, 1),))
    stage.submit(4, curve=Curve([0.0, 10, 18, 12, 30]))
    assert stage.told(Start(1, 4, "x")) == ["start 1: 2 at 0*2"]


def test_an_elastic_job_may_lie_on_as_many_machines_as_its_users_number_needs() -> None:
    stage = Machines(3)
    for node in range(3):
        stage.running(((node, 1),))
    stage.submit(6)
    # No machine is idle. Two would hold 6 GPUs, so two it may use.
    assert stage.told(Start(3, 6, "x")) == ["start 3: 6 at 0*3 1*3"]


def test_an_inelastic_one_is_packed_or_waits() -> None:
    stage = Machines(3, moves=0)
    for node in range(3):
        stage.running(((node, 1),))
    stage.submit(6, elastic=False)
    assert stage.told(Start(3, 6, "x")) == []
    assert stage.wake() == 60.0


def test_an_expanded_start_may_use_the_machines_of_its_number() -> None:
    stage = Machines(2)
    stage.submit(2)
    assert stage.told(Start(0, 8, "x")) == ["start 0: 8 at 0*4 1*4"]
    stage = Machines(2)
    stage.running(((0, 2),))
    stage.running(((1, 1),))
    stage.submit(2)
    # 8 do not lie together, so what its user asked for is tried next.
    assert stage.told(Start(2, 5, "x")) == ["start 2: 5 at 0*2 1*3"]
    stage = Machines(2)
    stage.running(((0, 2),))
    stage.running(((1, 2),))
    stage.submit(2)
    assert stage.told(Start(2, 5, "x")) == ["start 2: 2 at 0*2"]


def test_under_policies_that_never_resize_nobody_starts_with_fewer() -> None:
    for rigid in (Fifo(), Srtf(), Tiresias()):
        assert Together(rigid).share == 1.0
    assert Together(ElasticTiresias()).share == 0.5
    stage = Stage(Together(Tiresias(), moves=0), nodes=2, gpus_per_node=4, together=True)
    for gpus in (3, 3, 2):
        stage.submit(gpus)
    assert placed(stage.decide()) == ["start 0: 3 at 0*3", "start 1: 3 at 1*3"]


# -- moving others ---------------------------------------------------------------------------------


def test_a_small_job_moves_to_make_room() -> None:
    stage = Machines(2)
    stage.running(((0, 2),))
    stage.running(((1, 1),))
    stage.submit(4, elastic=False)
    stage.inner.script = [Start(2, 4, "x")]
    assert stage.decide() == [
        Migrate(1, 1, "makes room for job j2, whose 4 GPUs are to lie together", ((0, 1),)),
        Start(2, 4, "x", ((1, 4),)),
    ]


def test_two_move_if_one_is_not_enough_but_not_three() -> None:
    stage = Machines(2)
    for _ in range(2):
        stage.running(((0, 1),))
        stage.running(((1, 1),))
    stage.submit(4, elastic=False)
    assert stage.told(Start(4, 4, "x")) == [
        "move 0: 1 at 1*1",
        "move 2: 1 at 1*1",
        "start 4: 4 at 0*4",
    ]
    stage = Machines(4)
    for node in range(4):
        for _ in range(3):
            stage.running(((node, 1),))
    stage.submit(4, elastic=False)
    assert stage.told(Start(12, 4, "x")) == []


def test_whole_machines_are_cleared_for_a_large_job() -> None:
    stage = Machines(3)
    stage.running(((0, 1),))
    stage.running(((1, 1),))
    stage.running(((2, 2),))
    stage.submit(8, elastic=False)
    assert stage.told(Start(3, 8, "x")) == [
        "move 0: 1 at 2*1",
        "move 1: 1 at 2*1",
        "start 3: 8 at 0*4 1*4",
    ]


def test_nobody_moves_who_is_changed_in_the_same_round() -> None:
    stage = Machines(2)
    stage.running(((0, 2),))
    stage.running(((1, 2),))
    stage.submit(4, elastic=False)
    assert stage.told(Requeue(0, 1, "x"), ScaleIn(1, 1, "x"), Start(2, 4, "x")) == ["queue 0: 1"]


# -- leaving it ------------------------------------------------------------------------------------


def test_whoever_is_left_waiting_is_tried_again_after_a_while() -> None:
    stage = Machines(1)
    stage.running(((0, 2),), elastic=False)
    stage.submit(4, elastic=False)
    assert stage.told(Start(1, 4, "x")) == []
    assert stage.wake() == 60.0
    stage.inner.wakes = 10.0
    assert stage.told(Start(1, 4, "x")) == []
    assert stage.wake() == 10.0
    assert stage.told() == []
    stage.inner.wakes = None
    assert stage.wake() is None


def test_whoever_stopped_for_nothing_runs_on() -> None:
    stage = Machines(2, moves=0)
    stage.running(((0, 2),))
    stage.running(((0, 2),))
    stage.running(((1, 4),))
    stage.submit(4, elastic=False)
    # Tiresias, say, counts 2 + 2 free GPUs of which none lie together with those of machine 1.
    assert stage.told(Preempt(1, "x"), ScaleIn(2, 2, "x"), Start(3, 4, "x")) == []
    assert stage.held() == {0: 2, 1: 2, 2: 4, 3: 0}


def test_what_others_came_to_use_is_not_given_back() -> None:
    stage = Machines(2, moves=0)
    stage.running(((0, 4),))
    stage.running(((1, 2),))
    stage.running(((1, 2),))
    stage.submit(4, elastic=False)
    stage.submit(2, elastic=False)
    told = stage.told(Preempt(1, "x"), ScaleIn(0, 2, "x"), Start(3, 4, "x"), Start(4, 2, "x"))
    assert told == ["in 0: 2 at 0*2", "start 4: 2 at 0*2"]
    assert stage.wake() == 60.0


def test_under_a_strict_order_nobody_passes_whoever_is_left_waiting() -> None:
    stage = Stage(Together(Fifo(), moves=0), nodes=2, gpus_per_node=4, together=True)
    for gpus in (3, 3, 2, 1):
        stage.submit(gpus)
    assert placed(stage.decide()) == ["start 0: 3 at 0*3", "start 1: 3 at 1*3"]
    stage.finish(0)
    assert placed(stage.decide()) == ["start 2: 2 at 0*2", "start 3: 1 at 1*1"]


# -- growing ---------------------------------------------------------------------------------------


def test_a_job_grows_by_what_lies_near_it() -> None:
    stage = Machines(2)
    stage.running(((0, 2),))
    stage.running(((0, 1),))
    stage.running(((1, 3),))
    stage.inner.script = [ScaleOut(0, 4, "more")]
    assert stage.decide() == [
        ScaleOut(0, 3, "more; of 4 GPUs 3 lie together", ((0, 3),)),
    ]
    assert stage.told(ScaleOut(0, 4, "x")) == []
    # Growing is never worth a wake: nobody waits for it.
    assert stage.wake() is None


def test_a_part_that_would_slow_it_down_is_left_out() -> None:
    stage = Machines(1)
    job = stage.submit(1, curve=Curve([0.0, 10, 9, 30]), most=3)
    stage.apply([Start(job.key, 1, "before", ((0, 1),))])
    stage.running(((0, 2),))
    assert stage.told(ScaleOut(0, 3, "x")) == []


def test_starts_have_places_before_those_that_grow() -> None:
    stage = Machines(2)
    job = stage.submit(1, curve=FALLING)
    stage.apply([Start(job.key, 1, "before", ((0, 1),))])
    stage.running(((1, 3),))
    stage.submit(3, elastic=False)
    told = stage.told(ScaleOut(0, 2, "x"), Start(2, 3, "x"))
    assert told == ["start 2: 3 at 0*3"]
