"""A state_dict as plain values plus a list of leaves, its arrays, and back. No pickle.

What a scheduler, scaler or optimizer keeps is numbers, strings, containers and arrays. The
skeleton travels as msgpack, and lies in a checkpoint as JSON, with arrays replaced by their place
in the list. Anything else is refused by its path, so that nothing is silently left behind. What
counts as an array is the plug-in's business: it says so by `Leaves`.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np

from edl.errors import UsageError

__all__ = [
    "ArrayLeaves",
    "Leaves",
    "Tree",
    "decode",
    "encode",
    "from_json",
    "labels",
    "shifted",
    "to_json",
]

_Leaf = TypeVar("_Leaf")

_MAPS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "defaultdict": lambda pairs: defaultdict(None, pairs),
}
_ROWS: dict[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "set": set}


class Leaves(Protocol[_Leaf]):
    """Which values of a framework are not plain."""

    name: str  # what its arrays are called in messages
    rows: Mapping[str, Callable[[list[Any]], Any]]  # its own kinds of tuple, by class name

    def taken(self, value: object) -> tuple[str, _Leaf] | None:
        """The kind and the array that this value is; None: it is no array."""
        ...

    def given(self, kind: str, leaf: _Leaf) -> Any:
        """The value again."""
        ...

    def named(self, value: object) -> dict[str, Any] | None:
        """A constant of the framework as a skeleton with a "$" of its own; None: it is none."""
        ...

    def meant(self, skeleton: dict[str, Any]) -> Any:
        """The constant again."""
        ...


class ArrayLeaves:
    """NumPy's arrays and nothing else."""

    name = "arrays"
    rows: Mapping[str, Callable[[list[Any]], Any]] = {}

    def taken(self, value: object) -> tuple[str, np.ndarray[Any, Any]] | None:
        return ("array", value) if isinstance(value, np.ndarray) else None

    def given(self, kind: str, leaf: np.ndarray[Any, Any]) -> Any:
        return leaf

    def named(self, value: object) -> dict[str, Any] | None:
        return None

    def meant(self, skeleton: dict[str, Any]) -> Any:
        raise ValueError(f"{skeleton.get('$')!r} means nothing to this plug-in")


class Tree(Generic[_Leaf]):
    """Values of one framework, taken apart and put together."""

    def __init__(self, leaves: Leaves[_Leaf]) -> None:
        self._leaves = leaves
        self._rows = {**_ROWS, **leaves.rows}

    def flatten(self, value: object, path: str, found: list[_Leaf]) -> Any:
        """The skeleton of a value; its arrays are appended to the list."""
        if value is None or isinstance(value, (bool, str, bytes)):
            return value
        taken = self._leaves.taken(value)
        if taken is not None:
            kind, leaf = taken
            found.append(leaf)
            return {"$": kind, "at": len(found) - 1}
        if isinstance(value, np.generic):
            return self.flatten(value.item(), path, found)
        if isinstance(value, int):
            return value if -(2**63) <= value < 2**63 else {"$": "int", "text": str(value)}
        if isinstance(value, float):
            return float(value)
        named = self._leaves.named(value)
        if named is not None:
            return named
        kind = type(value).__name__
        if isinstance(value, dict) and kind in _MAPS:
            pairs = [
                [
                    self.flatten(k, f"{path}[key]", found),
                    self.flatten(v, f"{path}[{k!r}]", found),
                ]
                for k, v in value.items()
            ]
            return {"$": kind, "pairs": pairs}
        if isinstance(value, (list, tuple, set)) and kind in self._rows:
            rows = [self.flatten(v, f"{path}[{i}]", found) for i, v in enumerate(value)]
            return {"$": kind, "rows": rows}
        raise UsageError(
            f"{path} is a {type(value).__module__}.{kind}, which can neither be sent to a new "
            "worker nor be kept in a checkpoint; "
            f"state_dict() may hold {self._leaves.name}, numbers, strings, dicts, lists, tuples "
            "and sets"
        )

    def unflatten(self, skeleton: Any, leaves: list[_Leaf]) -> Any:
        """The inverse of `flatten`."""
        if not isinstance(skeleton, dict):
            return skeleton
        kind = skeleton["$"]
        if "at" in skeleton:
            return self._leaves.given(kind, leaves[skeleton["at"]])
        if kind == "int":
            return int(skeleton["text"])
        if kind in _MAPS:
            pairs = [
                (self.unflatten(k, leaves), self.unflatten(v, leaves)) for k, v in skeleton["pairs"]
            ]
            return _MAPS[kind](pairs)
        if kind in self._rows:
            return self._rows[kind]([self.unflatten(row, leaves) for row in skeleton["rows"]])
        return self._leaves.meant(skeleton)


def labels(skeleton: Any, path: str) -> Iterator[tuple[int, str]]:
    """For each array of a skeleton, where it is found in the value, in words."""
    if not isinstance(skeleton, dict):
        return
    if "at" in skeleton:
        yield skeleton["at"], path
    for index, row in enumerate(skeleton.get("rows", ())):
        yield from labels(row, f"{path}.{index}")
    for key, value in skeleton.get("pairs", ()):
        yield from labels(key, f"{path}.key")
        yield from labels(value, f"{path}.{key}" if isinstance(key, (str, int)) else path)


def shifted(skeleton: Any, by: int) -> Any:
    """The same skeleton, its arrays being counted from another place in a longer list."""
    if isinstance(skeleton, list):
        return [shifted(item, by) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    moved = {key: shifted(value, by) for key, value in skeleton.items() if key != "at"}
    return {**moved, "at": skeleton["at"] + by} if "at" in skeleton else moved


def encode(skeleton: Any) -> bytes:
    """A skeleton as bytes."""
    return msgspec.msgpack.encode(skeleton)


def decode(blob: bytes) -> Any:
    """The inverse of `encode`."""
    return msgspec.msgpack.decode(blob)


def to_json(skeleton: Any) -> Any:
    """A skeleton in strict JSON, which has neither bytes nor infinity."""
    if isinstance(skeleton, bytes):
        return {"$": "bytes", "hex": skeleton.hex()}
    if isinstance(skeleton, float) and not math.isfinite(skeleton):
        return {"$": "float", "text": repr(skeleton)}
    if isinstance(skeleton, dict):
        return {key: to_json(value) for key, value in skeleton.items()}
    if isinstance(skeleton, list):
        return [to_json(value) for value in skeleton]
    return skeleton


def from_json(skeleton: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(skeleton, list):
        return [from_json(value) for value in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if skeleton.get("$") == "bytes":
        return bytes.fromhex(skeleton["hex"])
    if skeleton.get("$") == "float":
        return float(skeleton["text"])
    return {key: from_json(value) for key, value in skeleton.items()}
