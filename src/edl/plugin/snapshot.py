"""Everything a training of named arrays consists of, copied for a checkpoint, and put back.

Parameters and buffers lie in one file under their own names, so that safetensors loads them without
EDL; slots, registered objects and random generators share a second one. A JSON skeleton says what
goes where. Holds: what `install` puts back equals what `capture` saw bit for bit; `install` refuses
before it has changed anything if the script's variables are not those of the checkpoint.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from edl.errors import CheckpointError, UsageError
from edl.plugin.adapter import Array, Kind
from edl.plugin.state import ArrayState, check_variables, dtype_named, name_of
from edl.plugin.tree import ArrayLeaves, Tree, from_json, labels, shifted, to_json
from edl.runtime.tensorfile import NAMES, Tensors
from edl.runtime.tensorfile import Array as Stored

__all__ = ["capture", "install"]

_MODEL, _REST = "model", "state"

_tree: Tree[Array] = Tree(ArrayLeaves())


def capture(state: ArrayState) -> tuple[dict[str, dict[str, Stored]], dict[str, Any]]:
    """Copies of all arrays by file and name, and the skeleton as plain JSON values."""
    out = _Outgoing()
    adapter = state.adapter
    variables = []
    for variable in adapter.variables():
        file = _REST if variable.kind is Kind.SLOT else _MODEL
        label = f"slot.{variable.name}" if variable.kind is Kind.SLOT else variable.name
        at = out.put(adapter.read(variable.name), file, label)
        variables.append([variable.name, str(variable.kind), at])
    skeleton = {
        "about": adapter.about(),
        "variables": variables,
        "registered": [
            out.add(holder.state_dict(), f"registered.{index}.{type(holder).__name__}")
            for index, holder in enumerate(state.registered)
        ],
        "random": out.add(_random_states(state), "random"),
        "arrays": out.described,
    }
    return out.files, skeleton


class _Outgoing:
    """Copies of arrays, under names that are readable and taken once."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, Stored]] = {_MODEL: {}, _REST: {}}
        self.described: list[dict[str, Any]] = []

    def put(self, array: Array, file: str, label: str) -> int:
        shelf, name = self.files[file], label
        # Two keys may look alike in print, as 1 and "1" do.
        while name in shelf:
            name = f"{label}.{len(self.described)}"
        shelf[name] = _stored(array)
        self.described.append(
            {
                "file": file,
                "name": name,
                "dtype": name_of(array.dtype),
                "shape": list(array.shape),
            }
        )
        return len(self.described) - 1

    def add(self, value: object, path: str) -> Any:
        """The skeleton of any state_dict; its arrays go to the common file."""
        arrays: list[Array] = []
        skeleton = _tree.flatten(value, path, arrays)
        named = dict(labels(skeleton, path))
        at = len(self.described)
        for index, array in enumerate(arrays):
            self.put(array, _REST, named[index])
        return to_json(shifted(skeleton, at))


def _stored(array: Array) -> Stored:
    copy = np.array(array, order="C")
    name = NAMES.get(copy.dtype.name) if copy.dtype.isnative else None
    shape: tuple[int, ...] = copy.shape
    if name is None:
        # The format has no name for it, complex128 for one: its bytes, to be read by us alone.
        name, shape = "U8", (copy.nbytes,)
    if not copy.nbytes:
        return Stored(name, shape, b"")
    flat: Any = copy.reshape(-1).view(np.uint8)
    return Stored(name, shape, memoryview(flat))


def _random_states(state: ArrayState) -> dict[str, Any]:
    """The generators that scripts draw from without naming one."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "framework": state.adapter.randomness(),
    }


def install(state: ArrayState, tensors: Tensors, skeleton: dict[str, Any]) -> None:
    """Make variables and registered objects what they were when they were captured."""
    try:
        arrays = [_view(tensors[d["file"]][d["name"]], d) for d in skeleton["arrays"]]
        about = str(skeleton["about"])
        variables = {str(name): int(at) for name, _, at in skeleton["variables"]}
        values = {name: arrays[at] for name, at in variables.items()}
        registered = [_tree.unflatten(from_json(part), arrays) for part in skeleton["registered"]]
        randomness = _tree.unflatten(from_json(skeleton["random"]), arrays)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's state makes no sense to this plug-in ({error!r}): it was written "
            "by another framework's plug-in, or by hand; go on with the script that wrote it, or "
            "give another --checkpoint folder"
        ) from None
    _check(state, about, values, len(registered))
    for name, value in values.items():
        state.adapter.write(name, value)
    for holder, value in zip(state.registered, registered, strict=True):
        holder.load_state_dict(value)
    random.setstate(randomness["python"])
    np.random.set_state(randomness["numpy"])
    state.adapter.set_randomness(randomness["framework"])


def _check(state: ArrayState, about: str, values: dict[str, Array], registered: int) -> None:
    """Refuse what is not of this script."""
    if registered != len(state.registered):
        raise UsageError(
            f"the checkpoint has {registered} registered objects, this script "
            f"{len(state.registered)}; resume with the script that wrote it, or give the job "
            "another checkpoint folder"
        )
    if about != state.adapter.about():
        raise UsageError(
            f"the checkpoint is of {about}, this script trains {state.adapter.about()}; resume "
            "with the script that wrote it, or give the job another checkpoint folder"
        )
    if values.keys() - {variable.name for variable in state.adapter.variables()}:
        state.adapter.make_slots()
    described = {name: [name_of(a.dtype), list(a.shape)] for name, a in values.items()}
    check_variables(state.adapter, described, "the checkpoint")


def _view(stored: Stored, described: dict[str, Any]) -> Array:
    """An array of its own, so that nobody holds the whole file in memory."""
    array: Array = np.empty(tuple(described["shape"]), dtype_named(described["dtype"]))
    if len(stored.data) != array.nbytes:
        raise ValueError(f"{described['name']!r} has {len(stored.data)} bytes, not {array.nbytes}")
    if array.nbytes:
        array.reshape(-1).view(np.uint8)[:] = np.frombuffer(stored.data, dtype=np.uint8)
    return array
