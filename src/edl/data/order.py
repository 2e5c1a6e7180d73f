"""Samples behind positions of an epoch's order, a whole batch at a time.

`protocol/permutation.py` says what the order is, one position after another and with the standard
library alone; that takes several microseconds a sample, which a loader would feel. Owns: what was
drawn for the steps to come. Holds: both say the same of every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.protocol.permutation import GOLDEN, Permutation

__all__ = ["Drawn"]

# So many samples are drawn at once: from about here on, an array's cost is its elements'.
_MANY = 8192
# What a round adds depends on half of the bits: tables of it, up to 4 billion samples.
_TABLE_BITS = 16

_Values = npt.NDArray[Any]


class Drawn:
    """The samples of one epoch; those of a share are drawn for several steps at once."""

    def __init__(self, order: Permutation | range, *, batch: int) -> None:
        self._order = order
        self._batch = batch
        self._tables: Sequence[_Values] = ()
        self._coming: dict[tuple[int, int], _Values] = {}

    def take(self, start: int, count: int) -> list[int]:
        """What the order has at the positions from `start` on."""
        order = self._order
        size = len(order) if isinstance(order, range) else order.size
        if start < 0 or start + count > size:
            raise IndexError(f"positions {start} to {start + count} are outside {size}")
        if isinstance(order, range):
            return list(order[start : start + count])
        found = self._coming.pop((start, count), None)
        if found is None:
            self._draw(order, start, count)
            found = self._coming.pop((start, count))
        samples: list[int] = found.tolist()
        return samples

    def _draw(self, order: Permutation, start: int, count: int) -> None:
        """A share lies at the same place of every step, as long as nobody comes or goes."""
        # What was drawn for earlier steps and is still here was in vain.
        for known in [key for key in self._coming if key[0] < start]:
            del self._coming[known]
        starts = range(start, order.size - count + 1, max(self._batch, 1))
        starts = starts[: max(1, _MANY // max(count, 1))]
        first = np.array(starts, dtype=np.uint64)[:, None]
        positions = first + np.arange(count, dtype=np.uint64)
        rows = self._taken(order, positions.reshape(-1)).reshape(positions.shape)
        self._coming.update(zip(((at, count) for at in starts), rows, strict=True))

    def _taken(self, order: Permutation, positions: _Values) -> _Values:
        if not self._tables and order.half <= _TABLE_BITS:
            every = np.arange(1 << order.half, dtype=np.uint64)
            tables = (_mixed(every, key, order.half) for key in order.keys)
            self._tables = [table.astype(np.intp) for table in tables]
        if self._tables:
            # By the machine's own integers: others are converted at every look-up.
            positions = positions.astype(np.intp)
        values = self._scramble(order, positions)
        outside = np.flatnonzero(values >= order.size)
        while outside.size:
            again = self._scramble(order, values[outside])
            values[outside] = again
            outside = outside[again >= order.size]
        return values

    def _scramble(self, order: Permutation, values: _Values) -> _Values:
        half = order.half
        left, right = values >> half, values & ((1 << half) - 1)
        for number, key in enumerate(order.keys):
            if self._tables:
                mixed = self._tables[number].take(right)
            else:
                mixed = _mixed(right, key, half)
            mixed ^= left
            left, right = right, mixed
        return (left << half) | right


def _mixed(right: _Values, key: int, half: int) -> _Values:
    """What a round adds to the left half. Products wrap at 64 bits, as the scalar form masks."""
    mixed = (right + np.uint64(key)) * np.uint64(GOLDEN)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(key | 1)
    return (mixed >> np.uint64(32)) & np.uint64((1 << half) - 1)
