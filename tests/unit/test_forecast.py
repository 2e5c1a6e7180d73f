"""What is foreseen is what comes, also over a change of membership that was announced."""

from __future__ import annotations

import pytest

from edl.protocol.forecast import Forecast
from edl.protocol.ledger import MapLedger
from edl.protocol.progress import Ledger, Progress
from edl.protocol.shards import ShardLedger
from edl.protocol.topology import Generation, draw_next
from tests.seeded.cast import first, member, names, record, w

MAP = MapLedger(samples=21, batch=4, seed=0, shuffle=True, drop_last=False, epochs=2)
SHARDS = ShardLedger.opened((5, 7, 2, 7), batch=4, seed=0, epochs=2)


def next_generation(*, joins: tuple[int, ...], leaves: tuple[int, ...]) -> Generation:
    return draw_next(
        first(0, 1),
        number=2,
        joiners=[member(i) for i in joins],
        leavers=names(*leaves),
        token=1,
        request_id="r",
    )


def train(progress: Progress, others: list[Progress]) -> list[object]:
    """Every part that this worker has, until the job is over or it has left."""
    parts: list[object] = []
    while True:
        everyone = [progress, *others]
        for one in everyone:
            if one.ledger.epoch_over():
                one.close()
        if progress.ledger.job_over():
            return parts
        parts.append(progress.plan().part)
        by_name = {one.me: one.plan().count for one in everyone}
        said = (2, 4, 1) if progress.generation.number == 1 and progress.step >= 2 else (0, 0, 0)
        records = [
            record(step=progress.step, samples=by_name.get(worker, 0), says=said)
            for worker in progress.generation.workers()
        ]
        verdict = None
        for one in everyone:
            one.commit(one.judge(records))
            verdict = one.verdict(records)
        assert verdict is not None
        if verdict.switch_to is not None:
            for one in [one for one in everyone if one.me in verdict.switch_to]:
                one.enter(verdict.switch_to)
            others = [one for one in others if one.me in verdict.switch_to]
            new = list(verdict.switch_to.newcomers)
            for worker in new:
                joined = Progress(me=worker, generation=verdict.switch_to, ledger=MAP)
                joined.ledger = joined._settled = progress.ledger
                joined.step = progress.step
                others.append(joined)
            if progress.me not in verdict.switch_to:
                return parts


@pytest.mark.parametrize("ledger", [MAP, SHARDS], ids=["map", "shards"])
@pytest.mark.parametrize(
    ("me", "joins", "leaves"), [(0, (2,), ()), (0, (), (1,)), (1, (), (1,)), (0, (2, 3), (1,))]
)
def test_an_announced_change_is_foreseen(
    ledger: Ledger, me: int, joins: tuple[int, ...], leaves: tuple[int, ...]
) -> None:
    target = next_generation(joins=joins, leaves=leaves)
    two = [Progress(me=w(i), generation=first(0, 1), ledger=ledger) for i in (0, 1)]
    for one in two:
        one.ledger = one._settled = one.ledger.entered(names(0, 1))
        one.prepare(target)
    mine, other = two[me], two[1 - me]
    forecast = Forecast(mine, epochs=0)
    # Two steps are asked for before anything is announced, the rest after.
    seen = [forecast.next(), forecast.next()]
    seen_later = Forecast(mine, epochs=0)
    mine.verdict([record(says=(2, 4, 1)), record()])
    assert mine.announced is not None
    whole = []
    while (step := seen_later.next()) is not None:
        whole.append(step)
    mine.announced = None
    parts = train(mine, [other])
    assert [step.part for step in whole] == parts
    assert whole[:2] == seen
    assert [step.step for step in whole] == list(range(len(parts)))


def test_without_an_end_it_goes_on_into_the_next_epoch_and_stops_where_the_script_does() -> None:
    endless = MapLedger(samples=4, batch=4, seed=0, shuffle=False, drop_last=False, epochs=0)
    progress = Progress(me=w(0), generation=first(0, 1), ledger=endless)
    for epochs, count in ((3, 3), (0, 9)):
        forecast = Forecast(progress, epochs=epochs)
        seen = [forecast.next() for _ in range(9)]
        assert sum(step is not None for step in seen) == count


def test_one_without_a_share_stands_in() -> None:
    progress = Progress(me=w(1), generation=first(0, 1), ledger=MAP)
    seen = []
    forecast = Forecast(progress, epochs=0)
    while (step := forecast.next()) is not None:
        seen.append(step)
    # 21 samples: five steps of 4 and one of a single sample, which goes to rank 0 alone.
    assert [step.part is None for step in seen[:6]] == [False] * 5 + [True]
