"""A model of named arrays and registered objects, sent to new workers and received from old ones.

The manifest says which variables come, the arrays follow as bytes (see collective/streaming.py).
Holds: when `finish` returns on both sides, the receiver's variables and registered objects equal
the sender's bit for bit, as of the moment `start_sending` was called, with what the sender's script
changed since and before the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edl.errors import UsageError
from edl.plugin.adapter import Adapter, Array, Kind, Variable
from edl.plugin.holding import Holder
from edl.plugin.tree import ArrayLeaves, Tree, decode, encode
from edl.runtime.framework import StatePath, Transfer

__all__ = ["ArrayState", "check_variables", "dtype_named", "name_of"]

# Registered objects up to this size are there when the newcomer's first step begins.
_EARLY = 4 << 20

_tree: Tree[Array] = Tree(ArrayLeaves())


class ArrayState:
    """Everything that makes two workers replicas of each other."""

    def __init__(self, adapter: Adapter, reduction: str) -> None:
        self.adapter = adapter
        self.registered: list[Holder] = []
        self.reduction = reduction  # how gradients are reduced, in words

    def about(self) -> str:
        return f"{self.adapter.about()} with {self.reduction}"

    # -- sending ---------------------------------------------------------------------------

    def start_sending(
        self, path: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]:
        """Read what changes during a step now; stream the bytes in the background."""
        from edl.collective.streaming import send

        arrays: list[Array] = []
        manifest: dict[str, Any] = {"snapshot": snapshot, "bare": bare, "early": 0}
        watched: list[tuple[int, Variable, object]] = []
        if not bare:
            watched = self._capture(manifest, arrays)
        manifest["extra"] = _tree.flatten(extra, "extra", arrays)
        manifest["arrays"] = [[name_of(a.dtype), list(a.shape)] for a in arrays]

        def changed() -> list[tuple[int, Any]]:
            again = []
            for at, variable, version in watched:
                now = self.adapter.read(variable.name)
                # Without a version what was sent is a copy, and tells by its value.
                if version is None:
                    same = _same(arrays[at], now)
                else:
                    same = self.adapter.version(variable.name) == version
                if not same:
                    again.append((at, _row(np.array(now, order="C"))))
            return again

        rows = [_row(array) for array in arrays]
        early: int = manifest["early"]
        return send(path, encode(manifest), rows, early=early, changed=changed)

    def _capture(
        self, manifest: dict[str, Any], arrays: list[Array]
    ) -> list[tuple[int, Variable, object]]:
        """Manifest and arrays; and which of them may change behind the stream's back."""
        adapter = self.adapter
        held = set(adapter.held())
        # What is held comes first and is there before the newcomer's first step, for its script to
        # change likewise, however heavy registered objects are.
        variables = sorted(adapter.variables(), key=lambda v: v.name not in held)
        first = sum(variable.name in held for variable in variables)
        rows: list[list[str | int]] = []
        for variable in variables[:first]:
            rows.append([variable.name, str(variable.kind), len(arrays)])
            arrays.append(np.array(adapter.read(variable.name), order="C"))
        registered = [
            _tree.flatten(holder.state_dict(), f"{type(holder).__name__}.state_dict()", arrays)
            for holder in self.registered
        ]
        light = sum(array.nbytes for array in arrays[first:]) <= _EARLY
        # They are used while they travel: a copy stays as it was.
        arrays[first:] = [np.array(array, order="C") for array in arrays[first:]]
        early = len(arrays) if light else first
        watched = []
        for variable in variables[first:]:
            version = adapter.version(variable.name)
            value = adapter.read(variable.name)
            copies = version is None or variable.kind is Kind.BUFFER
            if variable.kind is not Kind.BUFFER:
                # Buffers are evened out after the first step, whatever becomes of them in it.
                watched.append((len(arrays), variable, None if copies else version))
            rows.append([variable.name, str(variable.kind), len(arrays)])
            arrays.append(np.array(value, order="C") if copies else value)
        manifest.update(
            about=self.about(), registered=registered, light=light, early=early, variables=rows
        )
        return watched

    # -- receiving -------------------------------------------------------------------------

    def start_receiving(
        self, path: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]:
        """The source's snapshot now; its state once the result has been called."""
        from edl.collective.streaming import Arrival, take_manifest

        blob = take_manifest(path)
        manifest = decode(blob)
        if not manifest["bare"]:
            self._check(manifest)
        arrays = self._places(manifest, aside=aside)
        early: int = manifest["early"]
        arrival = Arrival(path, blob, [_row(array) for array in arrays], early=early)
        if not aside:
            self._install(manifest, arrays, early=True)
        arrived = arrival.begin()

        def finish() -> Transfer:
            moved = arrived()
            if aside:
                self._install(manifest, arrays, early=True)
            self._install(manifest, arrays, early=False)
            if manifest["extra"] is not None:
                manifest["snapshot"]["extra"] = _tree.unflatten(manifest["extra"], arrays)
            return moved

        return manifest["snapshot"], finish

    def _check(self, manifest: dict[str, Any]) -> None:
        if len(manifest["registered"]) != len(self.registered):
            raise UsageError(
                f"the job has {len(manifest['registered'])} registered, this worker "
                f"{len(self.registered)}; every worker must run the same script up to its "
                "training loop"
            )
        if manifest["about"] != self.about():
            raise UsageError(
                f"the job trains {manifest['about']}, this worker {self.about()}; every worker "
                "must run the same script up to its training loop"
            )
        theirs = {name: manifest["arrays"][at] for name, _, at in manifest["variables"]}
        if theirs.keys() - {variable.name for variable in self.adapter.variables()}:
            # The job's optimizer has stepped already, this one has not.
            self.adapter.make_slots()
        check_variables(self.adapter, theirs, "the job")

    def _places(self, manifest: dict[str, Any], *, aside: bool) -> list[Array]:
        """Where each array goes: the variable's own memory if that can be, or new memory."""
        places: dict[int, Array] = {}
        if not aside and not manifest["bare"]:
            for name, _, at in manifest["variables"]:
                place = self.adapter.place(name)
                if place is not None and place.flags.c_contiguous and place.flags.writeable:
                    places[at] = place
        described = manifest["arrays"]
        return [
            places[at] if at in places else np.empty(tuple(shape), dtype_named(dtype))
            for at, (dtype, shape) in enumerate(described)
        ]

    def _install(self, manifest: dict[str, Any], arrays: list[Array], *, early: bool) -> None:
        """What a newcomer's first step may use, as learning rates, comes early; or all the rest."""
        if manifest["bare"]:
            return
        if early == manifest["light"]:
            for holder, skeleton in zip(self.registered, manifest["registered"], strict=True):
                holder.load_state_dict(_tree.unflatten(skeleton, arrays))
        for name, _, at in manifest["variables"]:
            if (at < manifest["early"]) is early and arrays[at] is not self.adapter.place(name):
                self.adapter.write(name, arrays[at])


