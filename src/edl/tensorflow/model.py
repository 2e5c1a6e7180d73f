"""Keras models and optimizers as named arrays (see plugin/adapter.py).

Owns: which models and optimizers are elastic. Trainable variables are averaged; statistics, as
BatchNorm's, are evened out; what was frozen, the optimizer's slots, its step count and learning
rate are the same everywhere. Random seeds of layers, as Dropout's, are each worker's own, and only
a checkpoint has them. Holds: the same variables under the same names on every worker that ran the
same script.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.errors import UsageError
from edl.plugin.adapter import Array, Kind, Variable

__all__ = ["Models", "key_of", "memory_of"]


def _plain(variable: Any) -> Any:
    """TensorFlow's own variable of a Keras one."""
    return variable.value if isinstance(variable, keras.Variable) else variable


def key_of(variable: Any) -> Any:
    """What a variable is recognised by."""
    return _plain(variable)._unique_id


class Models:
    """The adapter."""

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self._found: dict[str, Any] = {}
        self._variables: list[Variable] = []
        self._names: dict[Any, str] = {}
        self._statistics: set[str] = set()
        self._places: weakref.WeakValueDictionary[str, Array] = weakref.WeakValueDictionary()
        self._ready: dict[str, Array] = {}  # places that were made for a state that will come

    def add_model(self, model: Any) -> None:
        if any(model is known for known in self.models):
            return
        if not getattr(model, "built", True) or not model.trainable_variables:
            raise UsageError(
                f"the model {getattr(model, 'name', model)!r} has no variables yet, so no other "
                "worker can be given them: begin it with keras.Input(...), or call "
                "model.build(input_shape), before edl.Optimizer and model.fit"
            )
        self.models.append(model)
        self._look()

    def add_optimizer(self, optimizer: Any) -> None:
        if not any(optimizer is known for known in self.optimizers):
            self.optimizers.append(optimizer)
        self._look()

    def look_again(self) -> None:
        """A model was changed, as by freezing some of it."""
        self._look()

    def knows(self, variable: Any) -> bool:
        return key_of(variable) in self._names

    def name_of(self, variable: Any) -> str:
        return self._names[key_of(variable)]

    def _look(self) -> None:
        self._found, self._variables, self._names = {}, [], {}
        for variable, kind, label in self._each():
            if key_of(variable) in self._names:
                continue
            name = label
            while name in self._found:
                # Keras does not insist on names that are unique.
                name = f"{label}#{len(self._found)}"
            own = _plain(variable)
            self._found[name] = own
            self._names[key_of(variable)] = name
            dtype = np.dtype(tf.as_dtype(own.dtype).as_numpy_dtype)
            shape = tuple(int(size) for size in own.shape)
            self._variables.append(Variable(name=name, kind=kind, shape=shape, dtype=dtype))
        self._statistics = {v.name for v in self._variables if v.kind is Kind.BUFFER}

    def _each(self) -> Iterator[tuple[Any, Kind, str]]:
        for model in self.models:
            for variable in model.trainable_variables:
                yield variable, Kind.PARAMETER, _label(variable)
            statistics = {key_of(variable) for variable in _statistics(model)}
            for variable in getattr(model, "weights", model.variables):
                kind = Kind.BUFFER if key_of(variable) in statistics else Kind.SLOT
                yield variable, kind, _label(variable)
        for index, optimizer in enumerate(self.optimizers):
            # Built without a model of ours: these are all that is known of it.
            for variable in getattr(optimizer, "_trainable_variables", ()):
                yield variable, Kind.PARAMETER, _label(variable)
            for variable in optimizer.variables:
                yield variable, Kind.SLOT, f"optimizer{index}/{_label(variable)}"

    # -- the port --------------------------------------------------------------------------

    def variables(self) -> Sequence[Variable]:
        return self._variables

    def read(self, name: str) -> Array:
        """The variable's own memory. TensorFlow copies a variable that somebody still looks at
        before it changes it, so this stays what it is."""
        own = self._found[name]
        value = tf.raw_ops.ReadVariableOp(resource=own.handle, dtype=own.dtype)
        array: Array = np.asarray(value)
        return array

    def place(self, name: str) -> Array | None:
        """The variable's own memory; not a statistic's, which changes in a newcomer's first step.

        As long as it is held, an update would move the variable out of it: nobody updates a model
        that is being received.
        """
        place = self._places.get(name)
        if place is None and name not in self._statistics:
            place = self._ready.pop(name, None)
            if place is None:
                place = memory_of(self._found[name])
            if place is not None:
                self._places[name] = place
        return place

    def make_places(self) -> None:
        """Now, since it takes a while."""
        for variable in self._variables:
            place = self.place(variable.name)
            if place is not None:
                self._ready[variable.name] = place

    def write(self, name: str, value: Array) -> None:
        self._ready.pop(name, None)
        # A tensor of a numpy array is a copy of it.
        self._found[name].assign(tf.convert_to_tensor(value))

    def version(self, name: str) -> int:
        """Where its memory is: as long as an earlier reading is held, a change moves it."""
        return int(self.read(name).ctypes.data)

    def make_slots(self) -> None:
        """They are made with the optimizer."""

    def held(self) -> Sequence[str]:
        rates = (getattr(o, "_learning_rate", None) for o in self._steppers())
        return [self._names[key_of(rate)] for rate in rates if _is_variable(rate)]

    def _steppers(self) -> Iterator[Any]:
        for optimizer in self.optimizers:
            # One that scales the loss has another inside.
            yield getattr(optimizer, "inner_optimizer", optimizer)

    def about(self) -> str:
        names = [type(optimizer).__name__ for optimizer in self.optimizers]
        kinds = [variable.kind for variable in self._variables]
        return (
            f"{kinds.count(Kind.PARAMETER)} trainable and {kinds.count(Kind.BUFFER)} other "
            f"variables by {' and '.join(names) or 'no optimizer'}"
        )

    def randomness(self) -> dict[str, Any]:
        return {"seeds": [np.array(seed) for seed in self._seeds()]}

    def set_randomness(self, states: dict[str, Any]) -> None:
        for seed, state in zip(self._seeds(), states["seeds"], strict=False):
            seed.assign(tf.convert_to_tensor(state))

    def _seeds(self) -> list[Any]:
        found = []
        for model in self.models:
            weights = {key_of(variable) for variable in getattr(model, "weights", ())}
            if weights:
                found += [_plain(v) for v in model.variables if key_of(v) not in weights]
        return found


