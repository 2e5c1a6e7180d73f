"""After a forced exit: who is lost, and what is made of the rest."""

from __future__ import annotations

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import REPORT_S
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Announce, Dismiss, Effect, Publish, Send, StoreSwap
from edl.protocol.events import Swapped
from edl.protocol.recorded import read_recorded
from edl.protocol.recovery import Recovery, Stage
from edl.protocol.topology import Generation, draw_again, draw_next
from edl.protocol.unreached import UNNAMED
from edl.protocol.voice import Voice
from tests.seeded.cast import first, joiner, member, names, sent, w

QUIET = Announce(generation=0, switch_step=0, token=3)


def recovery(*numbers: int) -> Recovery:
    """w0 leads these over connection 0, the others come over 10 + number."""
    voice = Voice()
    voice.peers = {w(number): 10 + number if number else 0 for number in numbers}
    conductor = Conductor(me=w(0), token=3, settings=Settings(), voice=voice)
    conductor.enter(first(*numbers))
    conductor.last_number, conductor.generation_revision = 1, 5
    return Recovery(me=w(0), conductor=conductor, voice=voice)


def target(number: int, *lost: int) -> Generation:
    dead = [w(one) for one in lost]
    return draw_again(first(0, 1, 2), number=number, dead=dead, leader=w(0), token=3)


def stuck(number: int, generation: int = 1) -> m.Stuck:
    return m.Stuck(generation=generation, worker=w(number), why="closed")


def built(number: int, generation: int) -> m.GroupBuilt:
    return m.GroupBuilt(generation=generation, worker=w(number), build_s=0.0)


def switched(number: int, generation: int) -> m.Switched:
    return m.Switched(
        generation=generation,
        worker=w(number),
        step=4,
        transfer_s=0.0,
        transfer_bytes=0,
        stop_s=0.0,
    )


def answer(made: Recovery) -> list[Effect]:
    """The store has recorded what it was asked to."""
    event = Swapped(purpose="generation", done=True, value=b"x", revision=9)
    recorded = made.conductor.answered(event)
    assert recorded is not None
    return [
        *made.conductor.on_recorded(recorded, 2.0),
        *made.on_recorded(recorded, 2.0),
    ]


def told(effects: list[Effect]) -> list[str]:
    return [effect.happened.what for effect in effects if isinstance(effect, Publish)]


def recorded() -> Recovery:
    """w2 is lost; w0 and w1 go on in generation 2."""
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    made.on_group_built(built(0, 2))
    made.on_group_built(built(1, 2))
    answer(made)
    return made


# -- who is lost -----------------------------------------------------------------------------


def test_survivors_hear_what_fell_and_what_to_build_at_once() -> None:
    made = recovery(0, 1, 2)
    effects = made.on_lost(w(2), "signal 9", 1.0)
    fell = m.Fell(generation=1, why="w2 is lost: signal 9")
    assert sent(effects, m.Fell) == [(0, fell), (11, fell)]
    prepare = m.Prepare(generation=target(2, 2))
    assert sent(effects, m.Prepare) == [(0, prepare), (11, prepare)]
    assert told(effects) == ["worker.lost", "recovery.building"]


def test_a_second_word_of_the_same_death_changes_nothing() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    assert made.on_lost(w(2), "its connection closed", 1.1) == []


def test_another_death_meanwhile_begins_again_without_both() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    effects = made.on_lost(w(1), "signal 9", 1.1)
    assert sent(effects, m.Prepare) == [(0, m.Prepare(generation=target(3, 1, 2)))]


def test_a_closed_connection_alone_is_no_death() -> None:
    made = recovery(0, 1, 2)
    assert made.on_closed(w(2), "reset", 1.0) == []
    assert made.on_tick(2.9) == []
    assert told(made.on_tick(3.0)) == ["worker.lost", "recovery.building"]


def test_one_that_comes_back_in_time_is_not_lost() -> None:
    made = recovery(0, 1, 2)
    made.on_closed(w(2), "reset", 1.0)
    assert made.on_heard(w(2), 1.5) == []
    assert made.on_tick(9.0) == []


def test_a_closed_connection_and_a_broken_collective_are_a_death() -> None:
    made = recovery(0, 1, 2)
    made.on_closed(w(2), "reset", 1.0)
    effects = made.on_stuck(stuck(1), 1.1)
    assert told(effects) == ["training.broke", "worker.lost", "recovery.building"]