def check_variables(adapter: Adapter, theirs: dict[str, Any], whose: str) -> None:
    """Refuse variables that are not this script's; `theirs` has dtype and shape by name.

    Slots that only this worker has are as its optimizer made them, and nobody else's yet.
    """
    mine = {variable.name: variable for variable in adapter.variables()}
    for name, (dtype, shape) in theirs.items():
        if name not in mine:
            raise UsageError(
                f"{whose} has a variable {name!r}, this worker's script has none of that name; "
                "it must be the same script"
            )
        here = mine.pop(name)
        if (name_of(here.dtype), here.shape) != (dtype, tuple(shape)):
            raise UsageError(
                f"{name!r} is {dtype} {tuple(shape)} in {whose}, and {here.dtype} {here.shape} in "
                "this worker's script; it must be the same script"
            )
    for name, variable in mine.items():
        if variable.kind is not Kind.SLOT:
            raise UsageError(
                f"this worker's script has a variable {name!r}, {whose} has none of that name; "
                "it must be the same script"
            )


def _row(array: Array) -> Any:
    """The array's memory as a row of bytes that torch can send and fill."""
    from edl.collective.carrying import carried

    return carried(array)


def _same(one: Array, other: Array) -> bool:
    """Bit for bit: a NaN is equal to itself."""
    return one.tobytes() == np.ascontiguousarray(other).tobytes()


def name_of(dtype: np.dtype[Any]) -> str:
    """A dtype by which both sides mean the same: with its byte order, or by its registered name."""
    if dtype.hasobject or dtype.names is not None:
        raise UsageError(f"an array of {dtype} can neither be sent nor be kept in a checkpoint")
    return dtype.name if dtype.kind == "V" else dtype.str


def dtype_named(name: str) -> np.dtype[Any]:
    """The inverse of `name_of`; what others registered, as bfloat16, is known once they are
    imported."""
    return np.dtype(name)
