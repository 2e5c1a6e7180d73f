"""Consecutive parameters, and the row that their gradients travel in.

A gradient is copied into the row once, already weighted; after the reduction the parameter's
`.grad` *is* its part of the row. Holds: a parameter's part has the parameter's own strides, so
that optimizers see the layout they expect.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from edl.collective.row import Row, wider
from edl.errors import UsageError

__all__ = ["Bucket", "bucketed"]


class Bucket(Row):
    """Consecutive parameters of one dtype and device."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.missing = len(parameters)
        total = sum(p.numel() for p in parameters)
        dtype = wider(first.dtype)
        super().__init__(total, len(parameters), dtype=dtype, device=first.device)
        self.lets_go = dtype == first.dtype  # its row can take the gradients' place at once
        self.views = self._cut(self.flat)
        self._by_parameter = {id(p): v for p, v in zip(parameters, self.views, strict=True)}

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        views, start = [], 0
        for parameter in self.parameters:
            views.append(flat.as_strided(parameter.shape, _strides(parameter), start))
            start += parameter.numel()
        return views

    def fill(self, weight: float, compression: torch.dtype | None) -> torch.Tensor:
        """Weighted gradients into the row; returns what is to be reduced."""
        flags = [0.0] * (len(self.parameters) + 1)
        if weight == 0.0:
            # Replaced, not multiplied: 0 * NaN is NaN.
            self.flat.zero_()
        else:
            for index, (parameter, view) in enumerate(
                zip(self.parameters, self.views, strict=True)
            ):
                gradient = parameter.grad
                if gradient is None:
                    view.zero_()
                    continue
                if gradient.layout != torch.strided:
                    raise UsageError(
                        "a sparse gradient: EDL reduces dense ones; make the embedding with "
                        "sparse=False"
                    )
                torch.mul(gradient, weight, out=view)
                if self.lets_go:
                    # At once, so that the gradient's own memory is free for the next one's.
                    parameter.grad = view
                flags[index] = 1.0
            self.flat[self.total :] = torch.tensor(flags, dtype=self.flat.dtype)
        return self._outgoing(compression)

    def let_go(self) -> None:
        """The gradients are of no use, and others will come: their memory is free for the next."""
        if not self.lets_go:
            return
        for parameter, view in zip(self.parameters, self.views, strict=True):
            if parameter.grad is not None:
                parameter.grad = view

    def view_of(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The parameter's part of the row."""
        return self._by_parameter[id(parameter)]

    def spread(self, tail: list[float]) -> None:
        """Every parameter that had a gradient anywhere gets the common one."""
        for parameter, view, flag in zip(self.parameters, self.views, tail, strict=False):
            if not flag:
                # Nobody's share used it: also not a worker that ran on a stand-in batch.
                parameter.grad = None
            elif self.lets_go:
                parameter.grad = view
            elif parameter.grad is None:
                parameter.grad = view.to(parameter.dtype)
            else:
                parameter.grad.copy_(view)


def _strides(parameter: torch.Tensor) -> tuple[int, ...]:
    """The parameter's strides if its memory has no holes, else those of a plain tensor."""
    expected = 1
    for stride, size in sorted(zip(parameter.stride(), parameter.shape, strict=True)):
        if size != 1 and stride != expected:
            return torch.empty(parameter.shape, device="meta").stride()
        expected *= size
    return parameter.stride()


def bucketed(parameters: Iterable[torch.nn.Parameter], limit: int) -> Iterator[Bucket]:
    """Runs of parameters of one dtype and device, each about as large as the limit."""
    run: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        amount = parameter.numel() * parameter.element_size()
        alike = run and run[0].dtype == parameter.dtype and run[0].device == parameter.device
        if run and (not alike or size + amount > limit):
            yield Bucket(run)
            run, size = [], 0
        run.append(parameter)
        size += amount
    if run:
        yield Bucket(run)
