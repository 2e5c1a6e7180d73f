"""A traced training step that is traced once, and before anybody waits for it.

A worker's batch changes its size with every generation, and TensorFlow traces a function anew for
each shape that it has not seen. Owns: the functions made by `edl.function`; each is traced for
batches of any size. Holds: a new worker has traced and run them before it enters its job, on
samples that do not count and without updating anything.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["Function", "made", "signature_of"]

log = logging.getLogger(__name__)

made: list[Function] = []


class Function:
    """What `edl.function` makes of a training step."""

    def __init__(self, step: Callable[..., Any], **options: Any) -> None:
        self._step = step
        self._options = options
        self._traced: Any = None
        functools.update_wrapper(self, step)
        made.append(self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self._traced is None:
            self._traced = tf.function(self._step, **self._told(args, named))
        return self._traced(*args, **named)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def traces(self) -> int:
        """How often it was traced so far."""
        return 0 if self._traced is None else int(self._traced.experimental_get_tracing_count())

    def rehearse(self, batch: Any) -> bool:
        """Trace and run it on a batch. False: it takes something else than the loader's batch."""
        args = batch if isinstance(batch, tuple) else (batch,)
        try:
            inspect.signature(self._step).bind(*args)
        except TypeError as error:
            log.warning(
                "join.not_rehearsed function=%s why=%s; it is traced in this worker's first step, "
                "and the others wait meanwhile",
                getattr(self._step, "__name__", "?"),
                error,
            )
            return False
        self(*args)
        return True

    def _told(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        if "input_signature" in self._options:
            return self._options
        if named or not all(map(_is_tensor, tf.nest.flatten(args))):
            # A second size of a batch costs a second trace, and a third none.
            return {"reduce_retracing": True, **self._options}
        return {"input_signature": signature_of(args), **self._options}


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or hasattr(value, "__array_interface__")


def signature_of(batch: Any) -> Any:
    """The same structure for batches of any size."""

    def spec(tensor: Any) -> tf.TensorSpec:
        shape = tuple(tensor.shape)
        return tf.TensorSpec((None, *shape[1:]) if shape else (), tf.as_dtype(tensor.dtype))

    return tf.nest.map_structure(spec, batch)
