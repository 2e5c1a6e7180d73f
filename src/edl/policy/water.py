"""Water filling kept up to date: what everybody would pay, and where the water stands.

Each job wants GPUs in pieces: the first makes it run at all, each further one speeds it up by less.
Pieces are filed by the logarithm of the price at which they just pay, in bins of equal width. C
GPUs go to the bins from the top until they are given away. Finding that anew would mean sorting
every piece at every event. Here a job that comes, goes or changes its mind touches its own pieces
only, and the water's surface moves by a few bins.

Owns: the bins, and for each job where its pieces lie. Holds: `above` is the sum of all bins over
`surface`, it is at most C, and with the surface's own bin it would be more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

from edl.policy.throughput import Curve
from edl.policy.view import Job

__all__ = ["AT_ANY_PRICE", "LEVELS", "Shape", "Water", "price_of"]

WIDTH = 0.05  # of a bin, in the logarithm of a price
# Prices between these have bins of their own, those beyond share the last.
LOW, HIGH = -20.0, 10.0
BINS = round((HIGH - LOW) / WIDTH)
LEVELS = 20  # between yielding most and not at all
AT_ANY_PRICE = LEVELS + 1  # the level of those who are to have what their users asked for
MANY = 1 << 20  # more pieces than any job has
# Who can use what is left over is looked for among so many bins and so many pieces at the least.
SPILL_BINS, SPILL_PIECES = 12, 256


def price_of(at: float) -> float:
    """In the middle of a bin, for each GPU and second, in seconds of a job's time."""
    return exp(LOW + WIDTH * at)


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of job's pieces: how many GPUs it has with each, GPUs in each, and in which bin each
    lies for a job of each level, the last being AT_ANY_PRICE; `kept` are the bins where the job
    runs already."""

    ends: tuple[int, ...]
    gpus: tuple[int, ...]
    bins: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(
        curve: Curve,
        *,
        floor: int,
        most: int,
        hold: float,
        keep: float,
        sure: float = 1.0,
        asked: int = 0,
    ) -> Shape:
        """Level 0 thinks that the price falls to `hold` of itself, the last that it stays, if it is
        `sure`. Whoever runs pays e^`keep` times as much to go on. `asked` is what its user asked
        for."""
        pieces = [piece for piece in curve.hull(0, floor, most) if piece.slope > 0]
        ends = tuple(piece.end for piece in pieces)
        slopes = [piece.slope for piece in pieces]
        speeds = [curve.worth[end] for end in ends]
        bins, kept, ahead = [], [], round(keep / WIDTH)
        for level in range(LEVELS + 1):
            later = hold + (1.0 - hold) * min(level / LEVELS, sure)
            mine = tuple(_bin(price) for price in _just_paid(ends, slopes, speeds, later))
            bins.append(mine)
            kept.append((min(BINS - 1, mine[0] + ahead), *mine[1:]))
        sought = [BINS - 1 for piece in pieces if piece.begin < asked]
        late = (*sought, *bins[LEVELS][len(sought) :])
        bins.append(late)
        kept.append(late)
        gpus = tuple(piece.end - piece.begin for piece in pieces)
        return Shape(ends, gpus, tuple(bins), tuple(kept))


def _just_paid(
    ends: Sequence[int], slopes: Sequence[float], speeds: Sequence[float], later: float
) -> list[float]:
    """The price up to which each piece is worth having, if the price will be `later` times as high
    when the job ends.

    A unit of the job's work saves mu = min over p of (1 + later * price * p) / speed(p): what it
    would cost then, the job's own second and its GPUs. A piece pays while mu * slope >= price, so
    up to slope / max over p of (speed(p) - later * slope * p). On a hull the best p only grows as
    slopes fall.
    """
    found, best = [], 0
    for slope in slopes:
        cost = later * slope
        most = speeds[best] - cost * ends[best]
        while best + 1 < len(ends) and speeds[best + 1] - cost * ends[best + 1] >= most:
            best += 1
            most = speeds[best] - cost * ends[best]
        found.append(slope / most if most > 1e-12 * speeds[best] else inf)
    return found


def _bin(price: float) -> int:
    if price == inf:
        return BINS - 1
    return min(BINS - 1, max(0, round((log(price) - LOW) / WIDTH)))


class Wish:
    """One job's pieces, and the bins in which they lie."""

    __slots__ = ("bins", "job", "shape")

    def __init__(self, job: Job, shape: Shape) -> None:
        self.job = job
        self.shape = shape
        self.bins: tuple[int, ...] = ()

    def granted(self, surface: int) -> int:
        """GPUs from pieces that lie above the surface."""
        found = 0
        for end, where in zip(self.shape.ends, self.bins, strict=True):
            if where <= surface:
                break
            found = end
        return found


