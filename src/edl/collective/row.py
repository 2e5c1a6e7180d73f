"""One flat row of gradients, and the tail that travels with it.

Owns: the row's memory, and its narrow copy if gradients travel in fewer bytes. Behind the
gradients lies one flag for each variable, saying whether it had a gradient at all, and one for a
voided step. Holds: whoever reduces and whoever takes what others have reduced see the same row.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Row", "ballot", "wider"]

# Summed in float32: rounding twice helps nobody.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def wider(dtype: torch.dtype) -> torch.dtype:
    """What gradients of this dtype are summed in."""
    return _WIDER.get(dtype, dtype)


class Row:
    """What a bucket sends."""

    def __init__(
        self, total: int, flags: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> None:
        self.total = total
        # Whoever uses a row writes all of it, so its memory is not touched before.
        self.flat = torch.empty(total + flags + 1, dtype=dtype, device=device)
        self._narrow: torch.Tensor | None = None

    def voided(self, compression: torch.dtype | None) -> torch.Tensor:
        """A row that says only that this step does not count."""
        self.flat.zero_()
        self.flat[-1] = 1.0
        return self._outgoing(compression)

    def size(self, compression: torch.dtype | None) -> int:
        """How many bytes travel."""
        dtype = compression if self._narrows(compression) else self.flat.dtype
        assert dtype is not None
        return self.flat.numel() * dtype.itemsize

    def incoming(self, compression: torch.dtype | None) -> torch.Tensor:
        """Where a row that others have reduced is to be put."""
        narrows = self._narrows(compression)
        self._narrow = torch.empty_like(self.flat, dtype=compression) if narrows else None
        return self.row

    @property
    def row(self) -> torch.Tensor:
        """What travels."""
        return self.flat if self._narrow is None else self._narrow

    def _narrows(self, compression: torch.dtype | None) -> bool:
        return compression is not None and self.flat.dtype == torch.float32

    def _outgoing(self, compression: torch.dtype | None) -> torch.Tensor:
        self._narrow = self.flat.to(compression) if self._narrows(compression) else None
        return self.row

    def tail(self) -> list[float]:
        """The flags after the reduction; the last one is the void flag."""
        if self._narrow is not None:
            self.flat.copy_(self._narrow)
            self._narrow = None
        flags: list[float] = self.flat[self.total :].tolist()
        return flags


def ballot(value: float) -> Any:
    """One number that a group can reduce; `.item()` is what came of it."""
    return torch.tensor([value])
