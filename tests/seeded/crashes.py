"""Worlds in which workers die, freeze and lose each other, by seed."""

from __future__ import annotations

import random
from dataclasses import replace

from edl.config import Settings
from tests.seeded.plan import Fault, Plan, draw_ask, draw_job, with_real_habits

__all__ = ["POINTS", "draw_crash_plan"]

# Where a fault may strike, and up to the how many-th time.
POINTS = {
    "send Register": 4,
    "send Ready": 4,
    "send Prepare": 12,
    "send RendezvousEntry": 12,
    "send RendezvousTable": 12,
    "send GroupBuilt": 12,
    "send Founded": 8,
    "send Switched": 10,
    "send Leaving": 2,
    "send Handover": 1,
    "send HandoverTaken": 1,
    "send Hail": 5,
    "send Stuck": 4,
    "send Fell": 5,
    "send Out": 2,
    "send Undo": 3,
    "send Accepted": 2,
    "send Adjusted": 1,
    "swap leader": 3,
    "swap generation": 4,
    "swap state": 1,
    "announce": 4,
    "begin": 6,
    "break": 5,
    "done sync": 3,
    "done round": 60,
    "done reduce": 60,
    "done position": 8,
    "done state": 3,
    "done value": 6,
}
# A job that has not begun has nothing to lose: not too many of these.
_EARLY = ("send Register", "send Ready", "send RendezvousEntry", "swap leader", "done sync")
# Where an adjustment stands between two words.
_CHANGES = (
    "send Accepted", "send Prepare", "send GroupBuilt", "swap generation", "announce",
    "send Switched", "send Handover", "send Undo", "send Adjusted", "send Leaving",
)  # fmt: skip
_KINDS = (
    ("kill",) * 9
    + ("freeze",) * 3
    + (
        "lapse",
        "cut store",
        "cut leader",
        "cut pair",
        "isolate",
        "outage",
    )
)
_WHO = (
    "any", "any", "leader", "leader", "leader", "follower", "actor", "actor",
    "two", "leader and joiner",
)  # fmt: skip


def draw_crash_plan(seed: int) -> Plan:
    """A job of a few workers, some requests, and one to four faults."""
    rng = random.Random(f"crash/{seed}")
    plan = draw_job(rng, seed)
    plan.founders = rng.choice((1, 2, 2, 3, 3, 3, 4, 4, 5))
    plan.context_s = rng.choice((0.2, 0.5))
    plan.step_s = rng.choice((0.02, 0.1, 0.3))
    plan.delay_s = rng.choice((0.0005, 0.005, 0.03))
    plan.store_s = rng.choice((0.001, 0.01, 0.1))
    plan.reduces = rng.choice((0, 1, 2))
    plan.spread_s = rng.choice((0.0, 0.005, 0.05, 0.2))
    plan.launcher = rng.choice(("prompt", "prompt", "late", "never"))
    silence_s = rng.choice((2.0, 4.0))
    plan.settings = Settings(
        switch_allowance_s=rng.choice((0.01, 0.3)),
        switch_at_once=0,
        register_timeout_s=3.0,
        ready_timeout_s=6.0,
        build_timeout_s=rng.choice((1.0, 3.0)),
        lease_s=rng.choice((0.8, 2.5)),
        silence_s=silence_s,
        reconnect_s=rng.choice((0.6, 1.5)),
    )
    plan.epochs += rng.choice((0, 1, 3))
    steps = max(1, -(-plan.samples // plan.batch) * plan.epochs)
    length = plan.context_s + 0.6 + steps * (plan.step_s + plan.spread_s + 4 * plan.delay_s)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4))):
        plan.asks.append(draw_ask(rng, length))
    if rng.random() < 0.1:
        when = plan.context_s + length * rng.random()
        plan.asks.append(draw_ask(rng, length, kind="stop", time=when))
    if rng.random() < 0.15:
        plan.breaks = {rng.randrange(1, steps + 1): rng.randrange(8)}
    if rng.random() < 0.15:
        plan.wishes = {rng.randrange(steps): rng.randrange(8)}
    if rng.random() < 0.2:
        plan.pauses = {rng.randrange(steps): (rng.randrange(8), 2 + 6 * rng.random())}
    if rng.random() < 0.1:
        plan.losses, plan.losses_until = rng.randint(1, 3), length
    if rng.random() < 0.1:
        plan.group_falls = 0.1
    first = _fault(rng, length, silence_s)
    if plan.asks and rng.random() < 0.4:
        first = _at(rng, first, rng.choice(_CHANGES))
    plan.faults.append(first)
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3))):
        fault = _fault(rng, length, silence_s)
        if rng.random() < 0.6:
            # While the job is still busy with the one before.
            late = rng.choice((0.02, 0.3, 1.0, 3.0)) * rng.random()
            fault = replace(fault, point="struck", nth=len(plan.faults), time=late)
        plan.faults.append(fault)
    _cut_off(random.Random(f"cut off/{seed}"), plan, length)
    _part(random.Random(f"part/{seed}"), plan, length)
    fence = random.Random(f"fence/{seed}")
    if fence.random() < 0.05:
        plan.faults.append(Fault(kind="fence", who="any", time=0.5 + length * fence.random()))
    return with_real_habits(plan)


def _cut_off(rng: random.Random, plan: Plan, length: float) -> None:
    """A host that loses its network loses the others and the store at once.

    Whoever led there makes a generation of itself alone, and asks the store for it too late.
    """
    if rng.random() >= 0.15:
        return
    plan.founders = max(2, plan.founders)
    when = 1.0 + length * rng.random()
    span_s = plan.settings.silence_s * rng.choice((0.7, 1.5, 3.0)) * (0.5 + rng.random())
    who = rng.choice(("leader", "leader", "follower"))
    plan.faults.append(Fault(kind="cut off", who=who, time=when, span_s=span_s))


def _part(rng: random.Random, plan: Plan, length: float) -> None:
    """Two workers never reach each other again, by their groups alone or not at all.

    Nobody notices while their connections last, so something else breaks those.
    """
    if rng.random() >= 0.15:
        return
    plan.founders = max(2, plan.founders)
    when = rng.choice((0.1, 1.0, 1.0)) + length * rng.random()
    kind = rng.choice(("cut forever", "bar forever", "bar forever"))
    who = rng.choice(("any", "leader", "follower", "two"))
    plan.faults.append(Fault(kind=kind, who=who, time=when))


def _at(rng: random.Random, fault: Fault, point: str) -> Fault:
    late = rng.choice((0.0, 0.0, 0.01, 0.1)) * rng.random()
    return replace(fault, point=point, nth=rng.randint(1, POINTS[point]), time=late)


def _fault(rng: random.Random, length: float, silence_s: float) -> Fault:
    kind = rng.choice(_KINDS)
    who = rng.choice(_WHO)
    if kind == "kill" and rng.random() < 0.12:
        who = rng.choice(("all but one", "all but one", "all"))
    span_s = silence_s * rng.choice((0.2, 0.7, 1.5, 3.0)) * (0.5 + rng.random())
    if rng.random() < 0.4:
        when = rng.choice((0.3, 1.2, 1.2, 1.2)) + length * rng.random()
        return Fault(kind=kind, who=who, time=when, span_s=span_s)
    point = rng.choice(sorted(POINTS))
    if point in _EARLY and rng.random() < 0.7:
        point = rng.choice(("done round", "done reduce", "done value", "swap generation"))
    return _at(rng, Fault(kind=kind, who=who, time=0.0, span_s=span_s), point)
