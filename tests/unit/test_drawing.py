"""The ledger of partitions that are drawn ahead, by itself."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.protocol.drawing import DrawnLedger
from edl.protocol.shards import Piece, amount
from edl.types import WorkerId

A, B, C = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")


def prepared(lengths: list[int], *, batch: int = 4, epochs: int = 1, ahead: int = 0) -> DrawnLedger:
    return DrawnLedger.prepared(
        lengths, batch=batch, seed=0, epochs=epochs, shuffle=True, ahead=ahead
    )


def own(ledger: DrawnLedger, worker: WorkerId) -> tuple[Piece, ...]:
    return ledger.queue_of(worker)


def test_a_range_that_is_wanted_is_handed_out_after_the_step() -> None:
    ledger = prepared([10] * 20, batch=8).entered([A, B]).provided([A, B])
    assert [len(own(ledger, worker)) for worker in (A, B)] == [1, 1]
    after = ledger.committed({A: 4, B: 4}, wanted={A: 2})
    assert [len(own(after, worker)) for worker in (A, B)] == [3, 1]


def test_what_is_queued_stays_with_its_worker() -> None:
    ledger = prepared([40, 40], batch=8).entered([A, B]).provided([A, B])
    before = own(ledger, A)
    ledger = ledger.committed({A: 4, B: 4}).entered([A, B, C]).provided([A, B])
    assert own(ledger, A)[0] == Piece(before[0].partition, 4, before[0].length - 4)
    assert own(ledger, C) == ()


def test_a_leavers_queue_goes_first_in_line() -> None:
    ledger = prepared([10] * 20, batch=8).entered([A, B]).provided([A, B])
    theirs = own(ledger, B)[0]
    ledger = ledger.committed({A: 4, B: 4}).entered([A, C])
    assert ledger.returned == (Piece(theirs.partition, 4, 6),)
    assert own(ledger.provided([A, C]), C)[0] == Piece(theirs.partition, 4, 6)


def test_near_the_end_ranges_become_small() -> None:
    ledger = prepared([64], batch=4).entered([A, B]).provided([A, B])
    assert own(ledger, A) == (Piece(0, 0, 16),)
    assert own(ledger, B) == (Piece(0, 16, 12),)


def test_what_one_lacks_the_others_make_up_for() -> None:
    queues = ((A, (Piece(0, 0, 19),)), (B, (Piece(0, 19, 1),)), (C, ()))
    ledger = replace(prepared([20], batch=8), queues=queues, handed=1, untouched=0)
    assert ledger.shares([A, B, C]) == {A: 7, B: 1, C: 0}


def test_samples_that_flowed_by_go_first_in_line() -> None:
    ledger = prepared([10] * 20, batch=0, ahead=8).entered([A, B]).provided([A, B])
    mine = own(ledger, A)[0]
    after = ledger.committed({A: 2, B: 4}, back={A: 3})
    assert after.returned == (Piece(mine.partition, 0, 3),)
    assert own(after, A)[0] == Piece(mine.partition, 5, mine.length - 5)
    assert ledger.used_by({A: 2, B: 0}, {A: 3}) == (Piece(mine.partition, 3, 2),)


def test_more_than_a_queue_has_is_refused() -> None:
    ledger = prepared([4, 4], batch=0, ahead=4).entered([A, B]).provided([A, B])
    with pytest.raises(ValueError, match="w0 used 5 samples"):
        ledger.committed({A: 5, B: 0})


def test_before_anything_is_counted_a_small_dataset_is_shared_out_whole() -> None:
    ledger = prepared([10] * 3, batch=0, ahead=4096).entered([A, B, C]).provided([A, B, C])
    assert ledger.free() == 0
    assert [amount(own(ledger, worker)) for worker in (A, B, C)] == [10, 10, 10]


def test_a_copy_by_plain_values_is_the_same_ledger() -> None:
    ledger = prepared([10] * 20, batch=8).entered([A, B]).provided([A, B])
    ledger = ledger.committed({A: 4, B: 4}, wanted={A: 2})
    assert prepared([10] * 20, batch=8).like(ledger.snapshot()) == ledger


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    batch=st.integers(0, 40),
    seed=st.integers(0, 1 << 32),
)
def test_every_sample_is_used_once_whoever_comes_and_goes(
    lengths: list[int], batch: int, seed: int
) -> None:
    rng = random.Random(seed)
    members = [A, B]
    ledger = prepared(lengths, batch=batch, ahead=0 if batch else 9).entered(members)
    used: Counter[tuple[int, int]] = Counter()
    while not ledger.epoch_over():
        carriers = members
        if rng.random() < 0.4:
            joined = [WorkerId(f"w{name}") for name in rng.sample(range(7), rng.randint(1, 5))]
            carriers = [worker for worker in joined if worker in members] or joined
            members = joined
            ledger = ledger.entered(members)
        ledger = ledger.provided(carriers)
        has = {worker: amount(ledger.queue_of(worker)) for worker in carriers}
        back: dict[WorkerId, int] = {}
        if batch:
            taken = ledger.shares(carriers)
            assert sum(taken.values()) == ledger.step_size()
        else:
            taken = {worker: rng.randint(0, min(5, has[worker])) for worker in carriers}
            back = {worker: rng.randint(0, min(2, has[worker] - taken[worker])) for worker in has}
        for piece in ledger.used_by(taken, back):
            used.update((piece.partition, piece.offset + i) for i in range(piece.length))
        left = ledger.remaining() - sum(taken.values())
        wanted = {worker: rng.randint(0, 2) for worker in members}
        ledger = ledger.committed(taken, wanted=wanted, back=back)
        assert ledger.remaining() == left
    assert used == Counter({(p, o): 1 for p, length in enumerate(lengths) for o in range(length)})
