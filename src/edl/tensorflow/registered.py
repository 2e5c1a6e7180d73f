"""What scripts register with TensorFlow's kind of state, as objects with a `state_dict`."""

from __future__ import annotations

import copy
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sized
from datetime import timedelta
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.errors import UsageError
from edl.runtime.tensorfile import NAMES

__all__ = ["Memories", "Memory", "Variables", "holder_of", "is_remembered"]

_log = logging.getLogger(__name__)


class Variables:
    """A metric, a module, or a variable."""

    def __init__(self, held: Any) -> None:
        self._held = held

    def _each(self) -> list[Any]:
        return [self._held] if hasattr(self._held, "assign") else list(self._held.variables)

    def state_dict(self) -> dict[str, Any]:
        return {"values": [np.array(variable) for variable in self._each()]}

    def compared(self) -> list[Any]:
        """Values that must be equal on all workers.

        A metric counts its own worker's rows, and a layer's statistics and random seeds are its
        own worker's too.
        """
        if isinstance(self._held, keras.metrics.Metric):
            return []
        if isinstance(self._held, keras.layers.Layer):
            return [np.array(variable) for variable in self._held.trainable_variables]
        return [np.array(variable) for variable in self._each()]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        mine = self._each()
        if len(mine) != len(state["values"]):
            raise UsageError(
                f"{type(self._held).__name__} has {len(mine)} variables here and "
                f"{len(state['values'])} in the job; make them before the training loop"
            )
        for variable, value in zip(mine, state["values"], strict=True):
            variable.assign(tf.convert_to_tensor(value))


