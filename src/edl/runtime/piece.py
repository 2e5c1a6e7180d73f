"""Where in its step a worker is: a share larger than its micro-batch comes in pieces."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WHOLE", "Piece"]


@dataclass(frozen=True, slots=True)
class Piece:
    """One batch of a step."""

    index: int
    pieces: int
    rows: int
    fraction: float  # of the worker's share

    @property
    def last(self) -> bool:
        return self.index == self.pieces - 1


WHOLE = Piece(0, 1, 0, 1.0)