def memory_of(variable: Any) -> Array | None:
    """A variable's memory, to be written to; None: it cannot be had.

    First the variable is given memory of its own: TensorFlow lets variables share it until one of
    them is changed.
    """
    value = tf.raw_ops.DeepCopy(
        x=tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    )
    variable.assign(value)
    mine: Array = np.asarray(value)
    now: Array = np.asarray(
        tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    )
    if not mine.nbytes or now.ctypes.data != mine.ctypes.data:
        return None
    memory = (ctypes.c_uint8 * mine.nbytes).from_address(mine.ctypes.data)
    memory.kept = value  # type: ignore[attr-defined]  # for as long as the memory is used
    row: Array = np.ctypeslib.as_array(memory)
    return row.view(mine.dtype).reshape(mine.shape)


def _is_variable(value: Any) -> bool:
    return isinstance(value, (keras.Variable, tf.Variable))


def _label(variable: Any) -> str:
    return str(getattr(variable, "path", variable.name))


def _statistics(model: Any) -> list[Any]:
    """What layers made as not trainable; not what was frozen later."""
    layers = getattr(model, "_flatten_layers", None)
    if layers is None:
        return [variable for variable in model.variables if not variable.trainable]
    return [v for layer in layers() for v in getattr(layer, "_non_trainable_variables", ())]