def test_a_connection_that_closes_while_it_settles_is_a_death_too() -> None:
    made = recovery(0, 1, 2)
    assert told(made.on_stuck(stuck(1), 1.0)) == ["training.broke"]
    assert told(made.on_closed(w(2), "reset", 1.1)) == ["worker.lost", "recovery.building"]


def test_if_nobody_turns_out_to_be_lost_the_same_go_on() -> None:
    made = recovery(0, 1, 2)
    made.on_stuck(stuck(1), 1.0)
    assert made.on_tick(1.1) == []
    effects = made.on_tick(1.2)
    assert {peer for peer, _ in sent(effects, m.Prepare)} == {0, 11, 12}
    assert sent(effects, m.Prepare)[0][1] == m.Prepare(generation=target(2))


def test_one_that_was_given_up_too_early_is_taken_back_until_it_is_recorded() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "silent for 10.0 s", 1.0)
    made.voice.peers[w(2)] = 22
    effects = made.on_heard(w(2), 1.5)
    assert told(effects) == ["worker.returned", "recovery.building"]
    assert made.target == target(3)


def test_one_whose_process_has_ended_does_not_come_back() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0, ended=True)
    assert made.on_heard(w(2), 1.5) == []


def test_a_new_leader_gives_everybody_the_time_to_come() -> None:
    made = recovery(0)
    made.conductor.enter(first(0, 1, 2))
    made.expect(names(0, 1, 2), 1.0)
    made.on_heard(w(1), 1.5)
    made.on_tick(1.5)
    assert told(made.on_stuck(stuck(1), 1.6)) == ["training.broke"]
    made.on_tick(2.1)
    assert told(made.on_tick(3.0)) == ["worker.lost", "recovery.building"]
    assert made.lost.keys() == {w(2)}


def inheriting() -> Recovery:
    """w0 has just taken office at 1.0, for w1 died; w2 has not come to it yet."""
    made = recovery(0)
    made.conductor.enter(first(0, 1, 2))
    made.expect(names(0, 1, 2), 1.0)
    made.on_lost(w(1), "the leader stopped responding", 1.0)
    return made


def ticked(made: Recovery, begin: float, end: float) -> list[str]:
    """The events of ticks every half second, so that this worker does not seem to sleep."""
    halves = range(int(begin * 2), int(end * 2) + 1)
    return [what for half in halves for what in told(made.on_tick(half / 2))]


def test_a_survivor_whose_watchdog_vouches_for_it_has_the_time_of_a_silent_one() -> None:
    made = inheriting()
    silence_s = made.conductor.settings.silence_s
    made.on_vouched(w(2), 2.5)
    assert ticked(made, 2.5, 6.0) == []
    made.on_vouched(w(2), 6.5)
    assert ticked(made, 6.5, 6.0 + silence_s) == []
    assert "worker.lost" in ticked(made, 6.5 + silence_s, 6.5 + silence_s)
    assert made.lost.keys() == {w(1), w(2)}


def test_a_survivor_that_nobody_vouches_for_is_lost_as_soon_as_before() -> None:
    made = inheriting()
    assert "worker.lost" in ticked(made, 1.0, 3.0)
    assert made.lost.keys() == {w(1), w(2)}


def test_a_watchdog_does_not_excuse_a_connection_that_closed() -> None:
    made = recovery(0, 1, 2)
    made.on_closed(w(2), "reset", 1.0)
    made.on_vouched(w(2), 2.0)
    assert "worker.lost" in ticked(made, 2.0, 3.0)


def test_time_in_which_this_worker_slept_counts_against_nobody() -> None:
    made = recovery(0, 1, 2)
    made.on_tick(0.9)
    made.on_closed(w(2), "reset", 1.0)
    made.on_tick(1.2)
    # It slept: w2 may have come back meanwhile and still waits to be heard.
    assert made.on_tick(9.2) == []
    assert made.on_tick(9.9) == []
    assert told(made.on_tick(10.8)) == []
    assert told(made.on_tick(11.0)) == ["worker.lost", "recovery.building"]


