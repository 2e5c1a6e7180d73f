"""What a seed stands for: the job, its scripts' habits, what is asked of it, what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from edl.config import Settings

__all__ = [
    "FATES",
    "Ask",
    "Fault",
    "Plan",
    "draw_ask",
    "draw_big_plan",
    "draw_job",
    "draw_plan",
    "with_real_habits",
]

FATES = (
    "dies before it registers",
    "never registers",
    "never becomes ready",
    "dies registered",
    "dies building",
    "dies announced",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: when, what, and how the requester behaves."""

    time: float
    kind: str  # out, in, in-leader, in-named, in-slot, move, move-leader, move-all, stop, bad
    count: int
    twice: bool  # a second requester asks under the same id
    again: bool  # it asks once more after the final answer
    fates: tuple[str, ...]
    withdrawn_s: float = 0.0  # so long after it is accepted the requester gives up; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong, at a time or so long after the n-th time that something happens."""

    # kill, freeze, lapse, cut store, cut leader, cut pair, isolate, cut off, outage; and without an
    # end: fence, cut forever (a pair), bar forever (a pair's groups, but not its messages)
    kind: str
    who: str  # any, leader, follower, actor, two, all but one, all, leader and joiner
    time: float
    span_s: float = 0.0
    point: str = ""
    nth: int = 1


@dataclass(slots=True, kw_only=True)
class Plan:
    """One world."""

    seed: int
    founders: int
    samples: int
    batch: int
    epochs: int
    shuffle: bool = True
    drop_last: bool = False
    shards: tuple[int, ...] = ()  # the partitions' lengths, if the data has partitions
    reduces: int = 0
    step_s: float = 0.1
    context_s: float = 1.0
    delay_s: float = 0.002
    store_s: float = 0.004
    lag_s: float = 0.0005
    lag_spikes: float = 0.0
    slow_messages: float = 0.0
    slow_store: float = 0.0
    # Odds of each store call: the request is lost, the answer is lost after the store carried the
    # swap out, the answer is late; and of each notification: it comes once more.
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    late_answers: float = 0.0
    repeated_notices: float = 0.0
    store_timeout_s: float = 0.2  # after this long without an answer a courier asks again
    losses: int = 0
    losses_until: float = 0.0
    snaps: int = 0  # so many connections are lost with the very message that was sent over them
    lapses: tuple[float, ...] = ()
    lapse_at_handover: bool = False
    group_falls: float = 0.0
    key_makers: int = 0  # 0: every member makes a key
    big: bool = False
    asks: list[Ask] = field(default_factory=list)
    stop_after_accept_s: float = 0.0  # 0: nobody stops the job because something was accepted
    breaks: dict[int, int] = field(default_factory=dict)  # step -> who (modulo the size)
    quits: dict[int, int] = field(default_factory=dict)
    wishes: dict[int, int] = field(default_factory=dict)
    pauses: dict[int, tuple[int, float]] = field(default_factory=dict)
    drifts: dict[int, int] = field(default_factory=dict)  # whose model changes after which step
    faults: list[Fault] = field(default_factory=list)
    launcher: str = "prompt"  # it tells of a death promptly, late, or never
    slow: dict[str, float] = field(default_factory=dict)  # so many times slower, by worker
    spread_s: float = 0.0  # how far apart members complete one exchange
    # Entered is told with the commit after the first one, as `runtime/teller.py` does, which
    # measures the step after the switch too.
    entered_late: bool = False
    settings: Settings = field(
        default_factory=lambda: Settings(
            switch_allowance_s=0.3,
            switch_at_once=0,
            register_timeout_s=6.0,
            ready_timeout_s=12.0,
            build_timeout_s=3.0,
        )
    )


