"""Migrations: who leaves when, who finishes what another leader began, and what is undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Adjustment, Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Effect, Publish
from edl.protocol.events import Swapped
from edl.protocol.handover import open_switch, reopened
from edl.protocol.migration import costly, judged, owed, taken_up
from edl.protocol.reception import Reception
from edl.protocol.recorded import Deed, Recorded, read_recorded, write_recorded
from edl.protocol.recovery import Recovery
from edl.protocol.requests import choose_movers
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.protocol.voice import Voice
from edl.types import Gpu, WorkerId
from tests.seeded.cast import SETTINGS, first, joiner, member, names, sent, w


def move(*workers: WorkerId, to: tuple[int, ...], gpus: tuple[Gpu, ...] = ()) -> m.Migrate:
    joiners = tuple(joiner(number) for number in to)
    return m.Migrate(request_id="r", joiners=joiners, workers=workers, gpus=gpus)


def told(effects: list[Effect]) -> list[str]:
    return [effect.happened.what for effect in effects if isinstance(effect, Publish)]


def conductor(*numbers: int) -> Conductor:
    voice = Voice()
    voice.peers = {w(number): 10 + number for number in (*numbers, 7, 8)}
    made = Conductor(me=w(numbers[0]), token=3, settings=Settings(), voice=voice)
    made.enter(first(*numbers))
    made.last_number, made.generation_revision = 1, 5
    return made


def stored(made: Conductor, revision: int) -> list[Effect]:
    event = Swapped(purpose="generation", done=True, value=b"x", revision=revision)
    target = made.answered(event)
    assert target is not None
    return made.on_recorded(target, 3.0)


def gather(made: Conductor, *numbers: int) -> list[Effect]:
    assert made.adjustment is not None
    for number in numbers:
        made.adjustment.on_registered(member(number), process_start_s=0.0, now=1.0)
        made.adjustment.on_ready(w(number), context_s=1.0)
    return made.when_gathered(2.0)


def build(made: Conductor, number: int, *workers: int) -> list[Effect]:
    effects: list[Effect] = []
    for worker in workers:
        said = m.GroupBuilt(generation=number, worker=w(worker), build_s=0.0)
        effects += made.on_group_built(said, 2.0)
    return effects


def switched(made: Conductor, number: int, *workers: int) -> list[Effect]:
    effects: list[Effect] = []
    for worker in workers:
        said = m.Switched(
            generation=number,
            worker=w(worker),
            step=9,
            transfer_s=0.2,
            transfer_bytes=40,
            stop_s=0.1,
        )
        effects += made.on_switched(said, 6.0)
    return effects


def half_way(*numbers: int) -> Conductor:
    """Everybody is to go to w7 (and w8), which have just entered."""
    made = conductor(*numbers)
    leavers = names(*numbers)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=leavers, now=0.0)
    gather(made, 7)
    build(made, 2, *numbers, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
    switched(made, 2, *numbers, 7)
    return made


# -- what can be asked -----------------------------------------------------------------------


def test_workers_and_slots_move_the_leader_too() -> None:
    assert choose_movers(first(0, 1, 2), move(w(0), to=(7,)), SETTINGS) == (names(0), "")
    by_slot = move(to=(7, 8), gpus=(Gpu("node1", 1), Gpu("node1", 0)))
    assert choose_movers(first(0, 1), by_slot, SETTINGS) == (names(1, 0), "")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (move(to=(7,)), "migrate of 0 workers to 1 slots; give at least one of each"),
        (move(w(1), to=()), "use scale_in"),
        (move(w(9), to=(7,)), "'w9' is not in the job; it has w0, w1, w2"),
        (move(to=(7,), gpus=(Gpu("node9", 0),)), "slot node9:0 has no worker"),
        (move(w(1), to=(2,)), "worker w2 is in the job already"),
        (move(w(1), to=(6, 7, 8)), "are 5, over --max 4; add at most 2"),
        (move(w(1), w(2), to=(7,)), ""),
        (move(w(0), w(1), w(2), to=(7,)), "are 1, under --min 2; add at least 2"),
    ],
)
def test_a_migration_that_cannot_be_granted_says_why(message: m.Migrate, reason: str) -> None:
    settings = Settings(min_workers=2, max_workers=4)
    leavers, fault = choose_movers(first(0, 1, 2), message, settings)
    assert reason in fault
    assert bool(leavers) == (not reason)


# -- somebody stays: one change of generation ------------------------------------------------


MANY = (0, *range(20, 31))


def test_of_many_a_few_go_at_the_newcomers_switch() -> None:
    made = conductor(*MANY)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(30), now=0.0)
    gather(made, 7)
    assert made.adjustment is not None
    target = made.adjustment.generation
    assert target is not None
    stayers = MANY[:-1]
    assert (target.workers(), target.newcomers) == (names(*stayers, 7), names(7))
    build(made, 2, *MANY, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
    effects = switched(made, 2, *stayers, 7)
    ((_, answer),) = sent(effects, m.Adjusted)
    assert isinstance(answer, m.Adjusted)
    record = answer.record
    assert (record.kind, record.joined, record.left) == ("migrate", names(7), names(30))
    assert (record.size, record.step) == (12, 9)


def test_more_than_a_few_stay_for_the_newcomers_first_step() -> None:
    made = conductor(0, 1, 2)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    gather(made, 7)
    assert made.adjustment is not None
    target = made.adjustment.generation
    assert target is not None
    assert (target.workers(), target.leaving) == (names(0, 1, 2, 7), names(1))
    assert target.came == names(7)
    assert target.elders() == names(0, 1, 2)


@pytest.mark.parametrize(
    ("leavers", "of", "two"), [(1, 1, True), (1, 4, True), (1, 11, False), (2, 11, True)]
)
def test_shares_that_grow_by_more_than_a_tenth_are_worth_a_switch(
    leavers: int, of: int, two: bool
) -> None:
    assert costly(leavers, of=of, bearable=0.1) == two


def test_leavers_stay_where_those_that_came_for_them_are_lost() -> None:
    made = half_way(0, 1)
    base = made.generation
    assert base is not None
    kept = draw_again(base, number=3, dead=(w(1),), leader=w(0), token=3)
    assert (kept.leaving, kept.came) == (names(0), names(7))
    lost = draw_again(base, number=3, dead=(w(7),), leader=w(0), token=3)
    assert (lost.leaving, lost.came) == ((), ())


def test_a_newcomer_that_stalls_leaves_the_leavers_where_they_are() -> None:
    made = conductor(0, 1)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    made.on_tick(SETTINGS.register_timeout_s + 1)
    effects = stored(made, 6)
    ((_, answer),) = sent(effects, m.Undone)
    assert isinstance(answer, m.Undone)
    assert "w7 did not register" in answer.reason
    assert made.generation == first(0, 1)


# -- everybody moves: two -------------------------------------------------------------------


def test_where_nobody_stays_everybody_carries_the_newcomers_first_step() -> None:
    made = conductor(0)
    effects = made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(0), now=0.0)
    assert told(effects) == ["adjust.accepted"]
    gather(made, 7)
    assert made.adjustment is not None
    target = made.adjustment.generation
    assert target is not None
    assert (target.workers(), target.leaving) == (names(0, 7), names(0))
    assert (target.source, target.leader) == (w(0), w(0))


def test_the_second_half_removes_and_only_then_is_there_an_answer() -> None:
    made = half_way(0, 1)
    adjustment = made.adjustment
    assert adjustment is not None
    assert (adjustment.request_id, adjustment.phase) == ("r", Phase.BUILDING)
    assert adjustment.generation is not None
    assert adjustment.generation.workers() == names(7)
    assert adjustment.generation.leader == w(7)
    assert made.voice.requests.answered("r") is None
    assert adjustment.status(9.0).workers == names(0, 1)


def test_the_newcomer_that_inherits_gives_the_answer_of_the_whole() -> None:
    made = half_way(0)
    build(made, 3, 7, 0)
    stored(made, 7)
    made.on_switch_decided(3, 12, 7.0)
    assert made.leaves
    assert made.generation is not None
    past = m.Handover(
        generation=made.generation,
        leader_revision=3,
        generation_revision=7,
        last_number=3,
        seq=0,
        stopping="",
        answers=(),
        records=(),
        deeds=tuple(made.deeds),
        recent=(),
        open_switch=open_switch(made.adjustment, 8.0),
    )
    again = reopened(past, SETTINGS, 8.0)
    assert again is not None
    # It has trained since: a failure now must not take it for a newcomer.
    assert (again.expected, again.joined, again.waiting) == ({}, names(7), {w(7)})
    record = again.report(9.0)
    assert (record.joined, record.left, record.size) == (names(7), names(0), 1)
    assert past.deeds == ()


def test_a_second_half_that_cannot_be_built_is_tried_again() -> None:
    made = half_way(0)
    made.undo("w7 could not build the group", 5.0)
    effects = stored(made, 7)
    assert told(effects) == ["adjust.moving", "adjust.building"]
    assert made.adjustment is not None
    assert made.adjustment.generation is not None
    assert (made.adjustment.generation.number, made.adjustment.joined) == (4, names(7))


def test_a_stop_between_the_halves_is_the_end_of_the_request() -> None:
    made = half_way(0)
    made.stopping = "enough"
    made.undo("the job is stopping", 5.0)
    ((_, answer),) = sent(stored(made, 7), m.Finished)
    assert answer == m.Finished(request_id="r", reason="the job is stopping")


def test_a_job_that_ends_between_the_halves_has_not_moved() -> None:
    made = conductor(0)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(0), now=0.0)
    gather(made, 7)
    build(made, 2, 0, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
    made.over = True
    assert made.completed(5.0) == []
    assert made.adjustment is None
    assert made.voice.requests.open_ids() == ["r"]


# -- failures between the halves ----------------------------------------------------------------


def mended(made: Conductor, *dead: int) -> tuple[Generation, list[Effect]]:
    made.on_failure(7.0)
    assert made.generation is not None
    target = draw_again(made.generation, number=9, dead=names(*dead), leader=made.me, token=3)
    return target, made.on_mended(target, 8.0)


def test_after_a_failure_the_rest_of_the_leavers_still_leave() -> None:
    made = half_way(0, 1)
    target, effects = mended(made, 1)
    assert target.leaving == names(0)
    # Not before the survivors have heard of the generation that they are in.
    assert sent(effects, m.Prepare) == []
    assert made.adjustment is not None
    assert sent(made.on_tick(8.2), m.Prepare) != []
    assert made.adjustment.generation is not None
    assert made.adjustment.generation.workers() == names(7)


def test_without_newcomers_the_migration_is_undone_and_the_leavers_stay() -> None:
    made = half_way(0, 1)
    target, effects = mended(made, 7)
    assert (target.workers(), target.leaving) == (names(0, 1), ())
    ((_, answer),) = sent(effects, m.Undone)
    assert isinstance(answer, m.Undone)
    assert [deed.undone for deed in made.deeds] == ["a worker was lost meanwhile"]


def test_without_leavers_the_migration_is_complete() -> None:
    made = half_way(0, 1)
    made.me = w(7)
    _, effects = mended(made, 0, 1)
    ((_, answer),) = sent(effects, m.Adjusted)
    assert isinstance(answer, m.Adjusted)
    assert (answer.record.joined, answer.record.left) == (names(7), names(0, 1))


def found() -> Recorded:
    """What the store says between the halves: w0 is to leave, and w7 has come for it."""
    made = half_way(0)
    assert made.generation is not None
    assert made.adjustment is not None
    return Recorded(generation=made.generation, deeds=(made.adjustment.deed(),))


def test_the_store_says_who_is_still_to_leave() -> None:
    record = found()
    assert read_recorded(write_recorded(record.generation, record.deeds)) == record
    assert owed(record.generation, record.deeds) == record.deeds[0]
    assert owed(replace(record.generation, leaving=()), record.deeds) is None
    assert owed(record.generation, [replace(record.deeds[0], undone="so")]) is None


def test_a_leader_that_knows_only_the_store_finishes_the_migration() -> None:
    made = conductor(7)
    record = found()
    made.adopt(record, revision=6)
    target = draw_again(record.generation, number=3, dead=(), leader=w(7), token=4)
    effects = made.on_mended(target, 8.0)
    assert told(effects) == ["adjust.moving"]
    assert made.voice.requests.answered("r") is None
    adjustment = made.adjustment
    assert adjustment is not None
    assert (adjustment.request_id, adjustment.leavers) == ("r", names(0))
    assert (adjustment.joined, made.deeds) == (names(7), [])


def test_a_leader_that_knows_only_the_store_knows_what_is_undone() -> None:
    made = conductor(0)
    record = found()
    made.adopt(record, revision=6)
    target = draw_again(record.generation, number=3, dead=names(7), leader=w(0), token=4)
    assert made.on_mended(target, 8.0) == []
    answer = made.voice.requests.answered("r")
    assert answer == m.Undone(request_id="r", reason="its newcomers were lost")


def test_what_is_done_stays_done() -> None:
    deed = Deed(
        request_id="r",
        kind="migrate",
        joined=names(7),
        left=names(0),
        generation=3,
        size=1,
        undone="",
    )
    base = draw_next(first(0, 7), number=3, joiners=(), leavers=names(0), token=3, request_id="r")
    assert judged(base, [deed]) == [deed]
    half: Adjustment = taken_up(deed, replace(base, leaving=names(7)), SETTINGS, 1.0)
    assert (half.leavers, half.joined, half.gathered()) == (names(7), names(7), True)


# -- taken back ------------------------------------------------------------------------------


def withdrawn(made: Conductor, request_id: str = "r") -> list[Effect]:
    recovery = Recovery(me=made.me, conductor=made, voice=made.voice)
    reception = Reception(settings=Settings(), conductor=made, recovery=recovery, voice=made.voice)
    gone = m.Withdraw(request_id=request_id, why="its requester gave up")
    return reception.on_lessening(30, gone, 2.0)


def test_a_migration_is_undone_when_its_requester_gives_up() -> None:
    made = conductor(0, 1)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    assert not sent(withdrawn(made), m.Undone)
    assert made.adjustment is not None
    assert made.adjustment.phase is Phase.RESTORING
    # Nobody hears of it before the store has it.
    assert [peer for peer, _ in sent(stored(made, 6), m.Undone)] == [20]
    assert made.adjustment is None


def test_another_request_is_not_undone() -> None:
    made = conductor(0, 1)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    assert withdrawn(made, "other") == []
    assert made.adjustment is not None


def test_half_a_migration_is_not_taken_back() -> None:
    made = half_way(0, 1)
    assert withdrawn(made) == []
    assert made.adjustment is not None
    assert made.adjustment.leavers == names(0, 1)


def test_after_the_switch_nothing_is_taken_back() -> None:
    made = conductor(0, 1)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    gather(made, 7)
    build(made, 2, 0, 1, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
    assert withdrawn(made) == []
    assert told(switched(made, 2, 0, 1, 7)) == ["adjust.moving", "adjust.building"]
