"""`elastic_shard_generator`: metadata of the samples that this worker uses in each step.

The paper's generator: partitions are named, not read; a worker asks for the next shard and reads
it by itself, one partition from front to back. Holds: what a step's shards name is exactly what
the step consumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from edl.errors import UsageError
from edl.protocol.progress import StepPlan
from edl.protocol.shards import Piece, ShardLedger, ShardPart
from edl.runtime.loop import steps
from edl.runtime.partitions import Partition, Shard, listed_partitions
from edl.runtime.session import Session

__all__ = ["ShardGenerator"]

_Batch = TypeVar("_Batch")

# Rows that a worker without a share runs its loop on, as the map-style loader does.
_STAND_IN = 2


class ShardGenerator:
    """Callable and iterable: each iteration goes over all epochs from where the job is."""

    def __init__(
        self,
        session: Session,
        partitions: Sequence[Partition | tuple[str, int, int]],
        *,
        batch_size: int,
        epochs: int,
        seed: int,
        on_begin: Callable[[], None],
        reduced: Callable[[], bool],
    ) -> None:
        self.partitions = listed_partitions(partitions)
        if batch_size < 1 or epochs < 1:
            raise UsageError(f"batch_size={batch_size} and epochs={epochs} must be at least 1")
        self._session = session
        self._epochs = epochs
        self._on_begin = on_begin
        self._reduced = reduced
        self._drawn = 0
        lengths = [part.length for part in self.partitions]
        if session.audit is not None:
            session.audit.name([(part.path, part.offset, part.length) for part in self.partitions])
        session.open_data(ShardLedger.opened(lengths, batch=batch_size, seed=seed, epochs=epochs))

    def __call__(self) -> Iterator[Shard]:
        return iter(self)

    def __iter__(self) -> Iterator[Shard]:
        """Shard after shard; notify_batch_end() comes when local_batch_size() samples are read."""
        for plan in self._steps(lambda plan, start, rows: plan):
            yield from self._shards(plan)

    def batches(self, read: Callable[[Shard], Iterable[Any]]) -> Iterator[list[Any]]:
        """One list of samples a step, read by your function."""

        def fetch(plan: StepPlan, start: int, rows: int) -> list[Any]:
            return [sample for shard in self._shards(plan) for sample in read(shard)]

        return self._steps(fetch)

    def _steps(self, fetch: Callable[[StepPlan, int, int], _Batch]) -> Iterator[_Batch]:
        return steps(
            self._session,
            fetch,
            epochs=self._epochs,
            on_begin=self._on_begin,
            reduced=self._reduced,
        )

    def _shards(self, plan: StepPlan) -> Iterator[Shard]:
        progress = self._session.progress
        assert progress is not None
        part = plan.part
        if not isinstance(part, ShardPart):
            # No share in this step: real samples, so that the loop's body runs; not consumed.
            rows = min(_STAND_IN, self.partitions[0].length)
            part = ShardPart(epoch=progress.ledger.epoch, pieces=(Piece(0, 0, rows),))
        for piece in part.pieces:
            if self._session.plan is not plan:
                raise UsageError(
                    "edl.notify_batch_end() came before the step's last shard was read; call it "
                    "once local_batch_size() samples are used, or iterate over batches(read)"
                )
            whole = self.partitions[piece.partition]
            yield Shard(
                path=whole.path,
                offset=whole.offset + piece.offset,
                length=piece.length,
                epoch=part.epoch,
                index=piece.partition,
            )
