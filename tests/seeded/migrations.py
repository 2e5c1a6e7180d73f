"""The same worlds, with migrations among what is asked.

Drawn beside the plan and not within it, so that the seeds of other worlds tell the same stories.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.seeded.crashes import draw_crash_plan
from tests.seeded.plan import Ask, Plan, draw_ask, draw_plan

__all__ = ["draw_crash_migrations", "draw_migrations", "with_migrations"]

KINDS = ("move", "move-leader", "move-all", "move-all")


def draw_migrations(seed: int) -> Plan:
    return with_migrations(draw_plan(seed))


def draw_crash_migrations(seed: int) -> Plan:
    return with_migrations(draw_crash_plan(seed))


def with_migrations(plan: Plan) -> Plan:
    """This world, in which workers are moved as well."""
    rng = random.Random(f"migrations/{plan.seed}")
    asks = [_moved(rng, ask) if rng.random() < 0.7 else ask for ask in plan.asks]
    # Newcomers need their time.
    plan.epochs += rng.choice((2, 4, 8))
    steps = max(1, -(-plan.samples // plan.batch) * plan.epochs)
    length = plan.context_s + steps * (plan.step_s + 4 * plan.delay_s)
    for _ in range(rng.choice((1, 2, 3))):
        when = plan.context_s + 0.5 + length * 0.7 * rng.random()
        asks.append(draw_ask(rng, length, kind=rng.choice(KINDS), time=when))
    return replace(plan, asks=asks)


def _moved(rng: random.Random, ask: Ask) -> Ask:
    if ask.kind in ("stop", "bad"):
        return ask
    fates = (*ask.fates, *("lives",) * ask.count)[: ask.count]
    return replace(ask, kind=rng.choice(KINDS), fates=fates)
