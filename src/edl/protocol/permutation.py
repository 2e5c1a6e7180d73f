"""A keyed bijection of [0, n): the order of an epoch, computed and never stored.

The order depends on seed and epoch alone, so it does not matter how many workers there are. A
balanced Feistel network over the next power of four, walked until it falls inside [0, n).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["GOLDEN", "Permutation"]

_ROUNDS = 6
GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


class Permutation:
    """The order in which one epoch visits its samples."""

    __slots__ = ("_mask", "half", "keys", "size")

    def __init__(self, size: int, *, seed: int, epoch: int) -> None:
        if size < 0:
            raise ValueError(f"a permutation of {size} items does not exist")
        self.size = size
        self.half = max(1, ((max(size - 1, 1)).bit_length() + 1) // 2)
        self._mask = (1 << self.half) - 1
        text = f"edl-order-1/{seed}/{epoch}".encode()
        digest = hashlib.sha256(text).digest() + hashlib.sha256(text + b"/more").digest()
        self.keys = tuple(
            int.from_bytes(digest[8 * i : 8 * i + 8], "little") | 1 for i in range(_ROUNDS)
        )

    def __getitem__(self, position: int) -> int:
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} is outside an epoch of {self.size}")
        value = self._scramble(position)
        while value >= self.size:
            value = self._scramble(value)
        return value

    def take(self, positions: Iterable[int]) -> list[int]:
        """The samples at these positions, in order."""
        return [self[position] for position in positions]

    def _scramble(self, value: int) -> int:
        half, mask = self.half, self._mask
        left, right = value >> half, value & mask
        for key in self.keys:
            mixed = ((right + key) * GOLDEN) & _MASK64
            mixed ^= mixed >> 29
            mixed = (mixed * (key | 1)) & _MASK64
            left, right = right, left ^ ((mixed >> 32) & mask)
        return (left << half) | right
