"""Migrations: who leaves when, who finishes what another leader began, and what is undone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Adjustment, Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Effect, Publish, StoreSwap
from edl.protocol.events import Swapped
from edl.protocol.migration import judged, owed, taken_up
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


def entered(*numbers: int, leavers: tuple[int, ...] = ()) -> Conductor:
    """Some, or all, are to go to w7, in whose first step everybody is."""
    made = conductor(*numbers)
    going = names(*(leavers or numbers))
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=going, now=0.0)
    gather(made, 7)
    build(made, 2, *numbers, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
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


# -- one change of generation ----------------------------------------------------------------


@pytest.mark.parametrize("leavers", [(1,), (0, 1), (0, 1, 2)])
def test_everybody_is_there_for_the_newcomers_first_step(leavers: tuple[int, ...]) -> None:
    made = conductor(0, 1, 2)
    accepted = made.open(
        20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(*leavers), now=0.0
    )
    (line,) = [e.happened for e in accepted if isinstance(e, Publish)]
    # Whoever leaves is a member until the newcomers are in, and may stay one.
    assert line.fields["workers"] == "w7"
    assert line.fields["leaving"] == ",".join(names(*leavers))
    gather(made, 7)
    assert made.adjustment is not None
    target = made.adjustment.generation
    assert target is not None
    assert (target.workers(), target.newcomers) == (names(0, 1, 2, 7), names(7))
    assert (target.leaving, target.came) == (names(*leavers), names(7))
    assert target.elders() == names(0, 1, 2)
    # Whoever leads now leads in the first step, too; and one that stays sends the state, if any.
    assert target.leader == w(0)
    assert target.source == next((w(n) for n in (0, 1, 2) if n not in leavers), w(0))


def test_after_its_first_step_a_generation_is_settled() -> None:
    made = entered(0, 1, 2, leavers=(0, 2))
    assert made.generation is not None
    settled = made.generation.settled()
    assert settled.number == made.generation.number == 2
    assert (settled.workers(), settled.leader, settled.source) == (names(1, 7), w(1), w(1))
    assert (settled.newcomers, settled.leaving, settled.came) == ((), (), ())
    assert settled.settled() is settled
    assert entered(0).generation is not None
    assert draw_again(settled, number=3, dead=(), leader=w(7), token=4).leaving == ()


def test_one_switch_is_told_and_one_answer_given_when_the_store_has_it() -> None:
    made = entered(0, 1, 2, leavers=(1,))
    assert made.adjustment is not None
    assert made.adjustment.waiting == {w(0), w(2), w(7)}  # leavers say nothing but goodbye
    effects = switched(made, 2, 0, 7, 2)
    assert told(effects) == ["adjust.parted"]
    assert made.adjustment.phase is Phase.CLOSING
    assert made.generation is not None
    assert made.generation.workers() == names(0, 2, 7)
    assert made.voice.requests.answered("r") is None
    (swap,) = [effect for effect in effects if isinstance(effect, StoreSwap)]
    assert read_recorded(swap.value or b"").generation == made.generation
    ((_, answer),) = sent(stored(made, 7), m.Adjusted)
    assert isinstance(answer, m.Adjusted)
    record = answer.record
    assert (record.kind, record.joined, record.left) == ("migrate", names(7), names(1))
    assert (record.generation, record.size, record.step) == (2, 3, 9)
    assert made.adjustment is None


def test_nothing_else_is_recorded_while_the_store_is_asked_something() -> None:
    made = entered(0, 1, leavers=(1,))
    assert made.generation is not None
    made.record(made.generation)
    assert not [e for e in switched(made, 2, 0, 7) if isinstance(e, StoreSwap)]
    made.asked = None
    assert [type(effect) for effect in made.on_tick(7.0)] == [StoreSwap]


def test_leavers_stay_where_those_that_came_for_them_are_lost() -> None:
    base = entered(0, 1).generation
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


def test_a_job_that_ends_in_the_first_step_has_not_moved() -> None:
    made = entered(0)
    made.over = True
    assert made.completed(5.0) == []
    assert made.adjustment is None
    assert made.voice.requests.open_ids() == ["r"]


# -- failures ----------------------------------------------------------------------------------


def mended(made: Conductor, *dead: int) -> tuple[Generation, list[Effect]]:
    made.on_failure("w2 was lost", 7.0)
    assert made.generation is not None
    gone = {*names(*dead), *made.strangers()}
    target = draw_again(made.generation, number=9, dead=gone, leader=made.me, token=3)
    return target, made.on_mended(target, 8.0)


def test_before_everybody_is_through_a_failure_undoes_the_migration() -> None:
    made = entered(0, 1, 2, leavers=(1, 2))
    target, effects = mended(made, 2)
    assert (target.workers(), target.leaving) == (names(0, 1), ())
    ((_, answer),) = sent(effects, m.Undone)
    assert isinstance(answer, m.Undone)
    assert [deed.undone for deed in made.deeds] == ["w2 was lost meanwhile"]


def test_once_everybody_is_through_newcomers_are_survivors_and_leavers_are_gone() -> None:
    made = entered(0, 1, 2, leavers=(1,))
    made.settle()
    target, effects = mended(made, 2)
    assert (target.workers(), effects) == (names(0, 7), [])
    assert made.adjustment is not None
    assert not made.adjustment.dropped
    switched(made, 9, 0, 7)
    ((_, answer),) = sent(stored(made, 8), m.Adjusted)
    assert isinstance(answer, m.Adjusted)
    assert (answer.record.joined, answer.record.left) == (names(7), names(1))


def found(*leavers: int) -> Recorded:
    """What the store says in the first step: some of w0 and w1 are to leave, w7 has come."""
    made = entered(0, 1, leavers=leavers)
    assert made.generation is not None
    assert made.adjustment is not None
    return Recorded(generation=made.generation, deeds=(made.adjustment.deed(),))


def test_the_store_says_who_is_still_to_leave() -> None:
    record = found(0)
    assert read_recorded(write_recorded(record.generation, record.deeds)) == record
    assert (record.deeds[0].size, record.deeds[0].left) == (2, names(0))
    assert owed(record.generation, record.deeds) == record.deeds[0]
    assert owed(replace(record.generation, leaving=()), record.deeds) is None
    assert owed(record.generation, [replace(record.deeds[0], undone="so")]) is None


def test_a_leader_that_knows_only_the_store_finishes_the_migration() -> None:
    made = conductor(7)
    record = found(0)
    made.adopt(record, revision=6)
    target = draw_again(record.generation, number=3, dead=(), leader=w(7), token=4)
    assert made.on_mended(target, 8.0) == []
    assert made.voice.requests.answered("r") is None
    adjustment = made.adjustment
    assert adjustment is not None
    assert (adjustment.request_id, adjustment.moving) == ("r", names(0))
    assert (adjustment.phase, adjustment.waiting) == (Phase.SWITCHING, {w(1), w(7)})
    assert (adjustment.joined, made.deeds) == (names(7), [])
    # And after another failure: whether it is undone depends on who is left.
    again = draw_again(target, number=4, dead=names(1), leader=w(7), token=4)
    assert made.on_mended(again, 9.0) == []
    assert adjustment.waiting == {w(7)}
    last = draw_again(again, number=5, dead=names(7), leader=w(0), token=5)
    made.on_mended(last, 10.0)
    answer = made.voice.requests.answered("r")
    assert answer == m.Undone(request_id="r", reason="its newcomers were lost")


def test_a_leader_that_knows_only_the_store_knows_what_is_undone() -> None:
    made = conductor(0)
    record = found(0, 1)
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
    again: Adjustment = taken_up(deed, base, SETTINGS, 1.0)
    assert (again.moving, again.joined, again.waiting) == (names(0), names(7), {w(7)})


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


def test_after_the_switch_nothing_is_taken_back() -> None:
    made = conductor(0, 1)
    made.open(20, "r", kind="migrate", joiners=(joiner(7),), leavers=names(1), now=0.0)
    gather(made, 7)
    build(made, 2, 0, 1, 7)
    stored(made, 6)
    made.on_switch_decided(2, 9, 4.0)
    assert withdrawn(made) == []
    assert told(switched(made, 2, 0, 7)) == ["adjust.parted"]
    assert withdrawn(made) == []
