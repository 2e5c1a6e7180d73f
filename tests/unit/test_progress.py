"""What a round of records means, and what happens at the boundary after it."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.progress import Progress, StepPlan, Verdict
from edl.protocol.record import STOP, WITHDRAWN, Kind
from edl.protocol.shards import ShardLedger
from edl.protocol.topology import Generation, draw_again, draw_next
from tests.seeded.cast import first, member, names, record, w


def progress(me: int = 0, *, samples: int = 20, batch: int = 4) -> Progress:
    ledger = MapLedger(
        samples=samples, batch=batch, seed=0, shuffle=False, drop_last=False, epochs=2
    )
    return Progress(me=w(me), generation=first(0, 1), ledger=ledger)


def second(*, joins: tuple[int, ...] = (), leaves: tuple[int, ...] = ()) -> Generation:
    return draw_next(
        first(0, 1),
        number=2,
        joiners=[member(i) for i in joins],
        leavers=names(*leaves),
        token=1,
        request_id="r",
    )


def test_a_plan_names_this_workers_part() -> None:
    assert progress(1).plan() == StepPlan(
        step=0, generation=1, rank=1, size=2, part=Slice(epoch=0, start=2, count=2), total=4
    )


def test_a_newcomer_has_no_part_in_its_first_step_and_one_in_its_second() -> None:
    new = progress(0)
    new.enter(second(joins=(2,)))
    assert new.plan().count == 2
    late = Progress(me=w(2), generation=second(joins=(2,)), ledger=new.ledger)
    assert late.plan().part is None
    assert late.plan().count == 0
    late.commit(late.judge([record(samples=2), record(samples=2), record(kind=Kind.JOIN)]))
    assert late.plan().count == 0  # four samples go to two workers, not singly to three
    assert late.plan().size == 3


def test_a_complete_round_goes_on_with_the_samples_it_names() -> None:
    decided = progress().judge([record(samples=3), record(samples=1)])
    assert (decided.go, decided.closed, decided.ended) == (True, False, False)
    assert decided.samples == {w(0): 3, w(1): 1}
    assert decided.weight(w(0)) == 0.75
    assert decided.weight(w(9)) == 0.0


def test_a_step_in_which_anyone_left_the_loop_counts_for_nobody() -> None:
    decided = progress().judge([record(samples=2), record(kind=Kind.CLOSE)])
    assert (decided.go, decided.closed) == (False, True)


def test_a_round_with_an_end_in_it_ends_the_job() -> None:
    decided = progress().judge([record(samples=2), record(kind=Kind.END)])
    assert (decided.go, decided.ended) == (False, True)


def test_a_reduction_among_steps_is_the_scripts_fault() -> None:
    with pytest.raises(UsageError, match="w0 step at step 0, w1 reduce at step 0"):
        progress().judge([record(), record(kind=Kind.REDUCE)])


def test_two_different_reductions_never_meet() -> None:
    with pytest.raises(UsageError, match="called different things"):
        progress().judge([record(kind=Kind.REDUCE, detail=1), record(kind=Kind.REDUCE, detail=2)])


def test_a_peer_at_another_step_is_our_own_bug() -> None:
    with pytest.raises(AssertionError, match="w0 is at step 0, a peer at 3"):
        progress().judge([record(step=0), record(step=3)])


def test_a_joiner_in_its_first_round_may_name_any_step() -> None:
    new = Progress(me=w(0), generation=second(joins=(2,)), ledger=progress().ledger)
    assert new.judge([record(), record(), record(kind=Kind.JOIN, step=9)]).go


def test_a_commit_moves_step_and_ledger() -> None:
    done = progress()
    done.commit(done.judge([record(samples=2), record(samples=2)]))
    assert (done.step, done.entering) == (1, False)
    assert done.plan().part == Slice(epoch=0, start=4, count=2)


def test_a_switch_announced_in_the_last_record_happens_now() -> None:
    done, target = progress(), second(joins=(2,))
    done.prepare(target)
    done.step = 3
    assert done.verdict([record(says=(2, 4, 1)), record()]) == Verdict()
    assert done.verdict([record(says=(2, 3, 1)), record()]) == Verdict(switch_to=target)
    assert done.verdict([record(says=(2, 2, 1)), record()]) == Verdict(switch_to=target)


def test_whoever_is_not_in_the_target_leaves() -> None:
    done, target = progress(1), second(leaves=(1,))
    done.prepare(target)
    verdict = done.verdict([record(says=(2, 0, 1)), record()])
    assert verdict == Verdict(switch_to=target, leave=True)


def test_a_stop_lets_everybody_leave() -> None:
    assert progress().verdict([record(says=(STOP, 0, 1))]) == Verdict(stop=True, leave=True)


def test_a_withdrawn_switch_does_not_happen() -> None:
    done = progress()
    done.prepare(second(joins=(2,)))
    assert done.verdict([record(says=(WITHDRAWN, 2, 1)), record()]) == Verdict()


def test_an_announcement_of_the_generation_we_are_in_says_nothing() -> None:
    assert progress().verdict([record(says=(1, 0, 1)), record()]) == Verdict()


def test_an_announcement_of_something_never_prepared_is_our_own_bug() -> None:
    done = progress()
    done.prepare(second(joins=(2,)))
    done.withdraw(2)
    with pytest.raises(AssertionError, match="generation 2 is announced"):
        done.verdict([record(says=(2, 0, 1)), record()])


def test_entering_forgets_older_generations() -> None:
    done, target = progress(), second(joins=(2,))
    done.prepare(target)
    done.enter(target)
    assert done.entering
    assert done.generation is target
    assert done.verdict([record(says=(2, 0, 1)), record(), record()]) == Verdict()


def test_closing_a_loop_begins_the_next_epoch() -> None:
    done = progress()
    done.close()
    assert (done.ledger.epoch, done.ledger.step_size()) == (1, 4)


def test_a_newcomer_takes_over_step_and_ledger() -> None:
    old, new = progress(), progress(1)
    old.commit(old.judge([record(samples=2), record(samples=2)]))
    new.adopt(old.snapshot())
    assert (new.step, new.ledger) == (old.step, old.ledger)


def test_a_newcomer_with_other_data_is_told_so() -> None:
    with pytest.raises(UsageError, match="a dataset of 30 samples with batch_size 4"):
        progress(1, samples=30).adopt(progress().snapshot())


def test_a_generation_without_a_commit_leaves_no_trace_in_the_ledger() -> None:
    """A survivor that moved through one holds what another holds that did not."""
    ledger = ShardLedger.opened((6, 6, 6, 6), batch=4, seed=0, epochs=1)
    generation = first(0, 1, 2)
    moved = Progress(me=w(0), generation=generation, ledger=ledger)
    stayed = Progress(me=w(0), generation=generation, ledger=ledger)
    for one in (moved, stayed):
        shares = [record(samples=count) for count in (2, 2, 0)]
        one.commit(one.judge(shares))
    later = draw_next(generation, number=2, joiners=(), leavers=names(2), token=1, request_id="r")
    moved.enter(later)
    mended = draw_again(later, number=3, dead=names(1), leader=w(0), token=1)
    for one in (moved, stayed):
        one.enter(mended)
    assert moved.ledger == stayed.ledger
    assert moved.snapshot() == stayed.snapshot()


def test_whoever_takes_a_snapshot_in_the_same_generation_holds_the_same_ledger() -> None:
    ledger = ShardLedger.opened((6, 6, 6, 6), batch=4, seed=0, epochs=1)
    ahead = Progress(me=w(0), generation=first(0, 1, 2), ledger=ledger)
    behind = Progress(me=w(1), generation=first(0, 1, 2), ledger=ledger)
    ahead.commit(ahead.judge([record(samples=count) for count in (2, 2, 0)]))
    mended = draw_again(first(0, 1, 2), number=2, dead=names(2), leader=w(0), token=1)
    for one in (ahead, behind):
        one.enter(mended)
    behind.adopt(ahead.snapshot())
    assert behind.ledger == ahead.ledger
    assert behind.step == ahead.step
    again = draw_again(mended, number=3, dead=(), leader=w(0), token=1)
    for one in (ahead, behind):
        one.enter(again)
    assert behind.ledger == ahead.ledger
