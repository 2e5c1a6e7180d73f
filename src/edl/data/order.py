"""Samples behind positions of an epoch's order, a whole batch at a time.

`protocol/permutation.py` says what the order is, one position after another and with the standard
library alone; that takes several microseconds a sample, which a loader would feel. Holds: both
say the same of every position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edl.protocol.permutation import GOLDEN, Permutation

__all__ = ["indexes"]

# Below this the arrays cost more than they save.
_FEW = 16


def indexes(order: Permutation | range, start: int, count: int) -> list[int]:
    """What the order has at the positions from `start` on."""
    if isinstance(order, range):
        return list(order[start : start + count])
    if count < _FEW:
        return order.take(range(start, start + count))
    if start < 0 or start + count > order.size:
        raise IndexError(f"positions {start} to {start + count} are outside {order.size}")
    values = _scramble(order, np.arange(start, start + count, dtype=np.uint64))
    size = np.uint64(order.size)
    while (outside := values >= size).any():
        values[outside] = _scramble(order, values[outside])
    return [int(value) for value in values.tolist()]


def _scramble(order: Permutation, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    half, mask = np.uint64(order.half), np.uint64((1 << order.half) - 1)
    left, right = values >> half, values & mask
    for key in order.keys:
        # Products wrap at 64 bits, as the scalar form masks them.
        mixed = (right + np.uint64(key)) * np.uint64(GOLDEN)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(key | 1)
        left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
    return (left << half) | right
