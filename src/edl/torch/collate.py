"""How samples become a batch, and a small one's way out of a loader process.

torch hands every tensor over as a file of shared memory, and for each of them the receiver opens a
connection and proves itself: most of a millisecond, which is nothing for images and more than all
the rest for a batch of a few kilobytes. Owns: which tensors travel as plain bytes instead. Holds:
what arrives equals what was sent, whichever way it came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

__all__ = ["Parcels", "collated", "columns_of"]

# What default_collate makes of Python's numbers; numpy does so in a third of the time.
_NUMBERS = {int: np.int64, float: np.float64}
# Up to here a copy through the pipe is cheaper than a file of its own.
_SMALL_BYTES = 1 << 18


def collated(samples: list[Any]) -> Any:
    """What torch's default_collate makes of samples in this process, in less time if they are
    tuples, as most are: it looks at the length of each before it lays them side by side."""
    if type(samples[0]) is not tuple:
        return default_collate(samples)
    try:
        columns = list(zip(*samples, strict=True))
    except (TypeError, ValueError):
        # torch says what is wrong with them.
        return default_collate(samples)
    return [_column(column) for column in columns]


def _column(values: Any) -> Any:
    if _is_plain(values[0]):
        return torch.stack(values)
    kind = _NUMBERS.get(type(values[0]))
    if kind is not None:
        numbers = np.array(values)
        # Where the rest is of another kind, torch decides what comes of it.
        if numbers.dtype == kind and numbers.ndim == 1:
            return torch.from_numpy(numbers)
    return default_collate(values)


def columns_of(dataset: Any) -> tuple[torch.Tensor, ...]:
    """The tensors of a TensorDataset: rows of a whole batch are taken from each at once, where
    torch takes every row by itself and lays them side by side again. Else none."""
    if type(dataset) is not TensorDataset or not all(_is_plain(t) for t in dataset.tensors):
        return ()
    return dataset.tensors


class Parcels:
    """A collate function, the small tensors of whose batches travel as bytes."""

    def __init__(self, collate: Callable[[list[Any]], Any] | None) -> None:
        self._collate = collate or default_collate

    def __call__(self, samples: list[Any]) -> Any:
        return _packed(self._collate(samples))


class _Parcel:
    """A tensor in a loader process; a tensor again where it is unpickled."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        flat = self._tensor.contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return _unpacked, (content, self._tensor.dtype, tuple(self._tensor.shape))


def _unpacked(content: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not content:
        return torch.empty(shape, dtype=dtype)
    # An array of its own: a batch may be changed in place, bytes may not.
    return torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape)


def _packed(batch: Any) -> Any:
    """Containers that are not exactly the plain ones are left to torch, with what is in them."""
    kind = type(batch)
    if kind is torch.Tensor:
        return _Parcel(batch) if _is_small(batch) else batch
    if kind is list or kind is tuple:
        return kind(_packed(each) for each in batch)
    if kind is dict:
        return {name: _packed(each) for name, each in batch.items()}
    return batch


def _is_small(tensor: torch.Tensor) -> bool:
    if not _is_plain(tensor) or tensor.device.type != "cpu":
        return False
    if tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return False
    return tensor.numel() * tensor.element_size() <= _SMALL_BYTES


def _is_plain(value: Any) -> bool:
    if type(value) is not torch.Tensor:
        return False
    return value.layout is torch.strided and not value.is_nested
