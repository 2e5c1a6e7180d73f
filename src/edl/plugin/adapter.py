"""The port of a framework whose model is a set of named arrays.

Whoever fills it says which variables there are and how to read and write one; the rest of this
room does everything else. Holds, and the contract suite checks: the same variables under the same
names, in the same order, on every worker that ran the same script.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

__all__ = ["Adapter", "Array", "Kind", "Variable"]

Array = np.ndarray[Any, np.dtype[Any]]


class Kind(StrEnum):
    """What a variable is to the training."""

    PARAMETER = "parameter"
    """Has a gradient, which is averaged; every worker makes the same update."""
    SLOT = "slot"
    """The optimizer's: moments, step counts, learning rates. Equal everywhere, never averaged."""
    BUFFER = "buffer"
    """Each worker's own between two boundaries, as BatchNorm's statistics: evened out at a switch
    and at each loop's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One named array of the model."""

    name: str  # unique; a checkpoint has it under this name
    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Adapter(Protocol):
    """A model, as this room knows it. All calls come on the training thread but `read`s, which a
    stream's thread may still look at."""

    def variables(self) -> Sequence[Variable]:
        """Every variable there is now. Slots may come later, when the optimizer first steps."""
        ...

    def read(self, name: str) -> Array:
        """The variable's value, without a copy if that can be."""
        ...

    def place(self, name: str) -> Array | None:
        """Memory in which the variable's value may be received; None: `write` has to be called."""
        ...

    def write(self, name: str, value: Array) -> None:
        """Make this the variable's value; the array is the caller's."""
        ...

    def version(self, name: str) -> Hashable | None:
        """What differs once the variable was changed; None: only its value tells.

        With a version, an array that `read` gave must keep its value when the variable changes, or
        change with it; without, this room takes copies where it matters.
        """
        ...

    def make_slots(self) -> None:
        """Let the optimizer make what it would make in its first step, if it has not yet."""
        ...

    def held(self) -> Sequence[str]:
        """Small variables that scripts change beside updates, such as learning rates. They are put
        back after a step that did not count, and reach a newcomer before its first one."""
        ...

    def about(self) -> str:
        """The model in a few words; the same on every worker, and in whoever resumes."""
        ...

    def randomness(self) -> dict[str, Any]:
        """The framework's own random generators, as plain values and arrays, for checkpoints."""
        ...

    def set_randomness(self, states: dict[str, Any]) -> None:
        """What `randomness` gave."""
        ...
