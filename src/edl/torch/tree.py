"""torch's values in a state_dict: tensors, sizes and dtypes (see plugin/tree.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from edl.plugin.tree import Tree, decode, encode, from_json, labels, shifted, to_json

__all__ = [
    "decode",
    "encode",
    "flatten",
    "from_json",
    "labels",
    "matched",
    "shifted",
    "to_json",
    "unflatten",
]


class _Leaves:
    name = "tensors"
    rows: Mapping[str, Callable[[list[Any]], Any]] = {"Size": torch.Size}

    def taken(self, value: object) -> tuple[str, torch.Tensor] | None:
        if isinstance(value, torch.Tensor):
            return "tensor", value
        if isinstance(value, np.ndarray):
            return "array", torch.from_numpy(np.ascontiguousarray(value))
        return None

    def given(self, kind: str, leaf: torch.Tensor) -> Any:
        return leaf.numpy() if kind == "array" else leaf

    def named(self, value: object) -> dict[str, Any] | None:
        if isinstance(value, torch.dtype):
            return {"$": "dtype", "name": str(value).removeprefix("torch.")}
        return None

    def meant(self, skeleton: dict[str, Any]) -> Any:
        return getattr(torch, skeleton["name"])


_tree: Tree[torch.Tensor] = Tree(_Leaves())
flatten = _tree.flatten
unflatten = _tree.unflatten


def matched(theirs: Any, mine: Any) -> Iterator[tuple[int, int]]:
    """Tensors that stand at the same place in two skeletons, by their numbers."""
    if not isinstance(theirs, dict) or not isinstance(mine, dict) or theirs["$"] != mine["$"]:
        return
    if theirs["$"] == "tensor":
        yield theirs["at"], mine["at"]
    elif "pairs" in theirs:
        known = {key: value for key, value in mine["pairs"] if not isinstance(key, dict)}
        for key, value in theirs["pairs"]:
            if not isinstance(key, dict) and key in known:
                yield from matched(value, known[key])
    elif "rows" in theirs:
        for one, other in zip(theirs["rows"], mine["rows"], strict=False):
            yield from matched(one, other)
