"""The framework port filled by TensorFlow: what the session asks of a plug-in.

Owns: this process's models, optimizers and data. One plug-in a process, made by `edl.init()`.
Holds: what is handed to TensorFlow is not written to for as long as TensorFlow looks at it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from edl.errors import UsageError
from edl.plugin.adapter import Array
from edl.plugin.arrays import ArrayPlugin
from edl.plugin.holding import Holder
from edl.plugin.reducing import Reduction
from edl.runtime.identity import Identity
from edl.tensorflow import traced
from edl.tensorflow.model import Models
from edl.tensorflow.registered import Memories, Memory, Variables
from edl.tensorflow.told import ASK, REDUCE, UPDATE, Told

if TYPE_CHECKING:
    from edl.tensorflow.dataset import Stepped

__all__ = ["Plugin"]


class Plugin(ArrayPlugin):
    """TensorFlow as the session knows it."""

    def __init__(self, identity: Identity | None, reduction: Reduction) -> None:
        self.models = Models()
        super().__init__(identity, reduction, self.models)
        self.memories = Memories()
        self.registered.append(self.memories)
        self.arrived = False  # with a state of the job's, and in no epoch of a `fit` yet
        self.feed: Stepped | None = None
        self.rehearsal: Callable[[], None] | None = None
        self.rehearsing = False
        self.raised: BaseException | None = None  # in a traced function, where nobody sees it
        self.told: Told | None = None  # with the first optimizer
        self._exchanges = False  # the script exchanges something within its steps
        self._lent: list[weakref.ref[Array]] = []

    # -- models ----------------------------------------------------------------------------

    def add_optimizer(self, optimizer: Any) -> int:
        """How the session knows this optimizer."""
        self.models.add_optimizer(optimizer)
        self.told = self.told or Told()
        return len(self.models.optimizers) - 1

    def add_model(self, model: Any, optimizer: Any) -> None:
        """Slots are made at once: a new worker's are there when it is given the job's."""
        self.models.add_model(model)
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        self.models.look_again()
        self.reducer.forget()

    def names_of(self, variables: Sequence[Any]) -> list[str]:
        for variable in variables:
            if not self.models.knows(variable):
                raise UsageError(
                    f"gradients for {getattr(variable, 'path', variable.name)!r}, which is of no "
                    "model that EDL knows: edl.Optimizer(optimizer, model=model)"
                )
        return [self.models.name_of(variable) for variable in variables]

    # -- a step ----------------------------------------------------------------------------

    def begin_step(self) -> None:
        super().begin_step()
        alone = UPDATE if self.session.unasked() and not self._exchanges else ASK
        self._tell(REDUCE if self.crosses() else alone)

    def hold(self, *, heavy: bool) -> None:
        if heavy:
            # The step is cut in pieces, or void: what was said of it is not so simple.
            self._tell(ASK)
        # Keras tells callbacks of every piece of a step, so they are not put back between them.
        pieces = self.session.plan is not None and self.session.piece.pieces > 1
        self._holding.hold(heavy=heavy, slow=not pieces)

    @property
    def reduced(self) -> bool:
        return super().reduced or (self.told is not None and self.told.done)

    def left(self) -> bool:
        """The loop is over: whether the model was updated in the step that it was left in."""
        done = self.reduced
        self._tell(ASK)
        return done

    def _tell(self, mode: np.int64) -> None:
        if self.told is not None:
            self.told.tell(mode)

    def before_commit(self) -> None:
        self._tell(ASK)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised
        if not self.crosses():
            # Alone, it was asked about the update before the last gradients were computed.
            self.session.computed()
        super().before_commit()

    # -- a newcomer ------------------------------------------------------------------------

    def warm_up(self) -> Iterator[None]:
        self._rehearse()
        pieces = super().warm_up()
        next(pieces, None)
        self.models.make_places()
        yield
        yield from pieces

    def _rehearse(self) -> None:
        """Tracing a function and running it first takes seconds: now, while nobody waits.

        The update too: what it does to the model does not matter, for the job's is received.
        """
        self.rehearsing = True
        try:
            batch = self.feed.stand_in() if self.feed is not None and traced.made else None
            for step in traced.made:
                step.rehearse(batch)
            if self.rehearsal is not None:
                self.rehearsal()
        finally:
            self.rehearsing = False

    # -- gradients -------------------------------------------------------------------------

    def crosses(self) -> bool:
        """Whether gradients have to be handed over in the present step."""
        session = self.session
        if session.plan is None:
            return False
        return session.piece.pieces > 1 or (session.group is not None and session.group.size > 1)

    def reduce_tensors(self, names: Sequence[str], arrays: Sequence[Array]) -> list[Array]:
        """The common gradients, as TensorFlow may keep them."""
        if any(lent() is not None for lent in self._lent):
            # TensorFlow has made a variable of it, or the script holds a gradient.
            self.reducer.forget()
        common = self.reducer.reduce(dict(zip(names, arrays, strict=True)))
        found = [
            common[name].astype(array.dtype, copy=False) if name in common else np.zeros_like(array)
            for name, array in zip(names, arrays, strict=True)
        ]
        loans = [array[...] for array in found]
        self._lent = [weakref.ref(loan) for loan in loans]
        return loans

    def _is_slow(self, holder: object) -> bool:
        """Callbacks change between steps, and one that keeps the best weights is as large."""
        return isinstance(holder, (Memory, Memories))

    def _compared(self, holder: Holder) -> object:
        return holder.compared() if isinstance(holder, Variables) else super()._compared(holder)

    def all_reduce(self, array: Array, op: str) -> Array:
        # It may break after the update, and then it has to be known which updates were made.
        self._exchanges = self._exchanges or self.session.plan is not None
        return super().all_reduce(array, op)

    def all_reduce_tensor(self, value: Any, op: str) -> tf.Tensor:
        """The same tensor on every worker."""
        if self.rehearsing:
            return tf.convert_to_tensor(value)
        return tf.convert_to_tensor(self.all_reduce(np.asarray(value), op))
