"""One adjustment, from Accepted to Adjusted or Undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.adjustment import Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Announce, Effect, Publish, Send, StoreSwap
from edl.protocol.events import Swapped
from edl.protocol.record import STOP, WITHDRAWN
from edl.protocol.recorded import read_recorded
from edl.protocol.topology import draw_again
from edl.protocol.voice import Voice
from tests.seeded.cast import committed, first, joiner, member, names, record, sent, w

QUIET = Announce(generation=0, switch_step=0, token=3)
ANNOUNCED = Announce(generation=2, switch_step=0, token=3)


def conductor() -> Conductor:
    voice = Voice()
    voice.peers = {w(0): 0, w(1): 11}
    made = Conductor(me=w(0), token=3, settings=Settings(), voice=voice)
    made.enter(first(0, 1))
    made.last_number, made.generation_revision = 1, 5
    return made


def told(effects: list[Effect]) -> list[str]:
    return [effect.happened.what for effect in effects if isinstance(effect, Publish)]


def opened() -> Conductor:
    made = conductor()
    made.open(20, "r", kind="scale_out", joiners=(joiner(2),), leavers=(), now=0.0)
    return made


def building() -> Conductor:
    made = opened()
    assert made.adjustment is not None
    made.voice.peers[w(2)] = 12
    made.adjustment.on_registered(member(2), process_start_s=0.0, now=1.0)
    made.adjustment.on_ready(w(2), context_s=1.0)
    made.when_gathered(2.0)
    return made


def built(number: int, generation: int = 2) -> m.GroupBuilt:
    return m.GroupBuilt(generation=generation, worker=w(number), build_s=0.0)


def recording() -> Conductor:
    made = building()
    for number in (0, 1, 2):
        made.on_group_built(built(number), 3.0)
    return made


def recorded(made: Conductor, *, done: bool = True) -> list[Effect]:
    event = Swapped(purpose="generation", done=done, value=b"x", revision=6)
    target = made.answered(event)
    return made.on_recorded(target, 4.0) if target else []


def announced() -> Conductor:
    made = recording()
    recorded(made)
    return made


def switched(number: int) -> m.Switched:
    return m.Switched(
        generation=2, worker=w(number), step=2, transfer_s=0, transfer_bytes=0, stop_s=0
    )


def test_a_scale_out_waits_for_its_workers() -> None:
    made = conductor()
    effects = made.open(20, "r", kind="scale_out", joiners=(joiner(2),), leavers=(), now=0.0)
    assert effects[0] == Send(peer=20, message=m.Accepted(request_id="r"))
    assert told(effects) == ["adjust.accepted"]
    assert not sent(effects, m.Prepare)


def test_a_scale_in_begins_to_build_at_once() -> None:
    made = conductor()
    effects = made.open(20, "r", kind="scale_in", joiners=(), leavers=names(1), now=0.0)
    prepared = sent(effects, m.Prepare)
    assert [peer for peer, _ in prepared] == [0, 11]
    assert told(effects) == ["adjust.accepted", "adjust.building"]


def test_everyone_is_told_to_prepare_when_all_are_gathered() -> None:
    made = opened()
    assert made.adjustment is not None
    made.voice.peers[w(2)] = 12
    made.adjustment.on_registered(member(2), process_start_s=0.0, now=1.0)
    assert made.when_gathered(1.0) == []
    made.adjustment.on_ready(w(2), context_s=1.0)
    effects = made.when_gathered(2.0)
    assert [peer for peer, _ in sent(effects, m.Prepare)] == [0, 11, 12]
    assert made.last_number == 2
    assert made.when_gathered(2.0) == []


def test_the_generation_is_recorded_when_the_last_one_has_built() -> None:
    made = building()
    assert made.on_group_built(built(0), 3.0) == []
    assert made.on_group_built(built(1, generation=7), 3.0) == []
    assert made.on_group_built(built(1), 3.0) == []
    (swap,) = made.on_group_built(built(2), 3.0)
    assert isinstance(swap, StoreSwap)
    assert (swap.purpose, swap.key, swap.expected, swap.leased) == (
        "generation",
        "generation",
        5,
        False,
    )
    found = read_recorded(swap.value or b"")
    assert found.generation == made.asked
    assert found.generation.workers() == names(0, 1, 2)
    assert (found.generation.token, found.generation.request_id) == (3, "r")
    assert [(deed.request_id, deed.joined, deed.undone) for deed in found.deeds] == [
        ("r", names(2), "")
    ]


def test_a_group_of_another_generation_counts_for_nothing() -> None:
    made = building()
    for number in (0, 1, 2):
        assert made.on_group_built(built(number, generation=1), 3.0) == []
    assert made.adjustment is not None
    assert made.adjustment.phase is Phase.BUILDING
    for number in (0, 1):
        made.on_group_built(built(number), 3.0)
    assert made.on_switch_decided(1, 4, 4.0) == []


def test_a_switch_is_announced_only_once_it_is_in_the_store() -> None:
    made = recording()
    assert made.word() == QUIET
    effects = recorded(made)
    assert effects[0] == ANNOUNCED
    assert told(effects) == ["adjust.announced"]


def test_a_swap_that_was_answered_twice_counts_as_done() -> None:
    made = building()
    for number in (0, 1, 2):
        effects = made.on_group_built(built(number), 3.0)
    (swap,) = effects
    assert isinstance(swap, StoreSwap)
    event = Swapped(purpose="generation", done=False, value=swap.value, revision=6)
    assert made.adjustment is not None
    assert made.answered(event) == made.adjustment.generation
    assert made.generation_revision == 6


def test_an_undo_waits_for_the_store_which_then_says_again_what_is_in_force() -> None:
    made = recording()
    assert made.undo("w2 died", 3.5) == []
    swap, quiet = recorded(made)
    assert quiet == QUIET
    assert isinstance(swap, StoreSwap)
    assert swap.expected == 6
    found = read_recorded(swap.value or b"")
    assert found.generation == first(0, 1)
    assert [deed.undone for deed in found.deeds] == ["w2 died"]
    assert sent(recorded(made), m.Undone) == [(20, m.Undone(request_id="r", reason="w2 died"))]
    assert made.adjustment is None


def test_the_announcement_stops_when_the_switch_happens() -> None:
    made = announced()
    effects = made.on_switch_decided(2, 2, 5.0)
    assert effects[0] == QUIET
    assert told(effects) == ["adjust.switching"]
    assert made.generation is not None
    assert made.generation.number == 2


def test_the_requester_hears_when_the_last_one_has_switched() -> None:
    made = announced()
    made.on_switch_decided(2, 2, 5.0)
    assert made.on_switched(switched(0), 6.0) == []
    assert made.on_switched(switched(1), 6.0) == []
    effects = made.on_switched(switched(2), 7.0)
    ((peer, answer),) = sent(effects, m.Adjusted)
    assert peer == 20
    assert isinstance(answer, m.Adjusted)
    assert (answer.record.joined, answer.record.size) == (names(2), 3)
    assert told(effects) == ["adjust.complete"]
    assert made.adjustment is None
    assert made.on_switched(switched(2), 8.0) == []


def test_before_the_announcement_an_undo_waits_for_the_store_alone() -> None:
    made = building()
    (swap,) = made.undo("w2 died", 3.0)
    assert isinstance(swap, StoreSwap)
    found = read_recorded(swap.value or b"")
    assert found.generation == first(0, 1)
    assert [(deed.request_id, deed.undone) for deed in found.deeds] == [("r", "w2 died")]
    effects = recorded(made)
    word = m.Undo(generation=2, request_id="r", why="w2 died", finished=False)
    assert sent(effects, m.Undo) == [(0, word), (11, word), (12, word)]
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="r", reason="w2 died"))]
    assert not any(isinstance(effect, Announce) for effect in effects)
    assert w(2) not in made.voice.peers


def test_an_announced_switch_is_undone_when_a_later_record_says_so() -> None:
    made = announced()
    withdrawal = Announce(generation=WITHDRAWN, switch_step=2, token=3)
    assert made.undo("w2 died", 5.0) == [withdrawal]
    # From before the announcement: one that names the generation may still follow.
    assert made.on_step_committed(committed(1, record(), record()), 5.1) == []
    named = record(says=(2, 2, 3))
    assert made.on_step_committed(committed(1, named, record()), 5.2) == []
    after = record(says=(WITHDRAWN, 2, 3))
    swap, quiet = made.on_step_committed(committed(2, after, record()), 5.3)
    assert quiet == QUIET
    assert isinstance(swap, StoreSwap)
    assert read_recorded(swap.value or b"").generation == first(0, 1)
    effects = recorded(made)
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="r", reason="w2 died"))]


def test_a_withdrawn_switch_may_still_happen() -> None:
    made = announced()
    made.undo("w2 lost its connection", 5.0)
    made.on_switch_decided(2, 2, 5.5)
    assert made.adjustment is not None
    assert made.adjustment.phase is Phase.SWITCHING
    assert made.undo("too late", 6.0) == []


def test_a_stop_is_announced_over_everything_else() -> None:
    made = announced()
    made.stopping = "enough"
    assert made.word() == Announce(generation=STOP, switch_step=1, token=3)
    made.undo("the job is stopping", 5.0)
    made.on_step_committed(committed(1, record(says=(STOP, 1, 3))), 5.1)
    assert told(recorded(made)) == ["adjust.undone"]


def test_an_overdue_adjustment_is_undone_by_a_tick() -> None:
    made = opened()
    assert made.on_tick(59.9) == []
    assert len(made.on_tick(60.0)) == 1
    assert made.on_tick(61.0) == []
    effects = recorded(made)
    reason = "w2 did not register within 60 s"
    assert sent(effects, m.Undone) == [(20, m.Undone(request_id="r", reason=reason))]


def test_keys_are_relayed_for_the_present_target_only() -> None:
    made = building()
    stale = m.RendezvousKey(generation=1, worker=w(1), key="k", value=b"v")
    fresh = m.RendezvousKey(generation=2, worker=w(1), key="k", value=b"v")
    assert made.on_rendezvous(stale) == []
    assert made.on_rendezvous(fresh) == [
        Send(peer=0, message=fresh),
        Send(peer=12, message=fresh),
    ]


def test_a_worker_that_was_away_hears_what_it_missed() -> None:
    made = building()
    fresh = m.RendezvousKey(generation=2, worker=w(1), key="k", value=b"v")
    made.on_rendezvous(fresh)
    effects = made.catch_up(w(2))
    assert [type(effect.message) for effect in effects if isinstance(effect, Send)] == [
        m.Prepare,
        m.RendezvousKey,
    ]
    assert made.catch_up(w(9)) == []
    assert announced().catch_up(w(2)) == []


# -- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [opened, building])
def test_what_was_not_recorded_is_undone_with_the_generation_it_began_in(
    stage: Callable[[], Conductor],
) -> None:
    made = stage()
    assert made.on_failure("w1 was lost", 5.0) == []
    mended = draw_again(first(0, 1), number=3, dead=names(1), leader=w(0), token=3)
    (deed,) = read_recorded(made.record(mended).value or b"").deeds
    assert (deed.request_id, deed.undone) == ("r", "w1 was lost meanwhile")
    made.asked = None
    undone = m.Undone(request_id="r", reason="w1 was lost meanwhile")
    assert sent(made.on_mended(mended, 6.0), m.Undone) == [(20, undone)]
    assert made.adjustment is None


def test_nothing_more_is_made_of_an_adjustment_that_a_failure_ended() -> None:
    made = opened()
    made.on_failure("w1 was lost", 5.0)
    assert made.adjustment is not None
    made.adjustment.on_registered(member(2), process_start_s=0.0, now=5.1)
    made.adjustment.on_ready(w(2), context_s=0.1)
    assert made.when_gathered(5.2) == []
    assert made.undo("w2 died", 5.3) == []
    assert made.on_tick(1e9) == []


def test_a_recorded_generation_is_the_base_of_what_follows() -> None:
    made = announced()
    effects = made.on_failure("w1 was lost", 5.0)
    assert effects[0] == QUIET
    assert told(effects) == ["adjust.switching"]
    assert made.generation is not None
    assert made.generation.number == 2
    assert made.strangers() == set(names(2))
    assert made.on_failure("w1 was lost", 5.1) == []


def test_a_failure_without_an_adjustment_changes_nothing() -> None:
    made = conductor()
    assert made.on_failure("w1 was lost", 5.0) == []
    assert made.strangers() == set()


def test_a_new_leader_turns_newcomers_without_a_step_away_and_says_so_of_their_request() -> None:
    written = recording()
    found = read_recorded(written._written)
    made = conductor()
    made.adopt(found, revision=8)
    assert made.voice.requests.answered("r") is None
    made.turn_away(w(2))
    assert made.strangers() == set(names(2))
    mended = draw_again(found.generation, number=3, dead=names(2), leader=w(0), token=4)
    made.on_mended(mended, 6.0)
    why = "the leader was lost before they trained"
    assert made.voice.requests.answered("r") == m.Undone(request_id="r", reason=why)
    assert made.strangers() == set()


def test_a_scale_out_stands_for_a_leader_that_came_with_it_and_for_whoever_has_a_step() -> None:
    found = read_recorded(recording()._written)
    made = conductor()
    made.me = w(2)
    made.adopt(found, revision=8)
    made.turn_away(w(3))
    assert made.strangers() == {w(3)}
    mended = draw_again(found.generation, number=3, dead=names(0), leader=w(2), token=4)
    made.on_mended(mended, 6.0)
    answer = made.voice.requests.answered("r")
    assert isinstance(answer, m.Adjusted)
    assert answer.record.joined == names(2)


def test_a_new_leader_answers_for_what_was_recorded_and_stands() -> None:
    found = read_recorded(recording()._written)
    made = conductor()
    made.adopt(found, revision=8)
    mended = draw_again(found.generation, number=3, dead=names(0), leader=w(0), token=4)
    made.on_mended(mended, 6.0)
    answer = made.voice.requests.answered("r")
    assert isinstance(answer, m.Adjusted)
    assert (answer.record.joined, answer.record.generation) == (names(2), 2)
