"""The training loop as the loaders see it: one plan a step, until the loop is over.

Holds: however the loop ends (by itself, by `break`, because another worker broke), the session
closes it with everybody; a failing script takes part in nothing any more.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

from edl.errors import UsageError
from edl.protocol.progress import Progress, StepPlan
from edl.runtime.piece import WHOLE, Piece
from edl.runtime.session import Session

__all__ = ["OwnLoop", "cut", "steps"]

_Batch = TypeVar("_Batch")
Reduced = Callable[[], bool]


def steps(
    session: Session,
    fetch: Callable[[StepPlan, int, int], _Batch],
    *,
    micro_batch: int | None = None,
    epochs: int | None,
    on_begin: Callable[[], None],
    reduced: Reduced,
    on_end: Callable[[], None] = lambda: None,
) -> Iterator[_Batch]:
    """Open one step after another. `epochs` None: the loop is one epoch."""
    refuse_two_ways(session, epochs)
    progress = session.enter()
    session.ends_loop = ends = _end_of(progress, epochs)
    begun = progress.step
    try:
        while not session.over and not ends():
            if progress.ledger.epoch_over():
                session.close_epoch()
            # Also when it is done again: until a step of this loop is committed.
            plan = session.begin_step(first=progress.step == begun)
            if plan is None:
                break
            on_begin()
            for piece, start in _pieces(plan, micro_batch):
                session.begin_piece(piece)
                batch = fetch(plan, start, piece.rows)
                session.sweep()
                yield batch
                if session.plan is plan and session.piece.rows >= 0:
                    raise UsageError(
                        "the loop asks for the next batch before edl.notify_batch_end(); call "
                        "it at the end of each batch"
                    )
                if session.loop_closed:
                    break
            if session.loop_closed:
                break
    except GeneratorExit:
        session.leave_loop(reduced=reduced())
        if _by_break(sys._getframe().f_back):
            session.settle()
        raise
    finally:
        on_end()
    session.close_loop(reduced=reduced())


class OwnLoop:
    """A loop of the script's own over a pipeline: a step opens when its batch is made use of."""

    def __init__(
        self,
        session: Session,
        *,
        epochs: int | None,
        on_begin: Callable[[], None],
        reduced: Reduced,
    ) -> None:
        refuse_two_ways(session, epochs)
        self._session = session
        self._on_begin = on_begin
        self._reduced = reduced
        self._progress = session.enter()
        self._begun = self._progress.step
        self._ends = session.ends_loop = _end_of(self._progress, epochs)

    def goes_on(self) -> bool:
        """Between two steps. False: the loop is over for everybody."""
        session, progress = self._session, self._progress
        if session.over or session.loop_closed or self._ends():
            session.close_loop(reduced=self._reduced())
            return False
        if progress.ledger.epoch_over():
            session.close_epoch()
        return True

    def open(self) -> bool:
        """Open the next step; False: the loop is over for everybody."""
        session, progress = self._session, self._progress
        if session.begin_step(first=progress.step == self._begun) is None:
            session.close_loop(reduced=self._reduced())
            return False
        self._on_begin()
        session.begin_piece(WHOLE)
        session.sweep()
        return True


def refuse_two_ways(session: Session, epochs: int | None) -> None:
    if epochs is not None and session.teller.epochs:
        raise UsageError(
            f"epochs={epochs} inside edl.epochs({session.teller.epochs}): one loop goes over "
            "all epochs, or there is one for each; give only one of them"
        )


def _end_of(progress: Progress, epochs: int | None) -> Callable[[], bool]:
    """Whether a loop over so many epochs is over; None: over the present one."""

    def ends() -> bool:
        ledger = progress.ledger
        if epochs is None:
            return ledger.epoch_over()
        last = ledger.epoch + 1 >= epochs
        return ledger.epoch >= epochs or (last and ledger.epoch_over())

    return ends


def cut(count: int, micro_batch: int | None) -> Iterator[tuple[int, int]]:
    """A share as even pieces of at most `micro_batch` rows: how many, and where each begins."""
    pieces = max(1, -(-count // micro_batch)) if micro_batch else 1
    base, extra = divmod(count, pieces)
    start = 0
    for index in range(pieces):
        rows = base + (1 if index < extra else 0)
        yield rows, start
        start += rows


def _pieces(plan: StepPlan, micro_batch: int | None) -> Iterator[tuple[Piece, int]]:
    cuts = list(cut(plan.count, micro_batch))
    for index, (rows, start) in enumerate(cuts):
        yield Piece(index, len(cuts), rows, rows / plan.count if plan.count else 1.0), start


def _by_break(frame: FrameType | None) -> bool:
    """Whether the loop's own frame dropped the iterator on purpose, by `break` or `return`.

    An exception on its way through that frame drops the iterator too, and then nobody else must
    be told that the loop is over. Not sure means no: the session settles at its next call.
    """
    if frame is None or frame.f_lasti < 0:
        return False
    return frame.f_code.co_code[frame.f_lasti] == dis.opmap["POP_TOP"]
