"""The same worlds, with requesters that give up.

Drawn beside the plan and not within it, so that the seeds of other worlds tell the same stories.
"""

from __future__ import annotations

import random
from dataclasses import replace

from tests.seeded.plan import Plan

__all__ = ["with_withdrawals"]


def with_withdrawals(plan: Plan) -> Plan:
    """This world, in which most requests are taken back some time after they were accepted."""
    rng = random.Random(f"withdrawals/{plan.seed}")
    asks = [
        replace(ask, withdrawn_s=rng.choice((0.01, 0.1, 0.5, 1.0, 2.0)) * (0.5 + rng.random()))
        if rng.random() < 0.8
        else ask
        for ask in plan.asks
    ]
    return replace(plan, asks=asks)
