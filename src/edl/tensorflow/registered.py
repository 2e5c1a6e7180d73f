"""What scripts register with TensorFlow's kind of state, as objects with a `state_dict`."""

from __future__ import annotations

from typing import Any

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


def holder_of(given: Any) -> Any:
    """The object itself if it has a `state_dict`, else one that has."""
    if callable(getattr(given, "state_dict", None)):
        return given
    if hasattr(given, "assign") or hasattr(given, "variables"):
        return _Variables(given)
    raise UsageError(
        "edl.register needs state_dict() and load_state_dict(), or TensorFlow's variables; "
        f"{type(given).__name__} has neither"
    )