class Memory:
    """A Keras callback's: which of its numbers, texts and arrays training has changed.

    A worker that joins is given them while `fit` begins, and some callbacks forget everything
    when they hear that training begins; so they are given once more after that. What it was made
    with or found when training began is its own: a path, say, or a rank.
    """

    def __init__(self, held: Any) -> None:
        self._held = held
        self._given: dict[str, Any] = {}
        self._own: dict[str, Any] | None = None  # as training found it
        self._untold: dict[str, Any] = {}  # what cannot be sent, then or when it was told of
        # Some have them as attributes of their own: keras.callbacks.LambdaCallback.
        self._hooks = {name: vars(held).get(name) for name in ("on_train_begin", "on_train_end")}
        begin, end = held.on_train_begin, held.on_train_end

        def on_train_begin(logs: Any = None) -> None:
            begin(logs)
            self._own = copy.deepcopy(_public(held))
            self._untold = {name: _glance(value) for name, value in _unsendable(held)}
            given, self._given = self._given, {}
            vars(held).update(given)

        def on_train_end(logs: Any = None) -> None:
            self._own = None
            end(logs)

        held.on_train_begin, held.on_train_end = on_train_begin, on_train_end
        held.edl_remembered = True

    def state_dict(self) -> dict[str, Any]:
        own = self._own
        if own is None:
            return self._given
        self._tell_of_unsendable()
        now = _public(self._held).items()
        return {name: value for name, value in now if not _same(own.get(name, _NEW), value)}

    def _tell_of_unsendable(self) -> None:
        """Once of each that training changes."""
        for name, value in _unsendable(self._held):
            if name in self._untold and self._untold[name] in (_TOLD, _glance(value)):
                continue
            self._untold[name] = _TOLD
            kind = type(self._held).__name__
            _log.warning(
                "%s.%s (%s) changes while it trains and cannot be sent: a new worker begins with "
                "its own; keep numbers, texts, arrays, lists, dicts and sets, or give %s a "
                "state_dict() and a load_state_dict()",
                *(kind, name, type(value).__name__, kind),
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._own is None:
            # Not before training begins: what is given is no part of what that finds.
            self._given = state
        else:
            # What is not told of is as training found it, or was not there yet. But what is no
            # number, text or array by now is told of by nobody, and stays.
            present = _public(self._held)
            kept = vars(self._held).keys() - present.keys()
            own = {name: value for name, value in self._own.items() if name not in kept}
            whole = {**copy.deepcopy(own), **state}
            for name in present.keys() - whole.keys():
                delattr(self._held, name)
            vars(self._held).update(whole)

    def forget(self) -> None:
        """Its `fit` is over: it is as it was made, and may be used again."""
        del self._held.edl_remembered
        for name, hook in self._hooks.items():
            if hook is None:
                delattr(self._held, name)
            else:
                setattr(self._held, name, hook)


class Memories:
    """What all callbacks of the present `fit` remember, in one object that is always registered.

    A script may call `fit` several times, with callbacks of its own each time, and a worker that
    joins in a later one goes through the earlier ones first, where there is nothing left to do. So
    memories have names: which `fit`, which place among its callbacks, and what kind.
    """

    def __init__(self) -> None:
        self._fits = 0
        self._present: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    @property
    def fits(self) -> int:
        """How many have begun."""
        return self._fits

    def begin(self, callbacks: Iterable[Any]) -> None:
        """A `fit` begins with these, those that remember nothing left out."""
        self.end()  # one that broke has not said so
        self._fits += 1
        for place, callback in enumerate(callbacks):
            name = f"{self._fits}.{place}.{type(callback).__name__}"
            holder = self._present[name] = holder_of(callback)
            if name in self._given:
                holder.load_state_dict(self._given.pop(name))

    def end(self) -> None:
        for holder in self._present.values():
            if isinstance(holder, Memory):
                holder.forget()
        self._present = {}

    def state_dict(self) -> dict[str, Any]:
        return {name: holder.state_dict() for name, holder in self._present.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, given in state.items():
            if name in self._present:
                self._present[name].load_state_dict(given)
            else:
                self._given[name] = given


_NEW, _TOLD = object(), object()
# Kinds of values in which callbacks keep what they remember; not functions, files and models.
_KEPT = (list, tuple, dict, set, frozenset, deque, complex, timedelta, np.ndarray, np.generic)


def _public(held: Any) -> dict[str, Any]:
    known = {n: v for n, v in vars(held).items() if n[0] != "_" and _plain(v)}
    # No memory: Keras turns its sign in each worker, when it first compares.
    known.pop("min_delta", None)
    return known


def _unsendable(held: Any) -> list[tuple[str, Any]]:
    found = ((n, v) for n, v in vars(held).items() if n[0] != "_" and isinstance(v, _KEPT))
    return [(name, value) for name, value in found if not _plain(value)]


def _glance(value: Any) -> tuple[int, int]:
    """By which most changes are noticed, at no cost: another object, or a longer one."""
    sized = isinstance(value, Sized) and not isinstance(value, np.ndarray)
    return id(value), len(value) if sized else 0


def _same(left: object, right: object) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, (set, bytes)):
        return left == right
    return bool(np.array_equal(left, right))  # type: ignore[arg-type]


def is_remembered(callback: Any) -> bool:
    """Whether its memory follows a new worker already."""
    return bool(getattr(callback, "edl_remembered", False))


def _plain(value: Any) -> bool:
    """Whether it can be sent and kept, and is then what it was: exact types, for a named tuple is
    no tuple to whoever made it."""
    kind = type(value)
    if isinstance(value, np.str_):
        return True
    if isinstance(value, np.generic) or kind is np.ndarray:
        return str(value.dtype) in NAMES
    if isinstance(value, (list, tuple, set)):
        return kind in (list, tuple, set) and all(map(_plain, value))
    if isinstance(value, dict):
        known = kind in (dict, OrderedDict, Counter)
        return known and all(map(_plain, value)) and all(map(_plain, value.values()))
    return value is None or kind in (bool, int, float, str, bytes)


def holder_of(given: Any) -> Any:
    """The object itself if it is one to register, else one that is."""
    if all(callable(getattr(given, name, None)) for name in ("state_dict", "load_state_dict")):
        return given
    if isinstance(given, keras.callbacks.Callback):
        return Memory(given)
    if hasattr(given, "assign") or hasattr(given, "variables"):
        return Variables(given)
    raise UsageError(
        "edl.register needs state_dict() and load_state_dict(), TensorFlow's variables, or a Keras "
        "callback; "
        f"{type(given).__name__} has neither"
    )
