"""What scripts register with TensorFlow's kind of state, as objects with a `state_dict`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.errors import UsageError

__all__ = ["holder_of"]


class _Variables:
    """A metric, a module, or a variable."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def _each(self) -> list[Any]:
        return [self._held] if hasattr(self._held, "assign") else list(self._held.variables)

    def state_dict(self) -> dict[str, Any]:
        return {"values": [np.array(variable) for variable in self._each()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = self._each()
        if len(mine) != len(state["values"]):
            raise UsageError(
                f"{type(self._held).__name__} has {len(mine)} variables here and "
                f"{len(state['values'])} in the job; make them before the training loop"
            )
        for variable, value in zip(mine, state["values"], strict=True):
            variable.assign(tf.convert_to_tensor(value))


class _Memory:
    """A Keras callback's: its numbers, texts and arrays, such as how long it has been patient.

    A worker that joins is given them while `fit` begins, and some callbacks forget everything
    when they hear that training begins; so they are given once more after that.
    """

    def __init__(self, held: Any) -> None:
        self._held = held
        self._given: dict[str, Any] | None = None
        self._training = False
        begin, end = held.on_train_begin, held.on_train_end

        def on_train_begin(logs: Any = None) -> None:
            begin(logs)
            self._training = True
            given, self._given = self._given, None
            if given is not None:
                vars(held).update(given)

        def on_train_end(logs: Any = None) -> None:
            self._training = False
            end(logs)

        held.on_train_begin, held.on_train_end = on_train_begin, on_train_end

    def state_dict(self) -> dict[str, Any]:
        mine = vars(self._held).items()
        known = {name: value for name, value in mine if name[0] != "_" and _plain(value)}
        # No memory: Keras turns its sign in each worker, when it first compares.
        known.pop("min_delta", None)
        return known

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._training:
            self._given = state
        vars(self._held).update(state)


def _plain(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_plain, value))
    kinds = (bool, int, float, str, np.generic, np.ndarray)
    return value is None or isinstance(value, kinds)


def holder_of(given: Any) -> Any:
    """The object itself if it has a `state_dict`, else one that has."""
    if callable(getattr(given, "state_dict", None)):
        return given
    if isinstance(given, keras.callbacks.Callback):
        return _Memory(given)
    if hasattr(given, "assign") or hasattr(given, "variables"):
        return _Variables(given)
    raise UsageError(
        "edl.register needs state_dict() and load_state_dict(), TensorFlow's variables, or a Keras "
        "callback; "
        f"{type(given).__name__} has neither"
    )