def test_a_number_that_a_member_heard_of_elsewhere_is_not_used_again() -> None:
    made = recovery(0)
    made.conductor.enter(first(0, 1, 2))
    made.begin(1.0)
    assert made.target == target(2)
    assert sent(made.use_higher(w(1), 2, 1.1), m.Prepare)
    assert made.target == target(3)
    made.voice.peers[w(1)] = 11
    made.catch_up(w(1), 1)
    assert made.use_higher(w(1), 3, 1.2) == []


# -- making the next generation --------------------------------------------------------------


def test_it_is_recorded_when_everybody_has_built_and_begun_when_it_is_recorded() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    assert made.on_group_built(built(0, 2)) == []
    (swap,) = made.on_group_built(built(1, 2))
    assert isinstance(swap, StoreSwap)
    assert (swap.key, swap.expected) == ("generation", 5)
    assert read_recorded(swap.value or b"").generation == target(2, 2)
    word = m.Founded(generation=2)
    assert answer(made) == [Send(peer=0, message=word), Send(peer=11, message=word), QUIET]
    assert made.conductor.generation == target(2, 2)


def test_it_is_over_when_every_survivor_has_committed_a_step() -> None:
    made = recorded()
    assert made.stage is Stage.RESUMING
    assert made.on_switched(switched(0, 2), 3.0) == []
    (publish,) = made.on_switched(switched(1, 2), 3.5)
    assert isinstance(publish, Publish)
    assert publish.happened.what == "job.recovered"
    assert publish.happened.fields == {"workers": 2, "lost": "w2", "seconds": 2.5}
    assert not made.active


def test_a_group_that_cannot_be_built_is_tried_again_under_another_number() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    failed = m.GroupFailed(generation=2, worker=w(1), why="no port")
    assert told(made.on_group_failed(failed, 1.5)) == ["recovery.again"]
    assert made.on_group_built(built(0, 2)) == []
    made.on_tick(1.7)
    assert made.target == target(3, 2)


def test_an_attempt_that_took_too_long_gets_twice_the_time_at_the_next() -> None:
    made = recovery(0, 1, 2)
    usual = made.conductor.settings.build_timeout_s
    made.on_lost(w(2), "signal 9", 0.0)
    now = 0.0
    for number, times in enumerate((1, 2, 4, 8, 8), start=2):
        assert made.target == target(number, 2)
        assert made.on_tick(now + times * usual + REPORT_S - 0.01) == []
        now += times * usual + REPORT_S
        made.on_tick(now)
    # A recovery that came to its end forgets it.
    number = made.target.number if made.target else 0
    made.on_group_built(built(0, number))
    made.on_group_built(built(1, number))
    answer(made)
    made.on_lost(w(1), "signal 9", 0.0)
    made.on_tick(usual + REPORT_S)
    assert made.target is not None
    assert made.target.number == number + 2


def fail(made: Recovery, worker: int, *unreached: int, now: float) -> list[Effect]:
    """The present build fails there; returns what came of it once the others have reported."""
    assert made.target is not None
    failed = m.GroupFailed(
        generation=made.target.number,
        worker=w(worker),
        why="timed out",
        unreached=names(*unreached),
    )
    return [*made.on_group_failed(failed, now), *made.on_tick(now + REPORT_S)]


def test_one_end_of_a_pair_that_never_connects_is_left_out() -> None:
    made = recovery(0, 1, 2)
    made.on_stuck(stuck(1), 0.0)
    made.on_tick(0.3)
    for attempt in range(2):
        fail(made, 1, 2, now=1.0 + attempt)
        assert made.target is not None
        assert made.target.workers() == names(0, 1, 2)
    effects = fail(made, 2, 1, now=3.0)
    why = f"w2 cannot connect to w1 at {member(1).address}: left out after 3 failed builds"
    assert made.target == target(5, 2)
    assert made.lost == {w(2): why}
    assert (12, m.Fell(generation=4, why=why, out=True)) in sent(effects, m.Fell)
    # It is connected, and may even dial again: it stays out.
    assert made.on_heard(w(2), 3.5) == []
    made.on_group_built(built(0, 5))
    made.on_group_built(built(1, 5))
    assert sent(answer(made), m.Out) == [(12, m.Out(generation=5, why=why))]


