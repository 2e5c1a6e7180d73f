"""A replica that drifts is found in whole jobs: by all its peers, in the same round, in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edl.protocol.divergence import Divergence
from edl.protocol.topology import Generation
from edl.types import WorkerId
from tests.seeded.checkers import divergence_of
from tests.seeded.crashes import draw_crash_plan
from tests.seeded.history import History
from tests.seeded.migrations import draw_migrations
from tests.seeded.plan import Plan, draw_plan
from tests.seeded.trainer import DIGEST_STEPS
from tests.seeded.world import run

# The step after which one worker's model changes, and how many steps a digest may take to tell.
DRIFT = 3
WITHIN = DIGEST_STEPS + 2
SEEDS = 60


def drifting(draw: Callable[[int], Plan], seed: int) -> History:
    plan = draw(seed)
    plan.drifts = {DRIFT: seed}
    return run(plan)


def findings(history: History) -> list[tuple[Generation, Divergence]]:
    return [(each.generation, found) for each in history.rounds for found in divergence_of(each)]


def trained_on(history: History, worker: WorkerId, generation: int) -> bool:
    """Whether it and a peer did all the steps in which the drift must show, in one generation."""
    wanted = set(range(DRIFT, DRIFT + WITHIN + 1))
    did: dict[WorkerId, set[int]] = {}
    for commit in history.commits:
        if commit.generation == generation:
            did.setdefault(commit.worker, set()).add(commit.step)
    lasting = [who for who, steps in did.items() if wanted <= steps]
    return worker in lasting and len(lasting) > 1


@pytest.mark.parametrize("draw", [draw_plan, draw_migrations, draw_crash_plan])
def test_a_replica_that_drifts_is_found_within_the_digest_steps(
    draw: Callable[[int], Plan],
) -> None:
    lasted = 0
    for seed in range(SEEDS):
        history = drifting(draw, seed)
        for worker, generation, _ in history.drifted:
            if not trained_on(history, worker, generation):
                continue
            lasted += 1
            here = [found for where, found in findings(history) if where.number == generation]
            assert here, f"seed {seed}: nobody noticed that {worker} had drifted"
            first = here[0]
            assert DRIFT <= first.step <= DRIFT + WITHIN, f"seed {seed}: {first}"
            # With two workers nobody can say which of them is right: rank 0 is taken for it.
            assert worker in (*first.differing, first.reference), f"seed {seed}: {first}"
            size = len(history.generations[generation].workers())
            if size > 2:
                assert first.differing == (worker,), f"seed {seed}: {first}"
    assert lasted >= 5, "too few of these jobs trained on for long enough after the drift"
