"""The ledger of partitioned data, by itself."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.protocol.shards import Piece, ShardLedger
from edl.types import WorkerId

A, B, C = WorkerId("w0"), WorkerId("w1"), WorkerId("w2")


def opened(lengths: list[int], *, batch: int = 4, epochs: int = 1) -> ShardLedger:
    return ShardLedger.opened(lengths, batch=batch, seed=0, epochs=epochs)


def run_epoch(ledger: ShardLedger, members: list[WorkerId]) -> tuple[ShardLedger, list[Piece]]:
    pieces: list[Piece] = []
    while not ledger.epoch_over():
        parts = {worker: ledger.slice_of(worker, members) for worker in members}
        now = [piece for part in parts.values() for piece in part.pieces]
        counts = {worker: part.count for worker, part in parts.items()}
        assert sorted(ledger.used_by(counts)) == sorted(now)
        pieces += now
        ledger = ledger.committed(counts)
    return ledger, pieces


def test_a_worker_reads_a_partition_from_front_to_back() -> None:
    ledger = opened([100, 100], batch=8).entered([A, B])
    first = ledger.slice_of(A, [A, B]).pieces
    ledger = ledger.committed({A: 4, B: 4})
    second = ledger.slice_of(A, [A, B]).pieces
    assert len(first) == len(second) == 1
    assert second[0] == Piece(first[0].partition, first[0].offset + 4, 4)


def test_workers_read_different_partitions() -> None:
    ledger = opened([100, 100], batch=8).entered([A, B])
    mine, theirs = ledger.slice_of(A, [A, B]), ledger.slice_of(B, [A, B])
    assert mine.pieces[0].partition != theirs.pieces[0].partition


def test_a_leavers_unread_rest_goes_first_in_line() -> None:
    ledger = opened([10, 10, 10], batch=8).entered([A, B])
    theirs = ledger.slice_of(B, [A, B]).pieces[0]
    ledger = ledger.committed({A: 4, B: 4}).entered([A, C])
    assert ledger.returned == (Piece(theirs.partition, 4, 6),)
    assert ledger.slice_of(C, [A, C]).pieces[0] == Piece(theirs.partition, 4, 4)


def test_near_the_end_the_fullest_queue_is_shared() -> None:
    ledger = opened([20], batch=8).entered([A, B])
    assert ledger.slice_of(A, [A, B]).count == 4
    assert ledger.slice_of(B, [A, B]).count == 4


def test_a_step_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(ValueError, match="used 3 samples where the ledger has 4"):
        opened([10]).entered([A]).committed({A: 3})


def test_the_next_epoch_has_another_order_and_all_samples() -> None:
    ledger = opened([3] * 30, epochs=2).entered([A])
    ledger, first = run_epoch(ledger, [A])
    ledger, second = run_epoch(ledger.next_epoch(), [A])
    assert [p.partition for p in first] != [p.partition for p in second]
    assert ledger.next_epoch().job_over()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_sample_is_used_once_whoever_comes_and_goes(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 30), min_size=1, max_size=12))
    batch = data.draw(st.integers(1, 40))
    members = [A, B]
    ledger = opened(lengths, batch=batch).entered(members)
    used: Counter[tuple[int, int]] = Counter()
    while not ledger.epoch_over():
        if data.draw(st.booleans()):
            names = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=5, unique=True))
            members = [WorkerId(f"w{name}") for name in names]
            ledger = ledger.entered(members)
        parts = {worker: ledger.slice_of(worker, members) for worker in members}
        assert sum(part.count for part in parts.values()) == ledger.step_size()
        for part in parts.values():
            for piece in part.pieces:
                used.update((piece.partition, piece.offset + i) for i in range(piece.length))
        ledger = ledger.committed({worker: part.count for worker, part in parts.items()})
        assert ShardLedger.restored(ledger.snapshot(), ledger.table) == ledger
    assert used == Counter((i, j) for i, length in enumerate(lengths) for j in range(length))