@pytest.mark.parametrize(("after_s", "out"), [(1.0, 1), (31.0, 2)])
def test_who_failed_early_is_left_out_and_who_connects_late_too(after_s: float, out: int) -> None:
    """w1 fails without naming a peer, and w2 reports nothing; after 30 s w1 may have waited."""
    made = recovery(0, 1, 2)
    made.on_stuck(stuck(1), 0.0)
    made.on_tick(0.3)
    now, builds = 0.3, 3 * UNNAMED
    for _ in range(builds):
        assert made.target is not None
        made.on_group_built(built(0, made.target.number))
        fail(made, 1, now=now + after_s)
        now += after_s + REPORT_S
    assert made.target == target(2 + builds, out)


def test_a_leader_that_nobody_connects_to_leaves_the_job_to_the_others() -> None:
    made = recovery(0, 1, 2)
    made.on_stuck(stuck(1), 0.0)
    made.on_tick(0.3)
    for attempt in range(3):
        assert made.target is not None
        both = m.GroupFailed(
            generation=made.target.number, worker=w(2), why="timed out", unreached=names(0)
        )
        made.on_group_failed(both, 1.0 + attempt)
        effects = fail(made, 1, 0, now=1.0 + attempt)
    (end,) = [effect for effect in effects if isinstance(effect, Dismiss)]
    assert end.why.startswith("w0 cannot connect to w1 at ")
    assert not end.failed
    # The others wait for the leader's key, however long this worker's script computes.
    assert end.retire


def test_a_death_while_the_store_has_it_in_hand_waits_for_the_store() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "signal 9", 1.0)
    made.on_group_built(built(0, 2))
    made.on_group_built(built(1, 2))
    assert told(made.on_lost(w(1), "signal 9", 1.5)) == ["worker.lost"]
    assert made.stage is Stage.STORE
    effects = answer(made)
    assert made.conductor.generation == target(2, 2)
    assert sent(effects, m.Prepare) == [(0, m.Prepare(generation=target(3, 1, 2)))]


def test_one_that_was_lost_hears_so_once_it_is_recorded() -> None:
    made = recovery(0, 1, 2)
    made.on_lost(w(2), "silent", 1.0)
    made.on_group_built(built(0, 2))
    made.on_group_built(built(1, 2))
    made.voice.peers[w(2)] = 22
    assert made.on_heard(w(2), 1.5) == []
    out = m.Out(generation=2, why="the job went on without this worker")
    assert sent(answer(made), m.Out) == [(22, out)]
    assert w(2) not in made.voice.peers


def test_the_survivors_generation_can_break_as_well() -> None:
    made = recorded()
    assert told(made.on_stuck(stuck(1, 2), 3.0)) == ["training.broke"]
    made.on_tick(3.2)
    assert made.target == target(3, 2)


def test_a_late_word_about_an_older_generation_is_stale() -> None:
    assert recorded().on_stuck(stuck(1, 1), 3.0) == []


def test_a_member_that_was_away_hears_what_it_missed() -> None:
    made = recorded()
    effects = made.catch_up(w(1), 1)
    kinds = [type(effect.message) for effect in effects if isinstance(effect, Send)]
    assert kinds == [m.Fell, m.Prepare, m.Founded]
    assert made.catch_up(w(1), 2) == []
    assert made.catch_up(w(2), 1) == []


# -- an adjustment in flight -----------------------------------------------------------------


def scaling_in() -> Recovery:
    """w2 is to leave; the switch to generation 2 is recorded and announced."""
    made = recovery(0, 1, 2)
    conductor = made.conductor
    conductor.open(20, "in", kind="scale_in", joiners=(), leavers=names(2), now=0.0)
    for number in (0, 1, 2):
        conductor.on_group_built(built(number, 2), 0.5)
    answer(made)
    return made


def test_a_recorded_scale_in_is_carried_out_by_the_recovery() -> None:
    made = scaling_in()
    effects = made.on_lost(w(1), "signal 9", 3.0)
    assert told(effects) == ["worker.lost", "adjust.switching", "recovery.building"]
    assert made.target is not None
    assert made.target.workers() == names(0)
    made.on_group_built(built(0, 3))
    assert sent(answer(made), m.Out) == [
        (12, m.Out(generation=3, why="the job went on without this worker"))
    ]
    made.on_switched(switched(0, 3), 4.0)
    assert sent(made.conductor.on_switched(switched(0, 3), 4.0), m.Adjusted)


