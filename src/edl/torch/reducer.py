"""Gradients of all workers become one, weighted by how many samples each used.

Parameters are grouped into flat buckets in parameter order, the same on every worker and joiner;
buckets are reduced in that order, never by arrival. Each carries a tail that says which
parameters had a gradient at all (one unused everywhere keeps None) and whether anyone left the
loop inside this step. Holds: `backward()` returns with gradients reduced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from edl.errors import UsageError
from edl.runtime.framework import Group
from edl.runtime.session import Session

__all__ = ["Reducer"]

_BUCKET_BYTES = 25 << 20
# Summed in float32: Gloo has no reliable half types, and rounding twice helps nobody.
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


class _Bucket:
    """Consecutive parameters of one dtype and device."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        self.parameters = parameters
        self.sizes = [p.numel() for p in parameters]
        self.total = sum(self.sizes)
        dtype = _WIDER.get(first.dtype, first.dtype)
        # Behind the gradients: one flag per parameter, and one for a voided step.
        self.flat = torch.zeros(self.total + len(parameters) + 1, dtype=dtype, device=first.device)
        self.views = [
            view.view(p.shape)
            for view, p in zip(self.flat[: self.total].split(self.sizes), parameters, strict=True)
        ]

    def fill(self, weight: float) -> None:
        tail = self.flat[self.total :]
        tail.zero_()
        if weight == 0.0:
            # Replaced, not multiplied: 0 * NaN is NaN.
            self.flat.zero_()
            return
        for index, (parameter, view) in enumerate(zip(self.parameters, self.views, strict=True)):
            if parameter.grad is None:
                view.zero_()
                continue
            if parameter.grad.is_sparse:
                raise UsageError(
                    "a sparse gradient: EDL reduces dense ones; make the embedding with "
                    "sparse=False"
                )
            torch.mul(parameter.grad, weight, out=view)
            tail[index] = 1.0

    def void(self) -> None:
        self.flat.zero_()
        self.flat[-1] = 1.0

    def voided(self) -> bool:
        return bool(self.flat[-1] > 0)

    def spread(self) -> None:
        used = self.flat[self.total : -1].tolist()
        for parameter, view, flag in zip(self.parameters, self.views, used, strict=True):
            if not flag:
                continue
            if parameter.grad is None:
                parameter.grad = view.to(parameter.dtype, copy=True)
            else:
                parameter.grad.copy_(view)


class Reducer:
    """Every parameter that any elastic optimizer updates."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.reduced = False  # in the present step
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._buckets: list[_Bucket] | None = None
        self._queued = False

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Reduce these too, after those already watched."""
        for parameter in parameters:
            if id(parameter) in self._parameters or not parameter.requires_grad:
                continue
            self._parameters[id(parameter)] = parameter
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            self._buckets = None

    def begin_step(self) -> None:
        self.reduced = False

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self._queued or self.session.plan is None:
            return
        self._queued = True
        engine: Any = torch.autograd.Variable
        # Runs when this backward has accumulated everything, before backward() returns.
        engine._execution_engine.queue_callback(self._on_backward_end)

    def _on_backward_end(self) -> None:
        self._queued = False
        self.reduce()

    def reduce(self) -> None:
        """Make every gradient the batch-weighted mean over the workers."""
        session = self.session
        session.computed()
        if not session.counts():
            self._clear()
            return
        self.reduced = True
        group = session.group
        if group is None or group.size == 1:
            return
        buckets = self._all()
        weight = session.weight()
        with torch.no_grad():
            work = []
            for bucket in buckets:
                bucket.fill(weight)
                work.append(group.all_reduce(bucket.flat))
            for pending in work:
                pending.wait()
            if any(bucket.voided() for bucket in buckets):
                session.void()
                self._clear()
                return
            for bucket in buckets:
                bucket.spread()

    def void_step(self, group: Group) -> None:
        """Take part in this step's reduction only to say that it does not count."""
        if group.size == 1:
            return
        work = []
        for bucket in self._all():
            bucket.void()
            work.append(group.all_reduce(bucket.flat))
        for pending in work:
            pending.wait()

    def _clear(self) -> None:
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _all(self) -> list[_Bucket]:
        if self._buckets is None:
            self._buckets = list(_bucketed(self._parameters.values()))
        return self._buckets


def _bucketed(parameters: Iterable[torch.nn.Parameter]) -> Iterable[_Bucket]:
    run: list[torch.nn.Parameter] = []
    size = 0
    for parameter in parameters:
        amount = parameter.numel() * parameter.element_size()
        alike = run and run[0].dtype == parameter.dtype and run[0].device == parameter.device
        if run and (not alike or size + amount > _BUCKET_BYTES):
            yield _Bucket(run)
            run, size = [], 0
        run.append(parameter)
        size += amount
    if run:
        yield _Bucket(run)
