"""Gradients of named arrays: given all at once, averaged over the workers by samples.

Owns: the buckets, and what earlier micro-batches of the present step have added up to. Holds: what
`reduce` gives is the same on every worker bit for bit; zeros where the step counts for nobody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edl.errors import UsageError
from edl.plugin.adapter import Adapter, Array, Kind, Variable
from edl.plugin.reducing import Carrier, Reducing, Reduction
from edl.runtime.framework import Relay
from edl.runtime.session import Session

if TYPE_CHECKING:
    # It imports torch, which a job of one worker goes without.
    from edl.plugin.buckets import ArrayBucket

__all__ = ["ArrayReducer"]


class ArrayReducer(Reducing):
    """The gradients of an adapter's parameters."""

    def __init__(self, session: Session, reduction: Reduction, adapter: Adapter) -> None:
        super().__init__(session, reduction.bucket_bytes)
        self._narrow = reduction.narrow
        self._adapter = adapter
        self._buckets: list[ArrayBucket] | None = None
        self._names: set[str] = set()  # of what is in the buckets
        self._given: dict[str, Array] = {}
        # Of earlier micro-batches: what the first call in each gave, the second one, and so on.
        self._sums: list[dict[str, Array]] = []
        self._call = 0  # in the present batch

    def begin_step(self) -> None:
        self._sums.clear()
        self._call = 0
        super().begin_step()

    def end_batch(self) -> None:
        """The next call is the first one of another batch."""
        self._call = 0

    def reduce(self, gradients: Mapping[str, Array]) -> dict[str, Array]:
        """The weighted mean of everyone's, by name; a parameter unused everywhere is absent.

        What is given may lack parameters. The result may be what was given, or a part of a row
        that the next call writes into; it must be used before. Between two steps nothing is
        reduced.
        """
        session = self.session
        session.ensure_open()
        given = dict(gradients)
        if session.plan is None:
            return given
        piece = session.piece
        if piece.pieces > 1:
            whole = self._added(given, piece.fraction)
            if not piece.last:
                return _zeros(given)
            given = whole
        session.computed()
        if not given.keys() <= self._names:
            self._look_again(given)
        self._given.clear()
        self._given.update(given)
        self.begin_reduction()
        if not self.finish():
            return _zeros(given)
        if self._solo():
            return given
        assert self._buckets is not None
        return {name: view for bucket in self._buckets for name, view in bucket.found.items()}

    def _look_again(self, given: Mapping[str, Array]) -> None:
        """A model that is built when it is first used has other variables now."""
        self._buckets = None
        self._names = {variable.name for variable in self._parameters()}
        unknown = sorted(given.keys() - self._names)
        if unknown:
            raise UsageError(
                f"a gradient for {unknown[0]!r}, which is no parameter of the model that EDL knows"
            )

    def _parameters(self) -> list[Variable]:
        return [v for v in self._adapter.variables() if v.kind is Kind.PARAMETER]

    def _added(self, given: Mapping[str, Array], fraction: float) -> dict[str, Array]:
        """What the micro-batches of this step have added up to, each by its rows."""
        if self._call == len(self._sums):
            self._sums.append({})
        sums = self._sums[self._call]
        self._call += 1
        for name, gradient in given.items():
            part = np.multiply(gradient, fraction)
            sums[name] = sums[name] + part if name in sums else part
        return dict(sums)

    # -- what the base asks ----------------------------------------------------------------

    def warm_up(self) -> None:
        """Make the buckets and touch their memory, so that the first step need not."""
        for bucket in self._buckets_now():
            bucket.voided(None)

    def prepare_relay(self, relay: Relay) -> None:
        if self._buckets is not None:
            self.prepare(relay, self._buckets)

    def forget(self) -> None:
        """There are other parameters now, or somebody still looks at what was handed out: the
        buckets are made anew."""
        self._buckets = None

    def abandon(self) -> None:
        """A peer is lost. What was launched may still write into the buckets: leave them to it."""
        self._buckets, self._work = None, []
        self._next, self.reduced = 0, False

    def _clear(self) -> None:
        """Whoever called `reduce` gets zeros."""

    def _buckets_now(self) -> Sequence[Carrier]:
        if self._buckets is None:
            from edl.plugin.buckets import bucketed, torch_dtype

            self.compression = torch_dtype(self._narrow) if self._narrow else None
            known = self._parameters()
            self._names = {variable.name for variable in known}
            self._buckets = list(bucketed(known, self._given, self.bucket_bytes))
        return self._buckets


def _zeros(given: Mapping[str, Array]) -> dict[str, Array]:
    return {name: np.zeros_like(gradient) for name, gradient in given.items()}
