"""A lower bound on what jobs' completion times can add up to, whoever schedules them.

The cluster's capacity is replaced by a price: lambda(t) for each GPU and second. Whatever the
prices are, no schedule that keeps to the capacity C has a smaller sum of completion times than

    sum over jobs of min (end - submission + what its GPUs cost)  -  C * integral of lambda

where each job minimises by itself, as if it were alone: in such a schedule the GPUs in use cost
no more than C * integral of lambda. Good prices make the bound high; bad ones never make it wrong.

A job's own minimum is bounded from below once more. Let S(p) be its speed on the upper hull (from
nothing, which it may have at any time, to the most that it can use), and mu a worth of its work.
A schedule that ends at T and does the work W costs at least

    mu * W - integral up to T of h(mu, lambda),  h(mu, lambda) = max over p of mu S(p) - lambda p

for any mu, so the best mu of a grid will do. Within a bucket of constant price this is a straight
line in T, so the least over all T is found without a grid of ends.

What is relaxed: GPUs are divisible, resizes are free, machines do not exist, and everything is
known beforehand. What is kept: arrivals, speeds, each job's fewest and most GPUs, jobs that are not
elastic, and the seconds that a first start costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Alike", "Found", "Prices", "Request", "gather", "guessed", "raise_prices", "under"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COARSE, FINE = 1.05, 1.005  # from one mu of the grid to the next
AT_ONCE = 3_000_000  # numbers in a table that is made and thrown away
FIRST_WINDOW = 8
# Of the search for prices. They decide how soon it is near the best ones, never what is valid.
STEP = 0.3  # of a price's logarithm, at first
LATER = 20  # rounds after which steps become smaller
MEMORY, USUAL = 0.9, 0.99  # of the last rounds' excess, and of its size
LOWEST = 1e-3  # a price, over that of one job that has the whole cluster
TAIL = 1.15  # from one bucket after the last submission to the next


@dataclass(frozen=True, slots=True)
class Request:
    """One job: from `begin_s` on it may work, and its completion time counts from `submit_s`."""

    submit_s: float
    begin_s: float
    work: float
    hull: tuple[tuple[float, float], ...]  # GPUs and speed; from (0, 0) on, ever less steep


class Alike:
    """Jobs with one speed curve."""

    def __init__(self, hull: Sequence[tuple[float, float]], jobs: Sequence[Request]) -> None:
        points = np.array(hull, dtype=np.float64)
        # Nobody wants a GPU that makes it slower, whatever the price.
        points = points[: int(np.argmax(points[:, 1])) + 1]
        self.gpus, self.speed = points[:, 0], points[:, 1]
        slopes = np.diff(self.speed) / np.diff(self.gpus)
        # Floats are not exact; by so little h may be too small, and the bound too high.
        self.slopes = np.minimum.accumulate(slopes)
        assert np.all(slopes <= self.slopes * (1 + 1e-6)), "this is no upper hull"
        self.begin = np.array([job.begin_s for job in jobs])
        self.work = np.array([job.work for job in jobs])
        self.before = float(sum(job.begin_s - job.submit_s for job in jobs))

    def worths(self, prices: Floats, ratio: float) -> Floats:
        """The grid of mu: from the least to the most at which a second saved is worth its price.

        A job ends where h(mu, lambda) passes 1, so no other mu is ever the best one.
        """
        ends = [float(prices.min()), float(prices.max())]
        low, high = (float(np.min((1.0 + at * self.gpus[1:]) / self.speed[1:])) for at in ends)
        count = 2 + int(np.log(high / low) / np.log(ratio))
        # One more, so that an end before the work is done is never as good as a later one.
        return np.append(np.geomspace(low, high, count), high * ratio)


class Prices:
    """Buckets of time, and what a GPU costs a second in each. The last is long, and free."""

    def __init__(self, edges: Floats, price: Floats, capacity: int) -> None:
        assert len(edges) == len(price) + 1
        assert np.all(np.diff(edges) > 0)
        assert np.all(price >= 0)
        assert price[-1] == 0
        self.edges, self.price, self.capacity = edges, price, capacity
        self.width = np.diff(edges)

    def total(self) -> float:
        return float(self.capacity * (self.price * self.width).sum())

    def changed(self, price: Floats) -> Prices:
        return Prices(self.edges, price, self.capacity)


@dataclass(frozen=True, slots=True)
class Found:
    bound: float  # on the sum of all completion times
    used: Floats  # GPU seconds that jobs would have at these prices, by bucket


def gather(requests: Iterable[Request]) -> list[Alike]:
    kinds: dict[tuple[tuple[float, float], ...], list[Request]] = {}
    for request in requests:
        kinds.setdefault(request.hull, []).append(request)
    return [Alike(hull, jobs) for hull, jobs in kinds.items()]


def under(prices: Prices, kinds: Sequence[Alike], *, fine: bool = False) -> Found:
    """The bound at these prices."""
    used = np.zeros_like(prices.price)
    total = -prices.total()
    for kind in kinds:
        table = Table(prices, kind, FINE if fine else COARSE)
        total += kind.before + table.least(used)
    return Found(total, used)


class Table:
    """One kind of job at given prices, by mu (rows) and bucket (columns)."""

    def __init__(self, prices: Prices, kind: Alike, ratio: float) -> None:
        self.prices, self.kind = prices, kind
        self.mu = kind.worths(prices.price, ratio)
        relative = prices.price[None, :] / self.mu[:, None]
        # So many pieces of the hull are steeper than the price.
        taken = np.searchsorted(-kind.slopes, -relative.ravel(), side="left")
        taken = taken.reshape(relative.shape)
        self.gpus, self.speed = kind.gpus[taken], kind.speed[taken]
        self.saved = self.mu[:, None] * self.speed - prices.price * self.gpus  # h
        self.so_far = np.zeros((len(self.mu), len(prices.price) + 1))
        np.cumsum(self.saved * prices.width, axis=1, out=self.so_far[:, 1:])
        # Ends in a bucket: at its beginning, or at its end where each second there is worth it.
        self.over = np.maximum(0.0, self.saved - 1.0)
        self.ends = prices.edges[:-1] - self.so_far[:, :-1] - prices.width * self.over

    def least(self, used: Floats) -> float:
        """The sum of what each job comes to; what they use is added."""
        kind, edges = self.kind, self.prices.edges
        bucket = np.searchsorted(edges, kind.begin, side="right") - 1
        into = kind.begin - edges[bucket]
        own = self.mu * kind.work[:, None]
        # Whoever ends in the very bucket in which it began.
        rest = (self.prices.width[bucket] - into)[:, None]
        alone = own - self.over.T[bucket] * rest
        at = np.argmax(alone, axis=1)
        value = alone[np.arange(len(at)), at]
        end = bucket.copy()
        own += self.so_far.T[bucket] + into[:, None] * self.saved.T[bucket] - kind.begin[:, None]
        self._later(own, bucket, value, end, at)
        # Beyond the last bucket nobody could be better off.
        assert np.all(value <= edges[-1] - kind.begin), "the last bucket is too short"
        self._use(used, bucket, into, end, at)
        return float(value.sum())

    def _later(self, own: Floats, bucket: Ints, value: Floats, end: Ints, at: Ints) -> None:
        """Better ends in later buckets, as long as these begin before what is found already."""
        edges, count = self.prices.edges, len(self.prices.price)
        columns = np.ascontiguousarray(self.ends.T)
        begin, window = bucket + 1, FIRST_WINDOW
        who = np.flatnonzero(begin < count)
        while len(who):
            who = who[edges[begin[who]] - self.kind.begin[who] < value[who]]
            step = max(1, AT_ONCE // (window * len(self.mu)))
            for part in (who[n : n + step] for n in range(0, len(who), step)):
                where = np.minimum(begin[part][:, None] + np.arange(window), count - 1)
                choices = columns[where] + own[part][:, None, :]
                best = choices.max(axis=2)
                first = best.argmin(axis=1)
                rows = np.arange(len(part))
                found = best[rows, first]
                better = found < value[part]
                chosen = part[better]
                value[chosen] = found[better]
                end[chosen] = where[rows, first][better]
                at[chosen] = choices[rows, first].argmax(axis=1)[better]
            begin = begin + window
            who = who[begin[who] < count]
            window *= 2

    def _use(self, used: Floats, bucket: Ints, into: Floats, end: Ints, at: Ints) -> None:
        """GPU seconds by bucket, where each job takes what is best at its mu until its end.

        In its last bucket it takes as much as its work still needs.
        """
        width, work = self.prices.width, self.kind.work
        amount = self.gpus * width
        counts = np.zeros((len(self.mu), len(width) + 1))
        np.add.at(counts, (at, bucket), 1.0)
        np.add.at(counts, (at, end), -1.0)
        used += (np.cumsum(counts[:, :-1], axis=1) * amount).sum(axis=0)
        later = end > bucket
        np.add.at(used, bucket[later], -(self.gpus[at, bucket] * into)[later])
        done = np.zeros((len(self.mu), len(width) + 1))
        np.cumsum(self.speed * width, axis=1, out=done[:, 1:])
        did = done[at, end] - done[at, bucket] - into * self.speed[at, bucket]
        left = work - np.where(later, did, 0.0)
        speed = self.speed[at, end]
        needs = np.divide(left, speed, out=np.zeros_like(left), where=speed > 0)
        stays = np.clip(needs, 0.0, np.where(later, width[end], width[end] - into))
        np.add.at(used, end, stays * self.gpus[at, end])


# -- good prices -------------------------------------------------------------------------------


def guessed(
    requests: Sequence[Request], ends_s: Sequence[float], capacity: int, buckets: int
) -> Prices:
    """From a run in which the jobs ended so: half a second for each job there, shared by the GPUs.

    Equal buckets up to the last submission, then longer and longer ones up to the last end, then
    one in which everybody could run from its beginning to its end.
    """
    submits, ends = np.array([job.submit_s for job in requests]), np.array(ends_s)
    last, over = float(submits.max()), float(ends.max())
    width = max(last / buckets, 1e-3 * over)
    edges = [width * number for number in range(int(np.ceil(last / width)) + 1)]
    while edges[-1] < over:
        edges.append(edges[-1] + width)
        width *= TAIL
    most = max(job.begin_s - job.submit_s + job.work / job.hull[-1][1] for job in requests)
    longest = edges[-1] + 2.0 * max(most, over)
    at = np.array([*edges, longest])
    here = [np.maximum(0.0, at[:, None] - each).sum(axis=1) for each in (submits, ends)]
    jobs = np.maximum(0.0, np.diff(here[0] - here[1]) / np.diff(at))
    price = 0.5 * jobs / capacity
    price[-1] = 0.0
    return Prices(at, price, capacity)


def raise_prices(prices: Prices, kinds: Sequence[Alike], *, rounds: int) -> Prices:
    """Prices with a higher bound: dearer where jobs want more GPUs than there are, else cheaper.

    The bound's slope in a bucket's price is what jobs would use there beyond the capacity. Each
    step goes along its mean of the last rounds, over its usual size, so that every bucket moves
    alike. Steps shrink, and the mean over the later rounds is better than any of them.
    """
    capacity, width = prices.capacity, prices.width
    lowest = LOWEST / capacity
    at = np.log(np.maximum(prices.price[:-1], lowest))
    recent, usual = np.zeros_like(at), np.zeros_like(at)
    mean = np.exp(at)
    best, highest = prices, -np.inf
    for number in range(1, rounds + 1):
        here = prices.changed(np.append(np.exp(at), 0.0))
        found = under(here, kinds)
        if found.bound > highest:
            best, highest = here, found.bound
        excess = (found.used / width / capacity - 1.0)[:-1]
        recent = MEMORY * recent + (1 - MEMORY) * excess
        usual = USUAL * usual + (1 - USUAL) * excess**2
        towards = recent / (1 - MEMORY**number)
        size = np.sqrt(usual / (1 - USUAL**number)) + 1e-3
        at = at + STEP / np.sqrt(1 + number / LATER) * towards / size
        at = np.maximum(at, np.log(lowest))
        mean += (np.exp(at) - mean) * min(1.0, 4 / (number + 4))
    averaged = prices.changed(np.append(mean, 0.0))
    return averaged if under(averaged, kinds).bound > highest else best
