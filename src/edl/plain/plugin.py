"""The smallest plug-in: arrays of the script's own, which it updates itself.

There is no optimizer to hold back, so an update that must not be made is made and taken back: when
`average` gives zeros, it keeps a copy of what an update changes, and the copy is written back when
the batch is over. Owns: that copy. Holds: what a script does to shared arrays between `average` and
the batch's end counts exactly if the step does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from edl.errors import UsageError
from edl.plain.arrays import SharedArrays
from edl.plugin.adapter import Array, Kind
from edl.plugin.arrays import ArrayPlugin
from edl.plugin.reducing import Reduction
from edl.runtime.framework import Group, Relay
from edl.runtime.identity import Identity

__all__ = ["Plugin"]

_log = logging.getLogger("edl.plain")


class Plugin(ArrayPlugin):
    """NumPy as the session knows it."""

    def __init__(self, identity: Identity | None, reduction: Reduction) -> None:
        self.shared = SharedArrays()
        self._kept: dict[str, Array] = {}
        self._first: dict[str, Array] | None = {}  # before the first update; None: it was looked at
        super().__init__(identity, reduction, self.shared)

    def share(self, kind: Kind, arrays: Mapping[str, Array]) -> None:
        if self.session.progress is not None:
            raise UsageError("arrays are shared before the training loop, not in it")
        self.shared.add(kind, arrays)

    def average(self, gradients: Mapping[str, Array]) -> dict[str, Array]:
        """Everyone's gradients as one, by samples; zeros if no update is to be made of them."""
        self._take_back()
        found = self.reducer.reduce(gradients)
        session = self.session
        if session.before_update(0):
            # At once: the script's update is complete when anybody asks for this worker's state.
            session.updated(0)
            if self._first is not None and any(gradient.any() for gradient in found.values()):
                self._first = {name: a.copy() for name, a in self.shared.updated().items()}
            return found
        self._kept = {name: a.copy() for name, a in self.shared.updated().items()}
        return {name: np.zeros_like(gradient) for name, gradient in found.items()}

    def _look_at_first(self) -> None:
        """Once: an update that changed nothing was made of other arrays than those shared."""
        if not self._first:
            return
        before, self._first = self._first, None
        if all(value.tobytes() == self.shared.read(n).tobytes() for n, value in before.items()):
            _log.warning(
                "plain.unchanged: no shared array was changed by the first update; change them in "
                "place (w -= ...), for w = ... makes another array"
            )

    def _take_back(self) -> None:
        """The update that the script made since was of zeros, and counts for nobody."""
        kept, self._kept = self._kept, {}
        for name, value in kept.items():
            self.shared.write(name, value)

    # -- wherever a batch may be over ------------------------------------------------------

    def begin_step(self) -> None:
        self._take_back()
        super().begin_step()

    def before_commit(self) -> None:
        self._take_back()
        self._look_at_first()
        super().before_commit()

    def put_back(self) -> None:
        self._take_back()
        super().put_back()

    def even_out(self, group: Group, root: int, relay: Relay | None) -> None:
        self._take_back()
        super().even_out(group, root, relay)

    def void_step(self, group: Group, relay: Relay | None) -> None:
        self._take_back()
        super().void_step(group, relay)