def test_a_leader_that_leaves_makes_nothing_of_the_rest() -> None:
    made = recovery(0, 1, 2)
    without = draw_next(
        first(0, 1, 2), number=2, joiners=(), leavers=names(0), token=3, request_id="in"
    )
    made.conductor.enter(without)
    assert told(made.on_lost(w(2), "signal 9", 1.0)) == ["worker.lost"]
    assert not made.active


def test_a_leader_that_leaves_misses_nobody_but_its_successor() -> None:
    made = recovery(0, 1, 2)
    made.on_closed(w(1), "closed", 1.0)
    made.on_closed(w(2), "closed", 1.0)
    made.conductor.enter(
        draw_next(first(0, 1, 2), number=2, joiners=(), leavers=(w(0),), token=3, request_id="r")
    )
    effects = made.on_tick(1.0 + made.conductor.settings.reconnect_s)
    lost = [e.happened.fields["worker"] for e in effects if isinstance(e, Publish)]
    assert lost == [w(1)]
    assert made.lost.keys() == {w(1)}


def test_a_leader_that_leaves_frees_the_key_if_its_successor_is_lost() -> None:
    made = recovery(0, 1, 2)
    without = draw_next(
        first(0, 1, 2), number=2, joiners=(), leavers=names(0), token=3, request_id="in"
    )
    made.conductor.enter(without)
    effects = made.on_lost(w(1), "signal 9", 1.0)
    assert effects[-1] == Dismiss(why="its successor w1 is lost", failed=False)


def scaling_out() -> Recovery:
    """w3 is to join w0, w1, w2; the switch is recorded and announced."""
    made = recovery(0, 1, 2)
    conductor = made.conductor
    conductor.open(20, "out", kind="scale_out", joiners=(joiner(3),), leavers=(), now=0.0)
    assert conductor.adjustment is not None
    made.voice.peers[w(3)] = 13
    conductor.adjustment.on_registered(member(3), process_start_s=0.0, now=0.1)
    conductor.adjustment.on_ready(w(3), context_s=0.1)
    conductor.when_gathered(0.2)
    for number in (0, 1, 2, 3):
        conductor.on_group_built(built(number, 2), 0.5)
    answer(made)
    return made


def test_a_newcomer_without_a_step_is_no_survivor_and_its_scale_out_is_undone() -> None:
    made = scaling_out()
    made.on_lost(w(1), "signal 9", 3.0)
    assert made.target is not None
    assert made.target.workers() == names(0, 2)
    made.on_group_built(built(0, 3))
    (swap,) = made.on_group_built(built(2, 3))
    assert isinstance(swap, StoreSwap)
    (deed,) = read_recorded(swap.value or b"").deeds
    assert (deed.request_id, deed.undone) == ("out", "w1 was lost meanwhile")
    effects = answer(made)
    undone = m.Undone(request_id="out", reason="w1 was lost meanwhile")
    assert sent(effects, m.Undone) == [(20, undone)]
    assert [peer for peer, _ in sent(effects, m.Undo)] == [0, 12, 13]
    assert made.conductor.adjustment is None


def test_a_member_that_broke_before_the_switch_stops_it_for_everybody() -> None:
    made = scaling_in()
    made.conductor.on_switch_decided(2, 4, 3.0)
    assert told(made.on_stuck(stuck(1, 1), 3.1)) == ["training.broke"]


def test_a_newcomer_that_broke_before_the_switch_is_a_failure_after_it() -> None:
    made = scaling_out()
    made.keep(stuck(3, 2))
    made.conductor.on_switch_decided(2, 4, 3.0)
    assert told(made.on_switch_happened(3.1)) == ["training.broke"]
    assert made.on_switch_happened(3.1) == []


def test_an_undo_in_a_mended_generation_records_it_again_and_begins_nothing() -> None:
    made = recorded()
    for number in (0, 1):
        made.on_switched(switched(number, 2), 3.0)
    conductor = made.conductor
    conductor.open(20, "out", kind="scale_out", joiners=(joiner(3),), leavers=(), now=4.0)
    (swap,) = conductor.undo("w3 died", 5.0)
    assert isinstance(swap, StoreSwap)
    assert read_recorded(swap.value or b"").generation == target(2, 2)
    effects = answer(made)
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="out", reason="w3 died"))]
    assert not sent(effects, m.Founded)
    assert not made.active
