"""`elastic_shard_generator`: metadata of the samples that this worker is to read next.

The paper's generator: partitions are named, not read; whoever asks for the next shard reads it by
itself. Three ways to use it: over `batches(...)`, which gives each step its samples; shard by
shard in the training loop; or by a pipeline that makes batches of its own, whose loop then says
how many samples each step took. Holds: a sample counts in exactly one committed step.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from edl.errors import UsageError
from edl.protocol.drawing import DrawnLedger
from edl.protocol.progress import StepPlan
from edl.protocol.shards import Piece, ShardPart, common, cut
from edl.runtime.drawing import STAND_IN, Drawing
from edl.runtime.loop import OwnLoop, steps
from edl.runtime.partitions import Partition, Shard, shard_of
from edl.runtime.producer import Producer
from edl.runtime.session import Session

__all__ = ["Rows", "ShardGenerator"]

Source = Callable[[Shard], Iterable[Any]] | Iterable[Any]

# Samples that a buffer holds at least; and what a pipeline may take before anything is counted.
_BUFFER, READ_AHEAD = 256, 4096


class ShardGenerator:
    """Callable and iterable: an iteration is one epoch, or all of them if it was told how many."""

    def __init__(
        self,
        session: Session,
        partitions: Sequence[Partition],
        *,
        batch_size: int | None,
        epochs: int | None,
        seed: int,
        shuffle: bool,
        read_ahead: int | None,
        micro_batch: int | None,
        on_begin: Callable[[], None],
        reduced: Callable[[], bool],
    ) -> None:
        _check(batch_size, epochs, read_ahead, micro_batch)
        self.partitions = partitions
        self.batch_size = batch_size
        self._session = session
        self._epochs = epochs
        self._micro_batch = micro_batch
        self._on_begin = on_begin
        self._reduced = reduced
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._loop: OwnLoop | None = None
        self._led = False
        self._ahead = ahead = (read_ahead or READ_AHEAD) if batch_size is None else 0
        self._drawing = Drawing(partitions, ahead=ahead)
        if session.audit is not None:
            session.audit.name([(part.path, part.offset, part.length) for part in partitions])
        session.open_data(
            DrawnLedger.prepared(
                [part.length for part in partitions],
                batch=batch_size or 0,
                seed=seed,
                epochs=epochs or 0,
                shuffle=shuffle,
                ahead=ahead,
            )
        )

    def __len__(self) -> int:
        """Samples in one epoch."""
        return sum(part.length for part in self.partitions)

    def __call__(self) -> Iterator[Shard]:
        return iter(self)

    def __iter__(self) -> Iterator[Shard]:
        """Shard after shard.

        With `batch_size`, in the training loop: notify_batch_end() comes when local_batch_size()
        samples are read. Without: whenever a pipeline asks; notify_batch_end(samples=n) says how
        many of them, first in first out, the step took.
        """
        # All is decided when the first shard is asked for: a generator expression has taken hold
        # of this iterator long before anybody knows what it is for.
        if os.getpid() != self._pid:
            raise UsageError(
                "elastic_shard_generator serves one process, and this is another one (a loader "
                "process, as it seems); use num_workers=0, or edl.DataLoader"
            )
        here = threading.get_ident() == self._thread
        if self.batch_size is not None and not self._led:
            if not here:
                raise UsageError(
                    "with batch_size a pipeline in other threads is used by "
                    "`for rows in shards.batches(pipeline)`; without batch_size, the loop says by "
                    "notify_batch_end(samples=n) how many samples each step took"
                )
            yield from self._step_by_step()
        else:
            yield from self._drawn()

    def batches(self, source: Source) -> Iterator[list[Any]]:
        """One list of samples a step. `source` is a function that reads a shard's samples, called
        in a thread beside the training; or a pipeline over this generator, which may run ahead but
        must hand on each sample once, in order."""
        if self.batch_size is None:
            raise UsageError(
                "batches() needs the aggregate batch: elastic_shard_generator(..., batch_size=)"
            )
        self._led = True
        drawing = Drawing(self.partitions, ahead=0)
        self._session.drawing = self._drawing = drawing
        ends = [drawing.finish]
        if not isinstance(source, Iterable):
            most = max(_BUFFER, 4 * self.batch_size)
            source = Producer(lambda: drawing.draw(most), source)
            ends.append(source.close)
        rows = Rows(self._session, drawing, source)
        return self._steps(rows.fetch, self._micro_batch, ends)

    # -- shard by shard, in the training thread --------------------------------------------

    def _step_by_step(self) -> Iterator[Shard]:
        for plan in self._steps(lambda plan, start, rows: plan):
            yield from self._shards(plan)

    def _steps(
        self,
        fetch: Callable[[StepPlan, int, int], Any],
        micro: int | None = None,
        ends: Sequence[Callable[[], None]] = (),
    ) -> Iterator[Any]:
        def on_end() -> None:
            for end in ends:
                end()

        return steps(
            self._session,
            fetch,
            micro_batch=micro,
            epochs=self._epochs,
            on_begin=self._on_begin,
            reduced=self._reduced,
            on_end=on_end,
        )

    def _shards(self, plan: StepPlan) -> Iterator[Shard]:
        progress = self._session.progress
        assert progress is not None
        part = plan.part
        if not isinstance(part, ShardPart):
            # No share in this step: real samples, so that the loop's body runs; not consumed.
            rows = min(STAND_IN, self.partitions[0].length)
            part = ShardPart(epoch=progress.ledger.epoch, pieces=(Piece(0, 0, rows),))
        for piece in part.pieces:
            if self._session.plan is not plan:
                raise UsageError(
                    "edl.notify_batch_end() came before the step's last shard was read; call it "
                    "once local_batch_size() samples are used, or iterate over batches(read)"
                )
            yield shard_of(
                self.partitions, piece.partition, piece.offset, piece.length, epoch=part.epoch
            )

    # -- ahead of the steps, in whatever thread --------------------------------------------

    def _drawn(self) -> Iterator[Shard]:
        if not self._led:
            self._begin()
        drawing = self._drawing
        while (shard := drawing.draw()) is not None:
            yield shard

    def _begin(self) -> None:
        """The first shard that is asked for opens the first step."""
        with self._lock:
            if self._loop is not None:
                return
            self._drawing = Drawing(self.partitions, ahead=self._ahead, thread=self._thread)
            self._session.drawing = self._drawing
            self._loop = OwnLoop(
                self._session,
                epochs=self._epochs,
                on_begin=self._on_begin,
                reduced=self._reduced,
            )
            self._session.between_steps, self._session.opener = self._go_on, self._open
            self._session.draining = False
            self._go_on()

    def _go_on(self) -> None:
        """The pipeline may fetch for the next step, which opens when its batch is made use of."""
        progress = self._session.progress
        assert self._loop is not None
        assert progress is not None
        if self._loop.goes_on():
            self._drawing.foresee(progress)
        else:
            self._end()

    def _open(self) -> None:
        assert self._loop is not None
        if not self._loop.open():
            self._end()

    def _end(self) -> None:
        self._loop = self._session.between_steps = self._session.opener = None
        self._session.drain()
        self._drawing.finish()


class Rows:
    """Samples that came out of a pipeline, for as long as a step may need them again."""

    def __init__(self, session: Session, drawing: Drawing, source: Iterable[Any]) -> None:
        self._session = session
        self._drawing = drawing
        self._source = source
        self._pipeline: Iterator[Any] | None = None
        self._held: deque[tuple[Any, Piece]] = deque()  # and which of this worker's queue each is
        self._place = (-1, -1)  # epoch and step of what was fetched last
        self._count = 0
        self._seen: list[Any] = []

    def fetch(self, plan: StepPlan, start: int, rows: int) -> list[Any]:
        """The rows of a step, from `start` on; the same ones if it is done again."""
        progress = self._session.progress
        assert progress is not None
        ledger = progress.ledger
        assert isinstance(ledger, DrawnLedger)
        epoch, step = self._place
        if epoch != ledger.epoch:
            # A loop that was left early leaves samples behind that nobody will use.
            self._held.clear()
        elif step < plan.step:
            for _ in range(self._count):
                self._held.popleft()
        self._place, self._count = (ledger.epoch, plan.step), plan.count
        queue = ledger.queue_of(progress.me)
        same = common([piece for _, piece in self._held], queue)
        while len(self._held) > same:
            self._held.pop()
        self._drawing.tell(ledger.epoch, cut(queue, same)[1])
        if not plan.count:
            return self._stand_in()
        while len(self._held) < start + rows:
            self._held.append(self._own())
        found = [self._held[index][0] for index in range(start, start + rows)]
        self._seen = found[:STAND_IN]
        return found

    def _own(self) -> tuple[Any, Piece]:
        while True:
            row, piece = self._next()
            if piece is not None:
                return row, piece

    def _next(self) -> tuple[Any, Piece | None]:
        if self._pipeline is None:
            self._pipeline = iter(self._source)
        try:
            row = next(self._pipeline)
        except StopIteration:
            raise UsageError(
                "the pipeline has ended, but this step needs more samples: it must hand on each "
                "sample of each shard once"
            ) from None
        return row, self._drawing.came_out()

    def _stand_in(self) -> list[Any]:
        """Real samples that are not consumed, so that the loop's body runs as ever."""
        if not self._seen:
            while len(self._held) < STAND_IN and self._drawing.has_own():
                self._held.append(self._own())
        if not self._seen and not self._held:
            self._drawing.ask_stand_in()
            while len(self._seen) < min(STAND_IN, self._drawing.partitions[0].length):
                row, piece = self._next()
                if piece is not None:
                    self._held.append((row, piece))
                else:
                    self._seen.append(row)
        return [row for row, _ in list(self._held)[:STAND_IN]] or self._seen


def _check(
    batch_size: int | None, epochs: int | None, read_ahead: int | None, micro_batch: int | None
) -> None:
    given = {
        "batch_size": batch_size,
        "epochs": epochs,
        "read_ahead": read_ahead,
        "micro_batch": micro_batch,
    }
    for name, value in given.items():
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: give at least 1")
    if batch_size is None and micro_batch is not None:
        raise UsageError("micro_batch without batch_size: give both, and iterate over batches()")
