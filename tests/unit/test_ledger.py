"""The map-style ledger: every sample exactly once, whoever comes and goes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.protocol.ledger import MapLedger, Slice
from tests.seeded.cast import drawn, names, w


def ledger(samples: int, batch: int, *, drop_last: bool = False, epochs: int = 1) -> MapLedger:
    return MapLedger(
        samples=samples, batch=batch, seed=5, shuffle=True, drop_last=drop_last, epochs=epochs
    )


@drawn
@given(
    samples=st.integers(1, 120),
    batch=st.integers(1, 30),
    drop_last=st.booleans(),
    data=st.data(),
)
def test_each_sample_is_used_exactly_once_under_any_worker_counts(
    samples: int, batch: int, drop_last: bool, data: st.DataObject
) -> None:
    book = ledger(samples, batch, drop_last=drop_last)
    used: list[int] = []
    while not book.epoch_over():
        carriers = names(*range(data.draw(st.integers(1, 9))))
        parts = {worker: book.slice_of(worker, carriers) for worker in carriers}
        total = sum(part.count for part in parts.values())
        assert total == min(batch, book.usable() - book.position)
        used += [index for part in parts.values() for index in book.indexes(part)]
        book = book.committed({worker: part.count for worker, part in parts.items()})
    assert len(used) == len(set(used)) == book.usable()
    assert drop_last or sorted(used) == list(range(samples))


@drawn
@given(samples=st.integers(1, 60), batch=st.integers(1, 20), count=st.integers(1, 8))
def test_the_order_does_not_depend_on_how_many_workers_there_are(
    samples: int, batch: int, count: int
) -> None:
    alone, many = ledger(samples, batch), names(*range(count))
    whole = alone.indexes(alone.slice_of(w(0), names(0)))
    parts = [index for worker in many for index in alone.indexes(alone.slice_of(worker, many))]
    assert parts == whole


def test_the_last_batch_is_what_is_left() -> None:
    book = ledger(10, 4).committed({w(0): 4}).committed({w(0): 4})
    assert book.step_size() == 2
    assert book.shares(names(0, 1, 2)) == {w(0): 2, w(1): 0, w(2): 0}
    assert book.committed({w(0): 2}).epoch_over()


def test_drop_last_leaves_the_rest_unused() -> None:
    book = ledger(10, 4, drop_last=True).committed({w(0): 4}).committed({w(0): 4})
    assert book.epoch_over()


def test_a_step_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="used 3 samples where the ledger has 4"):
        ledger(10, 4).committed({w(0): 2, w(1): 1})


def test_the_job_is_over_after_its_epochs() -> None:
    book = ledger(4, 4, epochs=2)
    assert not book.job_over()
    assert not book.next_epoch().job_over()
    assert book.next_epoch().next_epoch().job_over()
    assert not ledger(4, 4, epochs=0).next_epoch().job_over()


def test_the_next_epoch_has_another_order() -> None:
    book = ledger(50, 50)
    part = book.slice_of(w(0), names(0))
    later = book.next_epoch()
    assert book.indexes(part) != later.indexes(later.slice_of(w(0), names(0)))


def test_without_shuffling_the_order_is_the_datasets() -> None:
    book = MapLedger(samples=9, batch=4, seed=1, shuffle=False, drop_last=False, epochs=1)
    assert book.indexes(Slice(epoch=0, start=2, count=3)) == [2, 3, 4]


def test_a_snapshot_restores_the_same_ledger() -> None:
    book = ledger(10, 4, epochs=3).committed({w(0): 4}).next_epoch()
    assert MapLedger.restored(book.snapshot()) == book


def test_another_membership_changes_nothing() -> None:
    book = ledger(10, 4)
    assert book.entered(names(1, 2)) == book
