"""Whether a worker's open step counts, and whether it may change the model.

Owns nothing of its own: it asks the round under way, the state that travels and what was made of
the step before a failure. Holds: nothing is changed in a step that does not count, nor while the
model travels, nor twice in a step that is done again.
"""

from __future__ import annotations

from edl.errors import GroupBroken
from edl.runtime.piece import Piece
from edl.runtime.rounds import Rounds

__all__ = ["Updating"]


class Updating(Rounds):
    """Between a step's beginning and its end."""

    def ensure_open(self) -> None:
        """In a loop of the script's own, whose batch is made use of now: its step is open."""
        if self.plan is None and self.opener is not None:
            self.opener()

    def begin_piece(self, piece: Piece) -> None:
        """The batch that comes now is this part of the step."""
        self.piece = piece
        if piece.pieces > 1 and piece.index == 0:
            self.framework.hold(heavy=True)

    def counts(self) -> bool:
        """Whether the present step will count; waits for its round. Never raises a lost peer."""
        if self.plan is None or self._void or self._mender.fault is not None:
            return False
        try:
            return self.round().go
        except GroupBroken as error:
            self.broke(error)
            return False

    def weight(self) -> float:
        """This worker's weight in the present step's gradient."""
        return self.round().weight(self.me)

    def void(self) -> None:
        """Somebody left the loop inside this step: it counts for nobody."""
        self._void = True

    def before_update(self, optimizer: int) -> bool:
        """Called before this optimizer changes the model. False: it must not, or not yet."""
        self.ensure_open()
        if self.plan is not None and not self.piece.last:
            return False
        try:
            self._await_moved()
        except GroupBroken as error:
            self.broke(error)
        if self.plan is None:
            return not self.draining
        return self.counts() and self._mender.may_update(optimizer)

    def unasked(self) -> bool:
        """Whether this step's updates need not wait for `before_update`: this worker is alone, and
        nothing travels or was made of the step before."""
        alone = self.group is None or self.group.size == 1
        idle = self._moving is None and self._parting is None and self._mender.fresh
        return alone and idle and self.opener is None and self.counts()

    def evaluated(self) -> None:
        """An optimizer has looked at the gradients within its step, and changes the model next."""
        if self.plan is not None and self._mender.fault is None:
            self._mender.calls += 1

    def updated(self, optimizer: int) -> None:
        """The optimizer's step is complete, unless a peer was lost in the middle of it."""
        if self.plan is not None and self._mender.fault is None:
            self._mender.updated(optimizer)
