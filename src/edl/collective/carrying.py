"""NumPy's arrays as tensors of the same memory, so that groups can send and fill them."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

__all__ = ["carried", "reduced_in_place"]

_Array = np.ndarray[Any, np.dtype[Any]]


def carried(array: _Array) -> torch.Tensor:
    """The array's memory as a flat row of bytes. A copy, if it does not lie in one piece.

    By its address and not through NumPy: frameworks hand out arrays that must not be written to,
    which torch does not take, though it only reads them here. The tensor keeps the array alive.
    """
    whole = np.ascontiguousarray(array)
    if not whole.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    memory = (ctypes.c_uint8 * whole.nbytes).from_address(whole.ctypes.data)
    memory.kept = whole  # type: ignore[attr-defined]  # for as long as the memory is used
    return torch.frombuffer(memory, dtype=torch.uint8)


def reduced_in_place(array: _Array) -> torch.Tensor:
    """An array of numbers as a tensor that a group reduces; the sum is then in the array."""
    return torch.from_numpy(array)