def draw_job(rng: random.Random, seed: int) -> Plan:
    """The data and the speed of a job."""
    batch = rng.choice((1, 2, 3, 4, 5, 7, 8, 12, 16, 24))
    shape = rng.random()
    if shape < 0.12:
        samples, epochs = rng.randint(1, batch), rng.randint(3, 9)  # one step an epoch
    elif shape < 0.3:
        samples, epochs = batch * rng.randint(2, 8), rng.randint(1, 4)
    else:
        samples, epochs = rng.randint(batch, batch * 14), rng.randint(1, 4)
    drop_last = samples >= batch and rng.random() < 0.15
    plan = Plan(
        seed=seed,
        founders=rng.choice((1, 1, 2, 2, 3, 3, 4, 5)),
        samples=samples,
        batch=batch,
        epochs=epochs,
        shuffle=rng.random() < 0.7,
        drop_last=drop_last,
        reduces=rng.choice((0, 0, 0, 1, 2)),
        step_s=rng.choice((0.005, 0.05, 0.2, 0.2, 0.6, 0.6, 1.5)),
        context_s=rng.choice((0.2, 1.0, 3.0)),
        delay_s=rng.choice((0.0005, 0.005, 0.03, 0.1)),
        store_s=rng.choice((0.001, 0.01, 0.1)),
        lag_s=rng.choice((0.0002, 0.002, 0.02)),
        key_makers=rng.choice((0, 0, 1)),
    )
    if not drop_last and rng.random() < 0.25:
        plan.shards = _partitions(rng, samples)
    low = rng.choice((1, 1, 1, 2))
    plan.settings = Settings(
        switch_allowance_s=rng.choice((0.01, 0.3, 0.5)),
        switch_at_once=0,
        register_timeout_s=rng.choice((3.0, 6.0)),
        ready_timeout_s=rng.choice((5.0, 12.0)),
        build_timeout_s=rng.choice((1.0, 3.0)),
        min_workers=min(low, plan.founders),
        max_workers=rng.choice((0, 0, 0, plan.founders + 2)),
    )
    return plan


def _partitions(rng: random.Random, samples: int) -> tuple[int, ...]:
    lengths: list[int] = []
    while samples:
        lengths.append(rng.randint(1, min(samples, 12)))
        samples -= lengths[-1]
    return tuple(lengths)


def _hurry(rng: random.Random, plan: Plan) -> None:
    """Steps as short as messages are slow, so that decisions cross each other on the way."""
    plan.step_s = rng.choice((0.02, 0.05, 0.1, 0.2))
    plan.delay_s = rng.choice((0.02, 0.05, 0.1))
    plan.store_s = rng.choice((0.01, 0.1))
    plan.lag_s = rng.choice((0.0005, 0.005))
    plan.lag_spikes = rng.choice((0.0, 0.1, 0.2))
    plan.context_s = 0.2
    plan.epochs += rng.choice((0, 2, 4))
    if rng.random() < 0.3:
        plan.stop_after_accept_s = 0.1 + rng.random() * rng.choice((0.3, 1.0))
    plan.settings = replace(plan.settings, switch_allowance_s=0.01)


