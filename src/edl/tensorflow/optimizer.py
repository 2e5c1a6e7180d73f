"""Any Keras optimizer, made elastic in place.

The wrapped object keeps its class in its ancestry, so `model.compile`, schedules and callbacks
accept it; only `apply` learns something new. It is traced into the script's function once, and
must then do right in every generation: so whether gradients are reduced, and whether the model is
updated at all, is read in each step from a variable that was told before (`told.py`), or asked by a
crossing from the graph to Python where it cannot be known before. Crossings run on
TensorFlow's threads, but only while the training thread waits for the function that they are in,
so the session still has one caller at a time. What the class does with gradients (clipping, weight
decay, averages of weights) comes after the reduction. Holds: a step that does not count changes
nothing; nothing is copied on the way but into the buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.errors import UsageError
from edl.plugin.adapter import Array
from edl.tensorflow.plugin import Plugin
from edl.tensorflow.told import ASK, REDUCE, SKIP, UPDATE

__all__ = ["elastic", "is_elastic"]

Update = Callable[[list[Any]], Any]


def elastic(optimizer: Any, model: Any, plugin: Plugin) -> Any:
    """Make this optimizer average gradients over the workers before it applies them."""
    _check(optimizer, model)
    kind = type(optimizer)
    crossing = _Crossing(plugin, plugin.add_optimizer(optimizer))

    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        _refuse_branches()
        pairs = _pairs(self, grads, trainable_variables)
        if not pairs:
            # Keras says what is wrong.
            kind.apply(self, grads, trainable_variables)
            return
        # Also a sparse one, as an embedding's: its rows differ from worker to worker.
        tensors = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]
        names = plugin.names_of(variables)

        def update(gradients: list[Any]) -> Any:
            kind.apply(self, gradients, variables)
            return tf.constant(True)

        if tf.executing_eagerly():
            may, common = crossing.at_once(tensors, names)
            if may:
                update(common)
            return
        crossing.trace(tensors, names, update)

    attributes = {
        "apply": apply,
        "edl_elastic": True,
        # A saved model names its optimizer's class, and must be loaded where EDL is not.
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    optimizer.__class__ = type(kind.__name__, (kind,), attributes)
    if model is not None:
        plugin.add_model(model, optimizer)
    return optimizer


def is_elastic(optimizer: Any) -> bool:
    return bool(getattr(type(optimizer), "edl_elastic", False))


class _Crossing:
    """One optimizer's way from the graph to the session and back."""

    def __init__(self, plugin: Plugin, index: int) -> None:
        self._plugin = plugin
        self._index = index

    def trace(self, tensors: list[Any], names: list[str], update: Update) -> None:
        """Into the present function: update the model as this step is to, if it is to."""
        told = self._plugin.told
        assert told is not None
        said = told.read()

        def alone() -> Any:
            # The update stands here once more: gradients that went through another condition first
            # cost a twentieth of a short step.
            told.say_done()
            return update(tensors)

        def otherwise() -> Any:
            mode = tf.cond(tf.equal(said, ASK), lambda: self._ask_in(tensors), lambda: said)
            may, *common = tf.cond(
                tf.equal(mode, REDUCE),
                lambda: self._reduce_in(tensors, names),
                lambda: [tf.equal(mode, UPDATE), *tensors],
            )
            return tf.cond(may, lambda: update(common), lambda: tf.constant(False))

        tf.cond(tf.equal(said, UPDATE), alone, otherwise)

    def _ask_in(self, tensors: list[Any]) -> Any:
        # When backward has begun, and not when it has ended: alone, a worker updates the last
        # layers while it still computes the gradients of the first.
        with tf.control_dependencies(tensors[-1:]):
            mode = tf.numpy_function(self._asked, [], tf.int64)
        mode.set_shape(())
        return mode

    def _reduce_in(self, tensors: list[Any], names: list[str]) -> list[Any]:
        dtypes = [tensor.dtype for tensor in tensors]
        may, *common = tf.numpy_function(
            lambda *arrays: self._given(names, arrays), tensors, [tf.bool, *dtypes]
        )
        may.set_shape(())
        for after, before in zip(common, tensors, strict=True):
            after.set_shape(before.shape)
        return [may, *common]

    def at_once(self, tensors: list[Any], names: list[str]) -> tuple[bool, list[Any]]:
        """Whether the model is to be updated, and by which gradients."""
        mode = self._ask()
        if mode != REDUCE:
            return bool(mode == UPDATE), tensors
        may, *common = self._reduce(names, [np.asarray(tensor) for tensor in tensors])
        return bool(may), [tf.convert_to_tensor(array) for array in common]

    # TensorFlow would make a text of an exception, and go on as a failed script does.

    def _asked(self) -> np.int64:
        try:
            return self._ask()
        except BaseException as error:
            self._plugin.raised = error
            return SKIP

    def _given(self, names: Sequence[str], arrays: Sequence[Array]) -> list[Any]:
        try:
            return self._reduce(names, arrays)
        except BaseException as error:
            self._plugin.raised = error
            return [np.False_, *arrays]

    def _ask(self) -> np.int64:
        plugin = self._plugin
        if plugin.rehearsing:
            return REDUCE
        plugin.session.ensure_open()
        if plugin.crosses():
            return REDUCE
        plugin.reducer.reduce({})
        return UPDATE if self._may_update() else SKIP

    def _reduce(self, names: Sequence[str], arrays: Sequence[Array]) -> list[Any]:
        if self._plugin.rehearsing:
            return [np.True_, *arrays]
        common = self._plugin.reduce_tensors(names, arrays)
        return [np.bool_(self._may_update()), *common]

    def _may_update(self) -> bool:
        session = self._plugin.session
        may = session.before_update(self._index)
        if may:
            # Nothing comes between this and the update, which other workers make as surely.
            session.updated(self._index)
        return may


def _pairs(optimizer: Any, grads: Any, variables: Any) -> list[tuple[Any, Any]]:
    if variables is None:
        variables = getattr(optimizer, "_trainable_variables", [])
    return [(g, v) for g, v in zip(list(grads), list(variables), strict=False) if g is not None]


def _refuse_branches() -> None:
    if tf.executing_eagerly():
        return
    if type(tf.compat.v1.get_default_graph()).__name__.startswith("CondBranch"):
        raise UsageError(
            "gradients are applied inside a tf.cond, where some workers might go and others not "
            "(keras.optimizers.LossScaleOptimizer does that, also where model.compile adds it for "
            "mixed_float16): wrap the outermost optimizer, as in "
            "edl.Optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))"
        )


def _check(optimizer: object, model: object) -> None:
    """Refuse what cannot work, before anything is changed."""
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(f"edl.Optimizer wraps a Keras optimizer, not a {type(optimizer).__name__}")
    if is_elastic(optimizer):
        raise UsageError("this optimizer is elastic already; wrap it once")
    if is_elastic(getattr(optimizer, "inner_optimizer", None)):
        raise UsageError("the optimizer inside is elastic already; wrap the outermost one only")
    known = ("trainable_variables", "variables")
    if model is not None and not all(hasattr(model, name) for name in known):
        raise UsageError(
            "model= must be a Keras model or a tf.Module, with trainable_variables and variables; "
            f"not a {type(model).__name__}"
        )