class Water:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.demand = [0] * BINS
        self.pieces: list[set[int]] = [set() for _ in range(BINS)]  # key * MANY + index
        self.wishes: dict[int, Wish] = {}
        self.surface = BINS - 1
        self.above = 0

    def place(self, job: Job, shape: Shape, level: int, *, kept: bool) -> None:
        """File a job's pieces, or file them anew at another level."""
        bins = (shape.kept if kept else shape.bins)[level]
        wish = self.wishes.get(job.key)
        if wish is None:
            wish = self.wishes[job.key] = Wish(job, shape)
        elif wish.bins is bins:
            return
        else:
            self._take_out(wish)
        # This is where a simulation spends its time, so nothing is looked up twice.
        demand, pieces, surface, above = self.demand, self.pieces, self.surface, self.above
        piece = job.key * MANY
        for gpus, where in zip(shape.gpus, bins, strict=True):
            demand[where] += gpus
            pieces[where].add(piece)
            if where > surface:
                above += gpus
            piece += 1
        wish.bins, self.above = bins, above

    def remove(self, job: Job) -> None:
        wish = self.wishes.pop(job.key, None)
        if wish is not None:
            self._take_out(wish)

    def _take_out(self, wish: Wish) -> None:
        demand, pieces, surface, above = self.demand, self.pieces, self.surface, self.above
        piece = wish.job.key * MANY
        for gpus, where in zip(wish.shape.gpus, wish.bins, strict=True):
            demand[where] -= gpus
            pieces[where].remove(piece)
            if where > surface:
                above -= gpus
            piece += 1
        self.above = above

    def owners(self, at: int) -> set[int]:
        """Keys of those who have a piece in this bin."""
        return {piece // MANY for piece in self.pieces[at]}

    def settle(self) -> None:
        """Move the surface to where it belongs."""
        demand = self.demand
        surface, above = self.surface, self.above
        while above > self.capacity:
            surface += 1
            above -= demand[surface]
        while surface > 0 and above + demand[surface] <= self.capacity:
            above += demand[surface]
            surface -= 1
        self.surface, self.above = surface, above

    def spill(self) -> dict[int, int]:
        """What is left over goes to the surface's own bin, then below.

        A piece is given whole or not at all; of equals, whoever has it keeps it. Returns the GPUs
        of those who get something this way, with all that they have. On a small cluster everybody
        is looked at, so that no GPU is idle that somebody could use.
        """
        left = self.capacity - self.above
        given: dict[int, int] = {}
        at, wishes = self.surface, self.wishes
        bins, pieces = SPILL_BINS, SPILL_PIECES
        while left > 0 and at >= 0 and (bins > 0 or pieces > 0):
            if self.pieces[at]:
                bins -= 1
                pieces -= len(self.pieces[at])
                for piece in sorted(self.pieces[at], key=self._precedence):
                    key, index = divmod(piece, MANY)
                    wish = wishes[key]
                    ends = wish.shape.ends
                    have = given[key] if key in given else wish.granted(self.surface)
                    begin = ends[index - 1] if index else 0
                    if have == begin and ends[index] - begin <= left:
                        given[key] = ends[index]
                        left -= ends[index] - begin
                        if not left:
                            break
            at -= 1
        return given

    def _precedence(self, piece: int) -> tuple[int, bool, int]:
        key, index = divmod(piece, MANY)
        wish = self.wishes[key]
        return index, wish.job.held < wish.shape.ends[index], key
