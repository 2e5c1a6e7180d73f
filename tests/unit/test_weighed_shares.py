"""Shares by weight: announced in a record, the same for everybody, and every sample once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.protocol.drawing import DrawnLedger
from edl.protocol.forecast import Forecast
from edl.protocol.ledger import MapLedger, Slice
from edl.protocol.progress import Ledger, Progress
from edl.protocol.record import Weighing
from edl.protocol.shards import Piece, ShardLedger
from edl.protocol.topology import FULL, draw_again, draw_next
from tests.seeded.cast import first, member, names, record, w

MAP = MapLedger(samples=200, batch=20, seed=0, shuffle=True, drop_last=False, epochs=1)
SHARDS = ShardLedger.opened((50, 70, 20, 60), batch=20, seed=0, epochs=1)
DRAWN = DrawnLedger.prepared((50, 70, 20, 60), batch=20, seed=0, epochs=1, shuffle=True, ahead=0)
LEDGERS: list[Ledger] = [MAP, SHARDS, DRAWN]
HALF = Weighing(generation=1, rank=1, weight=FULL // 2).pack()


def crew(ledger: Ledger, *numbers: int) -> list[Progress]:
    return [Progress(me=w(n), generation=first(*numbers), ledger=ledger) for n in numbers]


def step(everyone: list[Progress], weighing: int = 0) -> dict[str, int]:
    """One step of all; returns who used how many."""
    plans = {one.me: one.plan() for one in everyone}
    records = [
        replace(
            record(step=one.step, samples=plans[one.me].count),
            weighing=weighing if rank == 0 else 0,
            token=1,
        )
        for rank, one in enumerate(everyone)
    ]
    for one in everyone:
        one.commit(one.judge(records))
    assert len({repr(one.snapshot()) for one in everyone}) == 1
    return {worker: plan.count for worker, plan in plans.items()}


@pytest.mark.parametrize("ledger", LEDGERS)
def test_a_smaller_share_counts_from_the_step_after_its_announcement_on(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    assert step(everyone, HALF) == {"w0": 7, "w1": 7, "w2": 6}
    assert step(everyone) == {"w0": 8, "w1": 4, "w2": 8}


@pytest.mark.parametrize("ledger", LEDGERS)
def test_a_full_share_comes_back_in_the_same_way(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    step(everyone, HALF)
    step(everyone, Weighing(generation=1, rank=1, weight=FULL).pack())
    assert step(everyone) == {"w0": 7, "w1": 7, "w2": 6}
    assert everyone[0].ledger.weights == ()


@pytest.mark.parametrize("ledger", LEDGERS)
def test_every_sample_is_used_once_whatever_the_weights(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    used: list[object] = []
    while not everyone[0].ledger.epoch_over():
        for one in everyone:
            part = one.plan().part
            if isinstance(part, Slice):
                assert isinstance(one.ledger, MapLedger)
                used += one.ledger.indexes(part)
            elif part is not None:
                used += _samples(part.pieces)
        number = everyone[0].step
        weight = 100 + 250 * (number % 4)
        step(everyone, Weighing(generation=1, rank=number % 3, weight=weight).pack())
    assert len(used) == len(set(used)) == 200


def _samples(pieces: tuple[Piece, ...]) -> list[object]:
    return [(p.partition, index) for p in pieces for index in range(p.offset, p.offset + p.length)]


@pytest.mark.parametrize("ledger", LEDGERS)
def test_an_announcement_for_another_generation_means_nothing(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    step(everyone, Weighing(generation=7, rank=1, weight=500).pack())
    assert step(everyone) == {"w0": 7, "w1": 7, "w2": 6}


@pytest.mark.parametrize("ledger", LEDGERS)
def test_survivors_and_newcomers_use_the_same_weights(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    step(everyone, HALF)
    mended = draw_again(everyone[0].generation, number=2, dead=names(2), leader=w(0), token=1)
    for one in everyone[:2]:
        one.enter(mended)
    assert step(everyone[:2]) == {"w0": 13, "w1": 7}
    wider = draw_next(mended, number=3, joiners=[member(3)], leavers=(), token=1, request_id="r")
    for one in everyone[:2]:
        one.enter(wider)
    newcomer = Progress(me=w(3), generation=wider, ledger=ledger)
    newcomer.adopt(everyone[0].snapshot())
    three = [*everyone[:2], newcomer]
    step(three)
    assert step(three) == {"w0": 8, "w1": 4, "w3": 8}


@pytest.mark.parametrize("ledger", LEDGERS)
def test_the_weight_of_one_that_left_is_forgotten(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    step(everyone, HALF)
    smaller = draw_next(
        everyone[0].generation, number=2, joiners=(), leavers=names(1), token=1, request_id="r"
    )
    everyone[0].enter(smaller)
    assert everyone[0].ledger.weights == ()


def test_a_snapshot_from_before_there_were_weights_has_none() -> None:
    values = MAP.snapshot()
    del values["weights"]
    assert MAP.like(values) == MAP


@pytest.mark.parametrize("ledger", [MAP, SHARDS])
def test_what_is_foreseen_with_weights_is_what_comes(ledger: Ledger) -> None:
    everyone = crew(ledger, 0, 1, 2)
    step(everyone, HALF)
    forecast = Forecast(everyone[1], epochs=0)
    for _ in range(9):
        foreseen = forecast.next()
        assert foreseen is not None
        assert foreseen.part == everyone[1].plan().part
        step(everyone)
    assert forecast.next() is None
