"""Faults as leavers part: whoever is cut off then, or dies, one job never becomes two."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from edl.config import Settings
from tests.seeded.checkers import check
from tests.seeded.farewell import Farewell
from tests.seeded.host import Wait
from tests.seeded.plan import Ask, Fault, Plan
from tests.seeded.world import run

SEEDS = range(16)
# When the n-th worker knows that everybody has committed the step that some stayed for, and when
# it knows that all of those have let the others go on.
POINTS = [(point, nth) for point in ("done through", "done farewell") for nth in (1, 2, 3)]


def world(seed: int, kind: str, point: str, nth: int, move: str, founders: int) -> Plan:
    """Something befalls the worker that comes to this point, while some move."""
    count = 2 if move == "move" else 1
    asked = Ask(time=1.2, kind=move, count=count, twice=False, again=True, fates=("lives",) * count)
    return Plan(
        seed=seed,
        founders=founders,
        samples=120,
        batch=4,
        epochs=1,
        step_s=0.1,
        context_s=0.3,
        spread_s=0.1,
        asks=[asked],
        faults=[Fault(kind=kind, who="actor", time=0.0, span_s=8.0, point=point, nth=nth)],
        settings=Settings(
            silence_s=2.0,
            lease_s=1.0,
            reconnect_s=1.0,
            switch_allowance_s=0.3,
            switch_at_once=0,
            register_timeout_s=3.0,
            build_timeout_s=1.0,
        ),
    )


def faults(kind: str, move: str, founders: int) -> list[str]:
    found = []
    for seed in SEEDS:
        for point, nth in POINTS:
            wrong = check(run(world(seed, kind, point, nth, move, founders)))
            found += [f"seed {seed}, {point} {nth}: {wrong}"] if wrong else []
    return found


@pytest.mark.parametrize("kind", ["kill", "isolate", "cut off", "freeze"])
@pytest.mark.parametrize(("move", "founders"), [("move-all", 2), ("move-leader", 2), ("move", 3)])
def test_one_job_stays_one_whatever_happens_as_leavers_part(
    kind: str, move: str, founders: int
) -> None:
    found = faults(kind, move, founders)
    assert not found, "\n".join(found[:5])


def test_these_worlds_show_what_waiting_for_leavers_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the others went on at once, a leaver that is cut off would lead a second job."""

    def said(self: Farewell) -> Generator[Wait, None, None]:
        if self.news is not None:
            self.host.post(self.news)
        self.forget()
        yield from ()

    monkeypatch.setattr(Farewell, "said", said)
    assert any("beside" in fault for fault in faults("isolate", "move-all", 2))
