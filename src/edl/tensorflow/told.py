"""What a traced step is told before it runs, and what it says of itself, without a crossing.

To call from the graph to Python takes about half a millisecond, which a worker that trains alone
would pay for an answer that is known before its step begins. Owns: two variables of the graph. One
is written to in place by Python between two steps; the other one is written to by the graph. Holds:
where the memory cannot be had, the graph asks, as it does whenever it was told nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from edl.tensorflow.model import memory_of

__all__ = ["ASK", "REDUCE", "SKIP", "UPDATE", "Told"]

# What a step is to do.
ASK, SKIP, UPDATE, REDUCE = np.int64(0), np.int64(1), np.int64(2), np.int64(3)


class Told:
    """One worker's. Made where TensorFlow's runtime is in use already: with an optimizer."""

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/CPU:0"):
            # What to do, and the number of the step that this was said of.
            self._told = tf.Variable([ASK, 0], dtype=tf.int64, trainable=False)
            self._done = tf.Variable(0, dtype=tf.int64, trainable=False)
            self._place = memory_of(self._told)
        self._step = 0

    def tell(self, mode: np.int64) -> None:
        """From now on; nothing of TensorFlow's runs meanwhile that would ask for it."""
        if self._place is not None:
            self._step += 1
            self._place[:] = mode, self._step

    @property
    def done(self) -> bool:
        """Whether the model was updated since `tell(UPDATE)`."""
        said: Any = self._place
        if said is None or said[0] != UPDATE:
            return False
        return int(self._done.numpy()) == self._step

    # -- in the graph ----------------------------------------------------------------------

    def read(self) -> Any:
        """What to do."""
        return self._told.read_value()[0]

    def say_done(self) -> None:
        self._done.assign(self._told.read_value()[1])
