"""The arrays that a script shares, as the plug-in room knows them (see plugin/adapter.py).

Owns: which arrays are the model, by name. Holds: their memory stays the script's own; what is
received or put back is written into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from edl.errors import UsageError
from edl.plugin.adapter import Array, Kind, Variable

__all__ = ["SharedArrays"]


class SharedArrays:
    """An adapter to nothing but NumPy."""

    def __init__(self) -> None:
        self._arrays: dict[str, Array] = {}
        self._kinds: dict[str, Kind] = {}

    def add(self, kind: Kind, arrays: Mapping[str, Any]) -> None:
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise UsageError(f"{name} is a {type(array).__name__}; share NumPy arrays")
            if not array.flags.writeable:
                raise UsageError(f"{name} cannot be written to; share an array of its own")
            if kind is Kind.PARAMETER and array.dtype.kind != "f":
                raise UsageError(
                    f"{name} is of {array.dtype}, which has no gradient; give it to "
                    "edl.share_state or edl.share_buffers"
                )
            if name in self._arrays:
                raise UsageError(f"{name} is shared already; give another name")
            self._arrays[name], self._kinds[name] = array, kind

    def parameters(self) -> list[str]:
        return [name for name, kind in self._kinds.items() if kind is Kind.PARAMETER]

    def updated(self) -> dict[str, Array]:
        """What an update changes: all but buffers."""
        kinds = self._kinds
        return {name: a for name, a in self._arrays.items() if kinds[name] is not Kind.BUFFER}

    # -- the port --------------------------------------------------------------------------

    def variables(self) -> Sequence[Variable]:
        return [
            Variable(name=name, kind=self._kinds[name], shape=array.shape, dtype=array.dtype)
            for name, array in self._arrays.items()
        ]

    def read(self, name: str) -> Array:
        return self._arrays[name]

    def place(self, name: str) -> Array | None:
        return self._arrays[name]

    def write(self, name: str, value: Array) -> None:
        self._arrays[name][...] = value

    def version(self, name: str) -> None:
        """An array does not tell that it was changed."""

    def make_slots(self) -> None:
        """The script made all of them."""

    def held(self) -> Sequence[str]:
        return ()

    def about(self) -> str:
        return "arrays"

    def randomness(self) -> dict[str, Any]:
        return {}

    def set_randomness(self, states: dict[str, Any]) -> None:
        """NumPy's own is kept with every plug-in's."""