def draw_plan(seed: int) -> Plan:
    """The world of one seed."""
    rng = random.Random(f"plan/{seed}")
    plan = draw_job(rng, seed)
    hurry = rng.random() < 0.4
    if hurry:
        _hurry(rng, plan)
    steps = max(1, -(-plan.samples // plan.batch) * plan.epochs)
    length = plan.context_s + steps * (plan.step_s + 4 * plan.delay_s)
    for _ in range(rng.choice((0, 1, 2, 2, 3, 3, 4, 6))):
        plan.asks.append(draw_ask(rng, length))
    if rng.random() < (0.3 if hurry else 0.15):
        when = plan.context_s + length * rng.random()
        plan.asks.append(draw_ask(rng, length, kind="stop", time=when))
    if rng.random() < 0.2:
        plan.breaks = {rng.randrange(1, steps + 1): rng.randrange(8) for _ in range(2)}
    if rng.random() < 0.06 and not plan.reduces:
        plan.quits = {rng.randrange(1, steps + 1): rng.randrange(8)}
    if rng.random() < 0.25:
        plan.wishes = {rng.randrange(steps): rng.randrange(8) for _ in range(rng.choice((1, 1, 3)))}
    if rng.random() < 0.25:
        plan.pauses = {
            rng.randrange(steps): (rng.randrange(8), 2 + 10 * rng.random()) for _ in range(2)
        }
    trouble = rng.random()
    if trouble < 0.35:
        plan.losses, plan.losses_until = rng.randint(1, 8), length * 1.2
    elif trouble < 0.42:
        plan.lapses = tuple(length * rng.random() for _ in range(rng.choice((1, 2))))
        plan.lapse_at_handover = rng.random() < 0.5
    elif trouble < 0.6:
        plan.snaps = rng.randint(1, 4)
    if not hurry and rng.random() < 0.2:
        plan.lag_spikes = 0.05
    if rng.random() < 0.2:
        plan.slow_messages = 0.05
    if (plan.losses or plan.snaps) and plan.lag_spikes:
        # A founder that lost its connection must have time to come back, however late it notices.
        plan.settings = replace(plan.settings, register_timeout_s=12.0)
    if rng.random() < (0.2 if hurry else 0.1):
        plan.slow_store = rng.choice((0.1, 0.3))
    if rng.random() < 0.1:
        plan.group_falls = 0.1
    return with_real_habits(plan)


def with_real_habits(plan: Plan) -> Plan:
    """This world, with a store as unreliable and a trainer as late as its seed says.

    Drawn from generators of their own, so that the rest of a plan does not depend on them.
    """
    rng = random.Random(f"store/{plan.seed}")
    plan.entered_late = random.Random(f"teller/{plan.seed}").random() < 0.6
    if rng.random() < 0.3:
        return plan
    odds = (0.0, 0.05, 0.15, 0.4)
    return replace(
        plan,
        lost_requests=rng.choice(odds),
        lost_answers=rng.choice(odds),
        late_answers=rng.choice(odds),
        repeated_notices=rng.choice(odds),
        # A connection that was reset is noticed at once, a silent one after the client's timeout.
        store_timeout_s=rng.choice((0.05, 0.2, 0.2, 1.0)),
    )


def draw_ask(
    rng: random.Random, length: float, *, kind: str = "", time: float | None = None
) -> Ask:
    kinds = ("out", "out", "out", "in", "in", "in-leader", "in-named", "in-slot", "bad")
    count = rng.choice((1, 1, 1, 2, 2, 3))
    doomed = rng.random() < 0.35
    fates = tuple(
        rng.choice(FATES) if doomed and rng.random() < 0.6 else "lives" for _ in range(count)
    )
    return Ask(
        time=length * 1.1 * rng.random() if time is None else time,
        kind=kind or rng.choice(kinds),
        count=count,
        twice=rng.random() < 0.15,
        again=rng.random() < 0.4,
        fates=fates,
    )


def draw_big_plan(seed: int, workers: int) -> Plan:
    """A job of a thousand workers: few steps, one grows it and one shrinks it."""
    rng = random.Random(f"big/{seed}")
    plan = Plan(
        seed=seed,
        founders=workers,
        samples=workers * 5 + rng.randrange(workers),
        batch=workers + rng.randrange(-20, 20),
        epochs=1,
        step_s=2.0,
        context_s=0.3,
        big=True,
        settings=Settings(switch_allowance_s=0.3, switch_at_once=0),
    )
    leaders_too = rng.choice(("in", "in-leader"))
    plan.asks = [
        Ask(time=0.9, kind="out", count=3, twice=False, again=False, fates=("lives",) * 3),
        Ask(time=2.0, kind=leaders_too, count=2, twice=True, again=True, fates=()),
    ]
    return with_real_habits(plan)
