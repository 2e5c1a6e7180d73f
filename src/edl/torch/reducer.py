"""Gradients of all workers become one, weighted by how many samples each used.

Gradients live in flat buckets that are reduced while backward is still running. Buckets follow
the parameters' order from the last to the first, which is how backward makes them, and that order
is the same on every worker and joiner: a bucket is launched when it and all before it are
complete, never by arrival. Each bucket has a tail that says which parameters had a gradient at
all (one unused everywhere keeps None) and whether anyone left the loop inside this step. Holds:
`backward()` returns with gradients reduced, and nothing is launched before the step's record is
complete, so everybody launches or nobody does. A lost peer is never raised out of backward:
gradients are zero then, and the step is done again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from edl.errors import UsageError
from edl.plugin.reducing import Carrier, Reducing, Reduction
from edl.runtime.framework import Relay
from edl.runtime.session import Session
from edl.torch.bucket import Bucket, bucketed
from edl.torch.micro import Accumulator

__all__ = ["Reducer"]

# Found and cleared by the system in milliseconds, be it slow.
_PIECE = 8 << 20


class Reducer(Reducing):
    """Every parameter that any elastic optimizer updates."""

    def __init__(self, session: Session, reduction: Reduction) -> None:
        super().__init__(session, reduction.bucket_bytes)
        self.compression = getattr(torch, reduction.narrow) if reduction.narrow else None
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._buckets: list[Bucket] | None = None
        self._place: dict[int, Bucket] = {}
        self.accumulator = Accumulator()
        self._fired: list[torch.nn.Parameter] = []  # in this backward, if it is one of several
        self._queued = False

    def watch(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Reduce these too, with those already watched."""
        for parameter in parameters:
            if id(parameter) in self._parameters or not parameter.requires_grad:
                continue
            self._parameters[id(parameter)] = parameter
            parameter.register_post_accumulate_grad_hook(self._on_gradient)
            self._buckets = None

    @property
    def on_cpu(self) -> bool:
        """Whether all gradients are there; makes the buckets, if there are none yet."""
        return all(bucket.flat.device.type == "cpu" for bucket in self._buckets_now())

    def touch_buckets(self) -> Iterator[None]:
        """Touch the buckets' memory, so that the first step need not."""
        for bucket in self._buckets_now():
            yield from _touched(bucket.flat)

    def touch_spare(self) -> Iterator[None]:
        """Touch memory for gradients on their way into the buckets, and leave it to the allocator.

        It may lie in pieces when backward asks for it, hence half as much again. A full bucket's
        gradients are let go of, so others find room there: three times the largest has been enough.
        """
        buckets = [bucket for bucket in self._buckets_now() if not bucket.flat.is_cuda]
        passing = [bucket.flat.nbytes for bucket in buckets if bucket.lets_go]
        staying = sum(bucket.flat.nbytes for bucket in buckets if not bucket.lets_go)
        size = min(2 * max(passing, default=0), sum(passing)) + staying
        yield from _touched(torch.empty(size * 3 // 2, dtype=torch.uint8))

    def room_for_gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Memory like the parameter's gradient will have, in its bucket if it lies there."""
        bucket = self._place.get(id(parameter))
        if bucket is None or not bucket.lets_go:
            return torch.zeros_like(parameter)
        return bucket.view_of(parameter).zero_()

    def prepare_relay(self, relay: Relay) -> None:
        if self._buckets is not None:
            self.prepare(relay, self._buckets)

    def begin_step(self) -> None:
        self.accumulator.begin_step()
        super().begin_step()

    # -- inside backward -------------------------------------------------------------------

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        if self.session.plan is None:
            self.session.ensure_open()
            if self.session.plan is None:
                return
        if not self._queued:
            self._begin_backward()
        if self.session.piece.pieces > 1:
            self._fired.append(self._parameters[id(parameter)])
            return
        if self._solo():
            return
        bucket = self._place.get(id(parameter))
        if bucket is None:
            return  # a peer was lost while this backward ran; its gradients count for nobody
        bucket.missing -= 1
        if bucket.missing == 0:
            self._launch_complete()

    def _begin_backward(self) -> None:
        self._queued = True
        self.begin_reduction()
        for bucket in self._buckets_now():
            bucket.missing = len(bucket.parameters)
        engine: Any = torch.autograd.Variable
        # Runs when this backward has accumulated everything, before backward() returns.
        engine._execution_engine.queue_callback(self._on_backward_end)

    def _launch_complete(self) -> None:
        """Launch what is complete, in order; a gap holds back everything behind it."""
        buckets = self._buckets_now()
        while self._next < len(buckets) and buckets[self._next].missing <= 0:
            if not self._launch(buckets[self._next]):
                return
            self._next += 1

    def _launch(self, bucket: Carrier) -> bool:
        with torch.no_grad():
            return super()._launch(bucket)

    def _on_backward_end(self) -> None:
        self._queued = False
        piece = self.session.piece
        if piece.pieces > 1:
            fired, self._fired = self._fired, []
            with torch.no_grad():
                if piece.last:
                    self.accumulator.give(fired, piece.fraction)
                else:
                    self.accumulator.take(fired, piece.fraction)
        if piece.last:
            self.session.computed()
            self.finish()

    def finish(self) -> bool:
        with torch.no_grad():
            return super().finish()

    def _await_device(self) -> None:
        """A GPU computes what the host has given it; only what comes then is waiting for others.

        It costs nothing: what is reduced next is what the GPU still computes.
        """
        devices = {bucket.flat.device for bucket in self._buckets_now() if bucket.flat.is_cuda}
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
            self.session.computed()

    # -- a step that counts for nobody -----------------------------------------------------

    def abandon(self) -> None:
        """A peer is lost. What was launched may still write into the buckets: leave them to it."""
        self._buckets, self._place, self._work = None, {}, []
        self._next, self.reduced = 0, False
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    def _clear(self) -> None:
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _buckets_now(self) -> list[Bucket]:
        if self._buckets is None:
            if any(parameter.is_sparse for parameter in self._parameters.values()):
                raise UsageError("a sparse parameter: EDL reduces dense gradients only")
            order = list(reversed(self._parameters.values()))
            self._buckets = list(bucketed(order, self.bucket_bytes))
            self._place = {id(p): bucket for bucket in self._buckets for p in bucket.parameters}
        return self._buckets


def _touched(memory: torch.Tensor) -> Iterator[None]:
    """Let the system find this memory, a little at a time."""
    for piece in memory.view(torch.uint8).split(_PIECE):
        piece.zero_()
        yield
