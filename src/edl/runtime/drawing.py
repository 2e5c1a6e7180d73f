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

from edl.errors import UsageError
from edl.protocol.progress import StepPlan
from edl.protocol.shards import Piece, ShardPart, amount, cut
from edl.runtime.partitions import Partition, Shard

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

    rows: int
    epoch: int
    real: bool


class Drawing:
    """One worker's shards, from the ledger to its pipeline."""

    def __init__(self, partitions: Sequence[Partition], *, ahead: int) -> None:
        self.partitions = partitions
        self.counted = ahead > 0  # the script says how many samples a step took
        self._ahead = ahead
        self._mean = max(1, sum(part.length for part in partitions) // len(partitions))
        self._thread = threading.get_ident()
        self._changed = threading.Condition()
        self._epoch = 0
        self._undrawn: deque[Piece] = deque()
        self._runs: deque[_Run] = deque()
        self._stand_ins = 0  # that the loop has asked for
        self._padded = False  # a batch may have to be filled up with stand-ins
        self._usual: int | None = None  # samples of a batch, if known
        self._over = False

    # -- what the training thread says -----------------------------------------------------

    def tell(self, epoch: int, queue: Sequence[Piece], *, held: int = 0) -> None:
        """The worker's queue by the ledger; the loop holds the first `held` samples of it."""
        with self._changed:
            self._epoch = epoch
            drawn = sum(run.rows for run in self._runs if run.real and run.epoch == epoch)
            self._undrawn = deque(cut(queue, held + drawn)[1])
            self._changed.notify_all()

    def pad(self, *, padded: bool, usual: int | None) -> None:
        """Whether a batch is filled up where the queue has too little, and how many it takes."""
        with self._changed:
            self._padded, self._usual = padded, usual
            self._changed.notify_all()

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
            lacking = self._ahead - amount(tuple(self._undrawn))
            return max(0, _BUFFERS - len(self._undrawn), -(-lacking // self._mean))

    def has_own(self) -> bool:
        """Whether the pipeline has, or will get, samples of this worker's."""
        with self._changed:
            flowing = any(run.real and run.epoch == self._epoch for run in self._runs)
            return flowing or bool(self._undrawn)

    def narrowed(self, plan: StepPlan) -> StepPlan:
        """A step's samples up to the first stand-in that is in line already."""
        part = plan.part
        if not isinstance(part, ShardPart):
            return plan
        before = 0
        with self._changed:
            for run in self._runs:
                if not run.real or run.epoch != part.epoch:
                    break
                before += run.rows
            else:
                return plan
        kept = replace(part, pieces=cut(part.pieces, before)[0])
        return replace(plan, part=kept if before else None)

    def came_out(self) -> bool:
        """A sample has come out of the pipeline: whether it is one of this worker's own."""
        return self.flowed(1) == (1, 0)

    def flowed(self, samples: int) -> tuple[int, int]:
        """So many samples came out of the pipeline: how many of this worker's own came before any
        stand-in, and how many after one."""
        found = [0, 0]
        behind = 0
        with self._changed:
            drawn = sum(run.rows for run in self._runs)
            if samples > drawn:
                raise UsageError(
                    f"{samples} samples came out of a pipeline that was given {drawn}: it must "
                    "hand on each sample of each shard once, in their order"
                )
            while samples:
                run = self._runs[0]
                taken = min(run.rows, samples)
                run.rows -= taken
                samples -= taken
                if run.real and run.epoch == self._epoch:
                    found[behind] += taken
                else:
                    behind = 1
                if not run.rows:
                    self._runs.popleft()
            self._changed.notify_all()
        return found[0], found[1]

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
                        sum(run.rows for run in self._runs),
                    )
        return None

    def _drawn(self, most: int | None) -> Shard:
        piece = self._undrawn.popleft()
        if most is not None and piece.length > most:
            rest = Piece(piece.partition, piece.offset + most, piece.length - most)
            self._undrawn.appendleft(rest)
            piece = Piece(piece.partition, piece.offset, most)
        self._runs.append(_Run(piece.length, self._epoch, real=True))
        return self._shard(piece)

    def _lacking(self, here: bool) -> int:
        """How many samples of a stand-in are due."""
        if self._stand_ins:
            self._stand_ins -= 1
            return STAND_IN
        if self._usual is None:
            return STAND_IN if self._padded else 0
        if not (self._padded or here):
            return 0
        # No more than the next batch takes: more would still be in line when real ones come.
        return max(1 if here else 0, self._usual - sum(run.rows for run in self._runs))

    def _stand_in(self, lacking: int) -> Shard:
        rows = min(max(lacking, 1), self.partitions[0].length)
        self._runs.append(_Run(rows, self._epoch, real=False))
        return self._shard(Piece(0, 0, rows))

    def _shard(self, piece: Piece) -> Shard:
        whole = self.partitions[piece.partition]
        return Shard(
            path=whole.path,
            offset=whole.offset + piece.offset,
            length=piece.length,
            epoch=self._epoch,
            index=piece.partition,
        )
