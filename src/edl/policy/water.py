"""Water filling kept up to date: what everybody wants, by its worth, and where the water stands.

Each job wants GPUs in pieces: the first makes it run at all, each further one speeds it up by less.
Pieces are filed by the logarithm of what they are worth, in bins of equal width. The best use of C
GPUs is to grant the bins from the top until C are given away. Finding that anew would mean sorting
every piece at every event. Here a job that comes, goes or changes its weight touches its own pieces
only, and the water's surface moves by a few bins.

Owns: the bins, and for each job where its pieces lie. Holds: `above` is the sum of all bins over
`surface`, it is at most C, and with the surface's own bin it would be more.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from edl.policy.throughput import Curve
from edl.policy.view import Job

__all__ = ["Shape", "Water"]

# Logarithms of worth from -40 to 10 have bins of their own.
LOW, HIGH = -40.0, 10.0
MANY = 1 << 20  # more pieces than any job has


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of job's pieces: how many GPUs it has with each, and (GPUs, bin at weight 1)."""

    ends: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    least: int  # the first piece lies in this bin or above, however large the job

    @staticmethod
    def of(
        curve: Curve,
        *,
        floor: int,
        asked: int,
        most: int,
        width: float,
        first: float,
        own: float,
        turn: float,
    ) -> Shape:
        """The first piece is worth its efficiency, others what they add relative to what is there.

        `first` and `own` are added to the logarithm of the first piece's worth, and to that of
        those up to what the user asked for. A job that does not run loses a second each second, so
        its first piece is never worth less than that for each of its GPUs, times e^`turn`.
        """
        ends, steps = [], []
        for index, piece in enumerate(curve.hull(0, floor, most)):
            if piece.slope <= 0:
                break
            worth = log(piece.slope)
            if index == 0:
                worth += first
            else:
                worth -= log(curve.worth[piece.begin])
                if piece.end <= asked:
                    worth += own
            ends.append(piece.end)
            steps.append((piece.end - piece.begin, round(worth / width)))
        return Shape(tuple(ends), tuple(steps), round((turn - log(ends[0])) / width))


class Wish:
    """One job's pieces. `first` and `more` are what its weight adds to their bins, and `ahead` what
    the first one, and it alone, lies above that."""

    __slots__ = ("ahead", "bins", "first", "job", "more", "shape")

    def __init__(self, job: Job, shape: Shape) -> None:
        self.job = job
        self.shape = shape
        self.first = 0
        self.more = 0
        self.ahead = 0
        self.bins: list[int] = []

    def granted(self, surface: int) -> int:
        """GPUs from pieces that lie above the surface."""
        found = 0
        for end, where in zip(self.shape.ends, self.bins, strict=True):
            if where <= surface:
                break
            found = end
        return found


class Water:
    def __init__(self, capacity: int, width: float) -> None:
        self.capacity = capacity
        self.base = int(LOW / width)
        count = int((HIGH - LOW) / width)
        self.demand = [0] * count
        self.pieces: list[set[int]] = [set() for _ in range(count)]  # key * MANY + index
        self.wishes: dict[int, Wish] = {}
        self.surface = count - 1
        self.above = 0

    def place(self, job: Job, shape: Shape, first: int, more: int, ahead: int = 0) -> None:
        """File a job's pieces, or file them anew with another weight."""
        wish = self.wishes.get(job.key)
        if wish is None:
            wish = self.wishes[job.key] = Wish(job, shape)
        elif (wish.first, wish.more, wish.ahead) == (first, more, ahead):
            return
        else:
            self._take_out(wish)
        wish.first, wish.more, wish.ahead = first, more, ahead
        # This is where a simulation spends its time, so nothing is looked up twice.
        demand, pieces, surface, above = self.demand, self.pieces, self.surface, self.above
        highest = len(demand) - 1 - ahead
        bins, add, piece = [], first - self.base, job.key * MANY
        least = shape.least - self.base
        for gpus, at in shape.steps:
            at += add
            if at < least:
                at = least
            least = 0
            # Nobody gets the second piece without the first, so it never lies above it.
            if at < highest:
                highest = at if at > 0 else 0
            where = highest + ahead
            ahead = 0
            bins.append(where)
            demand[where] += gpus
            pieces[where].add(piece)
            if where > surface:
                above += gpus
            piece += 1
            add = more - self.base
        wish.bins, self.above = bins, above

    def remove(self, job: Job) -> None:
        wish = self.wishes.pop(job.key, None)
        if wish is not None:
            self._take_out(wish)

    def _take_out(self, wish: Wish) -> None:
        demand, pieces, surface, above = self.demand, self.pieces, self.surface, self.above
        piece = wish.job.key * MANY
        for (gpus, _), where in zip(wish.shape.steps, wish.bins, strict=True):
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

    def spill(self, bins: int) -> dict[int, int]:
        """What is left over goes to the surface's own bin, then below, `bins` of them at most.

        A piece is given whole or not at all; of equals, whoever has it keeps it. Returns the GPUs
        of those who get something this way, with all that they have.
        """
        left = self.capacity - self.above
        given: dict[int, int] = {}
        at, wishes = self.surface, self.wishes
        while left > 0 and at >= 0 and bins:
            if self.pieces[at]:
                bins -= 1
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
