"""A state_dict as plain values plus a list of tensors, and back. No pickle.

What a scheduler, scaler or optimizer keeps is numbers, strings, containers and tensors. The
skeleton travels as msgpack, and lies in a checkpoint as JSON, with tensors replaced by their place
in the list. Anything else is refused by its path, so that nothing is silently left behind.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import torch

from edl.errors import UsageError

__all__ = ["decode", "encode", "flatten", "from_json", "matched", "to_json", "unflatten"]

_MAPS: dict[str, Callable[[list[Any]], Any]] = {
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "defaultdict": lambda pairs: defaultdict(None, pairs),
}
_ROWS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "Size": torch.Size,
}


def flatten(value: object, path: str, tensors: list[torch.Tensor]) -> Any:
    """The skeleton of a value; its tensors are appended to the list."""
    if value is None or isinstance(value, (bool, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"$": "tensor", "at": len(tensors) - 1}
    if isinstance(value, np.ndarray):
        tensors.append(torch.from_numpy(np.ascontiguousarray(value)))
        return {"$": "array", "at": len(tensors) - 1}
    if isinstance(value, np.generic):
        return flatten(value.item(), path, tensors)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else {"$": "int", "text": str(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, torch.dtype):
        return {"$": "dtype", "name": str(value).removeprefix("torch.")}
    kind = type(value).__name__
    if isinstance(value, dict) and kind in _MAPS:
        pairs = [
            [flatten(k, f"{path}[key]", tensors), flatten(v, f"{path}[{k!r}]", tensors)]
            for k, v in value.items()
        ]
        return {"$": kind, "pairs": pairs}
    if isinstance(value, (list, tuple, set)) and kind in _ROWS:
        rows = [flatten(v, f"{path}[{i}]", tensors) for i, v in enumerate(value)]
        return {"$": kind, "rows": rows}
    raise UsageError(
        f"{path} is a {type(value).__module__}.{kind}, which can neither be sent to a new worker "
        "nor be kept in a checkpoint; "
        "state_dict() may hold tensors, numbers, strings, dicts, lists, tuples and sets"
    )


def unflatten(skeleton: Any, tensors: list[torch.Tensor]) -> Any:
    """The inverse of `flatten`."""
    if not isinstance(skeleton, dict):
        return skeleton
    kind = skeleton["$"]
    if kind == "tensor":
        return tensors[skeleton["at"]]
    if kind == "array":
        return tensors[skeleton["at"]].numpy()
    if kind == "int":
        return int(skeleton["text"])
    if kind == "dtype":
        return getattr(torch, skeleton["name"])
    if kind in _MAPS:
        pairs = [(unflatten(k, tensors), unflatten(v, tensors)) for k, v in skeleton["pairs"]]
        return _MAPS[kind](pairs)
    return _ROWS[kind]([unflatten(row, tensors) for row in skeleton["rows"]])


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
