"""Traces like those of Microsoft's Philly cluster, for whoever has none at hand.

Only published statistics went in, never a job of anybody's: sizes (the 20th percentile 85 GPU
seconds, the 90th 58,330, and a long tail), numbers of GPUs, the rhythm of days and weeks, and users
who submit many like jobs at once. Each constant below is ours and says what it stands for. Holds:
the same arguments give the same trace on every machine. To that end only `Random.random` is drawn
from, and durations and times are rounded, so that the last digit of somebody's `exp` changes
nothing.

Also what a trace asks of a cluster, its offered load, and the same trace at another.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from math import exp, fsum, inf, isfinite, log
from random import Random
from statistics import NormalDist

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob

__all__ = ["generate", "offered_load", "with_load"]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S

# Share, median in GPU seconds, and sigma of the logarithm: jobs that fail or are tried out,
# everyday ones, and those that train for days. Together: 20 % below 85 GPU seconds, half below
# 1,340, 90 % below 58,300; the largest hundredth holds more than half of all GPU time.
KINDS = ((0.26, 64.0, 0.42), (0.6265, 2_000.0, 1.35), (0.1135, 290_000.0, 1.57))

GPUS = (1, 2, 4, 8, 16, 32, 64)
# Of jobs up to so many GPU seconds, the percentage that ask for 1, 2, 4, ... GPUs: the longer, the
# more.
SHARES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (1e4, (92, 2, 3, 2.8, 0.2)),
    (1e5, (78, 2, 8, 11, 0.8, 0.2)),
    (1e6, (38, 5, 25, 28.5, 2.5, 0.8, 0.2)),
    (1e7, (18, 4, 17, 53, 5.5, 2, 0.5)),
    (inf, (0, 1, 8, 76, 11, 3, 1)),
)
LONGEST_S = 60 * DAY_S  # larger jobs ask for more GPUs instead

# A burst: how likely one more job is, the mean gap between two, and how alike they are (the
# correlation of the logarithms of their sizes).
MORE = 0.6
GAP_S = 60.0
LIKE = 0.99
PATIENCE = 20  # jobs by which a kind may be off its share
JOBS_OF_A_USER = 350
FEWEST_USERS = 4

# Submissions in each hour of a day and on each day of a week, relative to the mean. Time 0 is the
# start of a Monday.
HOURS = (
    0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.9, 1.2, 1.4, 1.4,
    1.2, 1.3, 1.4, 1.5, 1.5, 1.4, 1.2, 1.1, 1.1, 1.0, 0.9, 0.9,
)  # fmt: skip
DAYS = (1.1, 1.15, 1.2, 1.2, 1.15, 0.6, 0.6)
WEEK = tuple(day * hour for day in DAYS for hour in HOURS)
WEEK_SO_FAR = (0.0, *accumulate(WEEK))

NORMAL = NormalDist()


def generate(
    jobs: int, *, capacity: int, load: float = 0.9, seed: int = 0, days: float | None = None
) -> Trace:
    """Jobs that together ask for `load` of `capacity` GPUs while they arrive, and none for more.

    The load decides over how long a time they are submitted. `days` says that instead, and the load
    is what comes of it. One job alone has no such time.
    """
    _refuse_unless(jobs >= 1, f"{jobs} jobs are asked for; at least 1 is needed")
    _refuse_unless(capacity >= 1, f"the capacity is {capacity} GPUs; at least 1 is needed")
    _check_load(load)
    if days is not None:
        _refuse_unless(isfinite(days) and days > 0, f"days is {days}; expected a number above 0")
    rng = Random(seed)
    bursts = _bursts(jobs, capacity, rng)
    asked = sum(gpus * duration_s for burst in bursts for gpus, duration_s, _ in burst)
    span_s = asked / (capacity * load) if days is None else days * DAY_S
    timed = [
        (submit_s, job)
        for burst in bursts
        for submit_s, job in zip(_moments(len(burst), span_s, rng), burst, strict=True)
    ]
    timed.sort(key=lambda each: each[0])
    times, drawn = _spread([submit_s for submit_s, _ in timed], span_s), [job for _, job in timed]
    made = tuple(
        TraceJob(id=str(n), submit_s=submit_s, gpus=gpus, duration_s=float(duration_s), user=user)
        for n, (submit_s, (gpus, duration_s, user)) in enumerate(zip(times, drawn, strict=True))
    )
    trace = Trace(name=f"generated-{jobs}-seed-{seed}", jobs=made)
    told = offered_load(trace, capacity)
    load_told = f"an offered load of {told:.3g}" if isfinite(told) else "all submitted at once"
    note = f"generated like Philly, seed {seed}: {load_told} on {capacity} GPUs"
    return replace(trace, notes=(note,))


def offered_load(trace: Trace, capacity: int) -> float:
    """GPU seconds asked for, over those that the cluster has from the first submission to the last.

    Infinite where all jobs come at once.
    """
    _refuse_unless(capacity >= 1, f"the capacity is {capacity} GPUs; at least 1 is needed")
    span_s = trace.jobs[-1].submit_s - trace.jobs[0].submit_s if trace.jobs else 0.0
    asked = fsum(job.gpus * job.duration_s for job in trace.jobs)
    return asked / (capacity * span_s) if span_s > 0 else inf


def with_load(trace: Trace, capacity: int, load: float) -> Trace:
    """The same jobs, their submissions stretched or squeezed until they offer this load."""
    _check_load(load)
    now = offered_load(trace, capacity)
    if now == inf:
        raise UsageError(
            f"trace {trace.name} cannot be stretched to a load of {load}: all its jobs come at "
            "once; expected at least two times of submission"
        )
    factor, first = now / load, trace.jobs[0].submit_s
    jobs = tuple(replace(job, submit_s=(job.submit_s - first) * factor) for job in trace.jobs)
    note = f"submissions stretched by {factor:.4g}, to a load of {load:g} on {capacity} GPUs"
    return replace(trace, jobs=jobs, notes=(*trace.notes, note))


def _refuse_unless(right: bool, what: str) -> None:
    if not right:
        raise UsageError(what)


def _check_load(load: float) -> None:
    _refuse_unless(isfinite(load) and load > 0, f"the load is {load}; expected a number above 0")


# -- which jobs --------------------------------------------------------------------------------

Drawn = tuple[int, int, str]  # GPUs, seconds, user


def _bursts(jobs: int, capacity: int, rng: Random) -> list[list[Drawn]]:
    users = max(FEWEST_USERS, jobs // JOBS_OF_A_USER)
    bursts: list[list[Drawn]] = []
    counts, done = [0] * len(KINDS), 0
    while done < jobs:
        size = 1
        while size < jobs - done and rng.random() < MORE:
            size += 1
        # A kind that has had less than its share is more likely to be next, so that the percentiles
        # hold in a trace of a thousand jobs too.
        owed = [
            max(0.0, share * (done + PATIENCE) - count)
            for (share, _, _), count in zip(KINDS, counts, strict=True)
        ]
        kind = _pick(owed, rng)
        bursts.append(_burst(kind, size, capacity, users, rng))
        counts[kind] += size
        done += size
    return bursts


def _burst(kind: int, size: int, capacity: int, users: int, rng: Random) -> list[Drawn]:
    """Jobs of one user on the same number of GPUs, nearly as large as each other."""
    # The k-th user submits about a k-th of what the first does.
    user = f"user{int((users + 1) ** rng.random())}"
    _, median, sigma = KINDS[kind]
    common, own = LIKE * _normal(rng), (1 - LIKE * LIKE) ** 0.5
    sizes = [median * exp(sigma * (common + own * _normal(rng))) for _ in range(size)]
    gpus = _gpus(sizes[0], capacity, rng)
    return [(gpus, round(min(max(1.0, each / gpus), LONGEST_S)), user) for each in sizes]


def _gpus(size: float, capacity: int, rng: Random) -> int:
    shares = next(shares for limit, shares in SHARES if size <= limit)
    gpus = GPUS[_pick(shares, rng)]
    while size / gpus > LONGEST_S and gpus < GPUS[-1]:
        gpus *= 2
    while gpus > capacity:
        gpus //= 2
    return gpus


def _pick(shares: Sequence[float], rng: Random) -> int:
    """A place, as often as its share says."""
    so_far = list(accumulate(shares))
    return min(bisect_right(so_far, rng.random() * so_far[-1]), len(so_far) - 1)


def _normal(rng: Random) -> float:
    # Zero, once in 2**53 draws, has no such value.
    return NORMAL.inv_cdf(rng.random() or 0.5)


# -- when --------------------------------------------------------------------------------------


def _moments(size: int, span_s: float, rng: Random) -> list[float]:
    """Of a burst that begins at any time of the span, at busy hours more often."""
    moment = _moment(rng.random() * _arrivals(span_s))
    moments = [moment]
    for _ in range(size - 1):
        moment -= GAP_S * log(1 - rng.random())
        moments.append(moment)
    # What would come after the end comes at the beginning.
    return [each % span_s for each in moments]


def _arrivals(until_s: float) -> float:
    """How many are to be expected by then, where one an hour is the mean."""
    weeks, hours = divmod(until_s / HOUR_S, len(WEEK))
    hour = min(int(hours), len(WEEK) - 1)
    return weeks * WEEK_SO_FAR[-1] + WEEK_SO_FAR[hour] + (hours - hour) * WEEK[hour]


def _moment(arrivals: float) -> float:
    """When so many are to be expected: the inverse."""
    weeks, rest = divmod(arrivals, WEEK_SO_FAR[-1])
    hour = min(bisect_right(WEEK_SO_FAR, rest) - 1, len(WEEK) - 1)
    return (weeks * len(WEEK) + hour + (rest - WEEK_SO_FAR[hour]) / WEEK[hour]) * HOUR_S


def _spread(times: list[float], span_s: float) -> list[float]:
    """From 0 to exactly the span. Rounded in between."""
    first, last = times[0], times[-1]
    if len(times) == 1:
        return [0.0]
    factor = span_s / (last - first) if last > first else 0.0
    inner = [min(round((each - first) * factor, 3), span_s) for each in times[:-1]]
    return [*inner, span_s]
