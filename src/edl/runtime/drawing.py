"""Between the ledger, which says what is this worker's own, and whoever reads it ahead of steps.

A pipeline may run in threads that are not ours and hold samples that no step has used, so all that
is known of a sample is its place in line: what is drawn first comes out first. Owns: what was
drawn and has not come out again. Holds: a shard is drawn only from this worker's queue, except a
stand-in, whose samples are real but never count; the training thread is never left waiting for
what only its own next step could bring.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from edl.errors import UsageError
from edl.protocol.drawing import DrawnLedger
from edl.protocol.progress import Progress, StepPlan
from edl.protocol.shards import Piece, ShardPart, amount, common, cut
from edl.runtime.partitions import Partition, Shard, shard_of

__all__ = ["STAND_IN", "Drawing"]

log = logging.getLogger(__name__)

# Rows that a worker without a share runs its loop on, as the map-style loader does.
STAND_IN = 2
# Ranges that lie ready beside the one that is being read.
_BUFFERS = 2
_WARN_S = 10.0


@dataclass(slots=True)
class _Run:
    """Samples that were drawn one after another."""

    piece: Piece
    epoch: int
    real: bool  # this worker's own; False: a stand-in, or no longer its own


class Drawing:
    """One worker's shards, from the ledger to its pipeline."""

    def __init__(
        self, partitions: Sequence[Partition], *, ahead: int, thread: int | None = None
    ) -> None:
        """`thread`: the one that trains, if it is not this one."""
        self.partitions = partitions
        self.counted = ahead > 0  # the script says how many samples a step took
        self._mean = max(1, sum(part.length for part in partitions) // len(partitions))
        self._thread = thread or threading.get_ident()
        self._changed = threading.Condition(threading.RLock())
        self._epoch = 0
        self._undrawn: deque[Piece] = deque()
        self._runs: deque[_Run] = deque()
        self._stand_ins = 0  # that the loop has asked for
        # In a loop of the script's own: whether a batch may have to be filled up with stand-ins,
        # and how many samples one has, if known.
        self._padded = False
        self._usual: int | None = None
        self._over = False

    # -- what the training thread says -----------------------------------------------------

    def tell(self, epoch: int, queue: Sequence[Piece]) -> None:
        """The worker's queue by the ledger, without what has come out of the pipeline already.

        A hand-out that came to nothing, as a peer was lost in its step, is made anew and may
        differ; whatever is in line and not in the queue's order any more is nobody's.
        """
        with self._changed:
            self._epoch = epoch
            line = [run.piece for run in self._runs if run.real and run.epoch == epoch]
            same = common(line, queue)
            self._undrawn = deque(cut(queue, same)[1])
            judged: deque[_Run] = deque()
            for run in self._runs:
                own = run.real and run.epoch == epoch
                front, rest = cut([run.piece], same if own else 0)
                same -= amount(front)
                judged.extend(_Run(piece, epoch, real=True) for piece in front)
                judged.extend(_Run(piece, epoch, real=False) for piece in rest)
            self._runs = judged
            self._changed.notify_all()

    def foresee(self, progress: Progress) -> None:
        """Between two steps: what the next one will use, as far as can be seen."""
        ledger = progress.ledger
        assert isinstance(ledger, DrawnLedger)
        ledger = ledger.provided(progress.carriers)
        queue = ledger.queue_of(progress.me)
        carries = progress.me in progress.carriers and bool(queue)
        self._look_at(ledger, padded=not carries)
        self.tell(ledger.epoch, cut(queue, common(progress.passed, queue))[1])

    def opened(self, plan: StepPlan, progress: Progress) -> StepPlan:
        """A step of the script's own loop begins: it uses its part up to the first sample in line
        that is not of it."""
        ledger = progress.ledger
        assert isinstance(ledger, DrawnLedger)
        with self._changed:
            self._look_at(ledger, padded=not plan.count)
            self.tell(ledger.epoch, cut(ledger.queue_of(progress.me), progress.back)[1])
            own = list(takewhile(lambda run: run.real, self._runs))
            if len(own) == len(self._runs) or not isinstance(plan.part, ShardPart):
                return plan
            pieces, _ = cut(plan.part.pieces, sum(run.piece.length for run in own))
            return replace(plan, part=replace(plan.part, pieces=pieces) if pieces else None)

    def _look_at(self, ledger: DrawnLedger, *, padded: bool) -> None:
        with self._changed:
            self._padded = padded or ledger.free() == 0
            self._usual = ledger.usual or None

    def ask_stand_in(self) -> None:
        """The loop needs samples, whoever's they are."""
        with self._changed:
            self._stand_ins += 1
            self._changed.notify_all()

    def finish(self) -> None:
        """No more shards: the job is over, or its loop was left."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def want(self) -> int:
        """How many more ranges this worker wants, so that its pipeline never waits for them."""
        with self._changed:
            # A pipeline that makes batches of its own finds two of them.
            lacking = 2 * (self._usual or 0) - amount(tuple(self._undrawn))
            return max(0, _BUFFERS - len(self._undrawn), -(-lacking // self._mean))

    def has_own(self) -> bool:
        """Whether the pipeline has, or will get, samples of this worker's."""
        with self._changed:
            return any(run.real for run in self._runs) or bool(self._undrawn)

    def came_out(self) -> Piece | None:
        """A sample has come out of the pipeline: which one of this worker's own it is, if any."""
        own, _ = self.flowed(1)
        return own[0] if own else None

    def flowed(self, samples: int) -> tuple[list[Piece], list[Piece]]:
        """So many samples came out of the pipeline: this worker's own before any other one, and
        those behind."""
        found: tuple[list[Piece], list[Piece]] = ([], [])
        behind = 0
        with self._changed:
            drawn = self._in_line()
            if samples > drawn:
                raise UsageError(
                    f"{samples} samples came out of a pipeline that was given {drawn}: it must "
                    "hand on each sample of each shard once, in their order"
                )
            while samples:
                run = self._runs[0]
                taken, rest = cut([run.piece], samples)
                samples -= taken[0].length
                if run.real:
                    found[behind].extend(taken)
                else:
                    behind = 1
                if rest:
                    run.piece = rest[0]
                else:
                    self._runs.popleft()
            self._changed.notify_all()
        return found

    # -- what a pipeline calls, in whatever thread -----------------------------------------

    def draw(self, most: int | None = None) -> Shard | None:
        """The next shard, of at most so many samples; waits for it. None: there are no more."""
        here = threading.get_ident() == self._thread
        warned = False
        with self._changed:
            while not self._over:
                if self._undrawn:
                    return self._drawn(most)
                lacking = self._lacking(here)
                if lacking:
                    return self._stand_in(lacking)
                if here:
                    raise UsageError(
                        "the pipeline asks for more samples than this step has; it must hand on "
                        "each sample without holding any back (no shuffling, no batching)"
                    )
                if not self._changed.wait(_WARN_S) and not warned:
                    warned = True
                    log.warning(
                        "data.waiting why=the pipeline has been given all %d samples that are this "
                        "worker's and asks for more; if training stands still, it needs a larger "
                        "read_ahead=, or must not hold samples back",
                        self._in_line(),
                    )
        return None

    def _drawn(self, most: int | None) -> Shard:
        piece = self._undrawn.popleft()
        if most is not None and piece.length > most:
            rest = Piece(piece.partition, piece.offset + most, piece.length - most)
            self._undrawn.appendleft(rest)
            piece = Piece(piece.partition, piece.offset, most)
        self._runs.append(_Run(piece, self._epoch, real=True))
        return self._shard(piece)

    def _lacking(self, here: bool) -> int:
        """How many samples of a stand-in are due."""
        if self._stand_ins:
            self._stand_ins -= 1
            return STAND_IN
        if not (self._padded or (here and self.counted)):
            return 0
        if self._usual is None:
            return STAND_IN
        # No more than the next batch takes: more would still be in line when real ones come.
        return max(1 if here else 0, self._usual - self._in_line())

    def _stand_in(self, lacking: int) -> Shard:
        piece = Piece(0, 0, min(max(lacking, 1), self.partitions[0].length))
        self._runs.append(_Run(piece, self._epoch, real=False))
        return self._shard(piece)

    def _in_line(self) -> int:
        return sum(run.piece.length for run in self._runs)

    def _shard(self, piece: Piece) -> Shard:
        return shard_of(
            self.partitions, piece.partition, piece.offset, piece.length, epoch=self._epoch
        )
