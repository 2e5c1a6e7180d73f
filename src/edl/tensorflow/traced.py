"""A traced training step that is traced once, and before anybody waits for it.

A worker's batch changes its size with every generation, and TensorFlow traces a function anew for
each shape that it has not seen. Owns: the functions made by `edl.function`; each is traced for
batches of any size. Holds: a new worker has traced and run them before it enters its job, on
samples that do not count and a model that it will be given anew.
"""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from edl.errors import UsageError

__all__ = ["STAND_IN", "Function", "blank", "made", "signature_of"]

log = logging.getLogger(__name__)

# Rows of a batch that does not count; two, for BatchNorm's sake.
STAND_IN = 2

made: list[Function] = []


class Function:
    """What `edl.function` makes of a training step."""

    def __init__(self, step: Callable[..., Any], **options: Any) -> None:
        if options.get("jit_compile"):
            raise UsageError(
                "edl.function(jit_compile=True): XLA cannot call out of what it has compiled, "
                "where EDL averages gradients; leave it out"
            )
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

    def rehearse(self, batch: Any) -> None:
        """Trace and run it on a batch of the loader's; None: nobody knows what one looks like."""
        signature = self._options.get("input_signature")
        if signature is not None:
            self(*tf.nest.map_structure(blank, tuple(signature)))
            return
        args = batch if isinstance(batch, tuple) else (batch,)
        why = "" if batch is not None else "no edl.DataLoader or batches() feeds it"
        try:
            inspect.signature(self._step).bind(*args)
        except TypeError as error:
            why = str(error)
        if not why:
            self(*args)
            return
        log.warning(
            "join.not_rehearsed function=%s why=%s; it is traced in this worker's first step, and "
            "the others wait meanwhile; an input_signature would help",
            getattr(self._step, "__name__", "?"),
            why,
        )

    def _told(self, args: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        if "input_signature" in self._options:
            return self._options
        if named or not all(map(_is_tensor, tf.nest.flatten(args))):
            # A second size of a batch costs a second trace, and a third none.
            return {"reduce_retracing": True, **self._options}
        return {"input_signature": signature_of(args), **self._options}


def _is_tensor(value: Any) -> bool:
    return tf.is_tensor(value) or hasattr(value, "__array_interface__")


def blank(spec: Any, rows: int | None = None) -> tf.Tensor:
    """A tensor of zeros; of so many rows of this kind, or of two where their number is open."""
    sizes = [size or 1 for size in spec.shape]
    if rows is not None:
        sizes = [rows, *sizes]
    elif sizes and spec.shape[0] is None:
        sizes[0] = STAND_IN
    return tf.fill(sizes, "") if spec.dtype == tf.string else tf.zeros(sizes, spec.dtype)


def signature_of(batch: Any) -> Any:
    """The same structure for batches of any size."""

    def spec(tensor: Any) -> tf.TensorSpec:
        shape = tuple(tensor.shape)
        return tf.TensorSpec((None, *shape[1:]) if shape else (), tf.as_dtype(tensor.dtype))

    return tf.nest.map_structure(spec, batch)
