"""Gradients of a step that comes in micro-batches, added up until its last one.

After each micro-batch's backward the gradients are put aside, weighted by its rows, and zeros are
left behind: what the loop does then (clipping, a scaler, a step that does nothing) meets zeros.
The last one gets everything back before it is reduced. Holds: what counts for an optimizer is
what comes between its zero_grad and its step, as in a loop without micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from edl.errors import UsageError

__all__ = ["Accumulator"]


class Accumulator:
    """What earlier micro-batches of the present step have added up to."""

    def __init__(self) -> None:
        self._owned: list[list[torch.nn.Parameter]] = []  # by optimizer
        self._sums: dict[int, torch.Tensor] = {}
        self._closed: set[int] = set()
        self._given: set[int] = set()

    def own(self, parameters: list[torch.nn.Parameter]) -> None:
        """One more optimizer; the list is its own and may grow."""
        self._owned.append(parameters)

    def begin_step(self) -> None:
        self._sums.clear()
        self._given.clear()
        self._closed.clear()

    def open(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """zero_grad, or a new batch: gradients count for the next step of this optimizer."""
        self._closed.difference_update(id(p) for p in parameters)

    def open_all(self) -> None:
        self._closed.clear()

    def close(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """The optimizer has stepped: what comes now would be thrown away by its zero_grad."""
        self._closed.update(id(p) for p in parameters)

    def take(self, fired: Iterable[torch.nn.Parameter], fraction: float) -> None:
        """Not the last micro-batch: put gradients aside, leave zeros."""
        for parameter in fired:
            gradient = parameter.grad
            if gradient is None:
                continue
            if id(parameter) not in self._closed:
                total = self._sums.get(id(parameter))
                if total is None:
                    self._sums[id(parameter)] = gradient * fraction
                else:
                    total.add_(gradient, alpha=fraction)
            gradient.zero_()

    def give(self, fired: Iterable[torch.nn.Parameter], fraction: float) -> None:
        """The last micro-batch: its gradient and what was put aside become the step's."""
        names = {id(p) for p in fired}
        for parameters in self._owned:
            if not any(id(p) in names and id(p) not in self._closed for p in parameters):
                continue
            for parameter in parameters:
                if id(parameter) not in self._closed:
                    self._give_one(parameter, fraction, fired=id(parameter) in names)

    def _give_one(self, parameter: torch.nn.Parameter, fraction: float, *, fired: bool) -> None:
        key = id(parameter)
        if key in self._given:
            if fired:
                raise UsageError(
                    "micro_batch with several backward passes over the same parameters in one "
                    "step: add the losses and call backward once, or leave micro_batch out"
                )
            return
        total = self._sums.pop(key, None)
        if fired and parameter.grad is not None:
            parameter.grad.mul_(fraction)
            if total is not None:
                parameter.grad.add_(total)
        elif total is not None:
            parameter.grad = total
        self._given.add(key)
