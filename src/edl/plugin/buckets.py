"""Buckets of named arrays' gradients (see collective/row.py). Imports torch: imported when needed.

Holds: every gradient is copied into its part of the row once, already weighted; each part begins at
a multiple of 64 bytes, so that a framework can take it by DLPack as it lies there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from edl.collective.row import Row
from edl.errors import UsageError
from edl.plugin.adapter import Array, Variable

__all__ = ["ArrayBucket", "bucketed", "torch_dtype"]

_ALIGNED = 64
# Gradients of halves are summed in float32: rounding twice helps nobody.
_SUMMED = {
    "float16": torch.float32,
    "bfloat16": torch.float32,
    "float32": torch.float32,
    "float64": torch.float64,
}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype that torch has under this name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _summed(variable: Variable) -> torch.dtype:
    found = _SUMMED.get(variable.dtype.name)
    if found is None:
        raise UsageError(
            f"{variable.name!r} is of {variable.dtype}: EDL averages gradients of "
            f"{', '.join(_SUMMED)}"
        )
    return found


class ArrayBucket(Row):
    """Consecutive variables whose gradients are summed in one dtype."""

    def __init__(self, variables: Sequence[Variable], gradients: Mapping[str, Array]) -> None:
        """`gradients` is what the present reduction was given; the bucket reads it when filled."""
        dtype = _summed(variables[0])
        starts, total = [], 0
        for variable in variables:
            starts.append(total)
            total += _padded(int(np.prod(variable.shape)), dtype.itemsize)
        super().__init__(total, len(variables), dtype=dtype)
        self.variables = variables
        self._gradients = gradients
        flat: Array = self.flat.numpy()
        self.views: list[Array] = [
            flat[start : start + int(np.prod(v.shape))].reshape(v.shape)
            for start, v in zip(starts, variables, strict=True)
        ]
        self._flags = flat[total:]
        self.found: dict[str, Array] = {}

    def fill(self, weight: float, compression: torch.dtype | None) -> torch.Tensor:
        if weight == 0.0:
            # Replaced, not multiplied: 0 * NaN is NaN.
            self.flat.zero_()
            return self._outgoing(compression)
        self._flags[:] = 0.0
        for index, (variable, view) in enumerate(zip(self.variables, self.views, strict=True)):
            gradient = self._gradients.get(variable.name)
            if gradient is None:
                view[...] = 0.0
                continue
            # In the row's own dtype: halves are not rounded before they are summed.
            np.multiply(gradient, weight, out=view, dtype=view.dtype, casting="unsafe")
            self._flags[index] = 1.0
        return self._outgoing(compression)

    def spread(self, tail: list[float]) -> None:
        """What was reduced, as parts of the row: of every variable that had a gradient anywhere."""
        self.found = {
            variable.name: view
            for variable, view, flag in zip(self.variables, self.views, tail, strict=False)
            if flag
        }


def _padded(count: int, itemsize: int) -> int:
    step = _ALIGNED // itemsize
    return -(-count // step) * step


def bucketed(
    variables: Sequence[Variable], gradients: Mapping[str, Array], limit: int
) -> Iterator[ArrayBucket]:
    """Runs of variables of one dtype, each about as large as the limit."""
    run: list[Variable] = []
    size = 0
    for variable in variables:
        amount = int(np.prod(variable.shape)) * variable.dtype.itemsize
        if run and (run[0].dtype != variable.dtype or size + amount > limit):
            yield ArrayBucket(run, gradients)
            run, size = [], 0
        run.append(variable)
        size += amount
    if run:
        yield ArrayBucket(run, gradients)
