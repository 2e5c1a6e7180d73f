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
from dataclasses import dataclass
from typing import Any

import torch

from edl.errors import GroupBroken, UsageError
from edl.runtime.framework import Group, Pending, Relay
from edl.runtime.session import Session
from edl.torch.bucket import Bucket, bucketed
from edl.torch.micro import Accumulator

__all__ = ["Reducer", "Reduction"]

_COMPRESSIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Found and cleared by the system in milliseconds, be it slow.
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Reduction:
    """How gradients travel; the same on every worker."""

    bucket_mb: float = 25.0
    compression: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.bucket_mb, (int, float)) and not isinstance(self.bucket_mb, bool)
        if not number or not 0 < self.bucket_mb < float("inf"):
            raise UsageError(
                f"bucket_mb={self.bucket_mb!r}: the size of a gradient bucket in MB, above 0 "
                "(25 by default)"
            )
        if self.compression is not None and self.compression not in [*_COMPRESSIONS]:
            raise UsageError(
                f"compression={self.compression!r} is not one of None, "
                f"{', '.join(map(repr, _COMPRESSIONS))}"
            )

    def __str__(self) -> str:
        return f"buckets of {self.bucket_mb:g} MB and compression {self.compression or 'none'}"

    @property
    def bucket_bytes(self) -> int:
        return max(1, int(self.bucket_mb * (1 << 20)))

    @property
    def narrow(self) -> torch.dtype | None:
        return _COMPRESSIONS[self.compression] if self.compression else None


class Reducer:
    """Every parameter that any elastic optimizer updates."""

    def __init__(self, session: Session, reduction: Reduction) -> None:
        self.session = session
        self.reduced = False  # in the present step
        self.bucket_bytes = reduction.bucket_bytes
        self.compression = reduction.narrow
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._buckets: list[Bucket] | None = None
        self._place: dict[int, Bucket] = {}
        self.accumulator = Accumulator()
        self._fired: list[torch.nn.Parameter] = []  # in this backward, if it is one of several
        self._queued = False
        self._next = 0  # the bucket that is launched next in this backward
        self._weight: float | None = None  # of this backward; None: nothing is launched yet
        self._work: list[Pending] = []

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
        return all(bucket.flat.device.type == "cpu" for bucket in self._all())

    def touch_buckets(self) -> Iterator[None]:
        """Touch the buckets' memory, so that the first step need not."""
        for bucket in self._all():
            yield from _touched(bucket.flat)

    def touch_spare(self) -> Iterator[None]:
        """Touch memory for gradients on their way into the buckets, and leave it to the allocator.

        It may lie in pieces when backward asks for it, hence half as much again. A full bucket's
        gradients are let go of, so others find room there: three times the largest has been enough.
        """
        buckets = [bucket for bucket in self._all() if not bucket.flat.is_cuda]
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

    def prepare(self, relay: Relay) -> None:
        """A generation is built: make room for what its newcomers will get."""
        buckets = self._buckets
        if buckets is not None:
            relay.prepare(bucket.size(self.compression) for bucket in buckets)

    def begin_step(self) -> None:
        self.reduced = False
        self.accumulator.begin_step()
        relay = self.session.relay
        if relay is not None and relay.hands:
            self._reserve(relay)

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
        self._next, self._weight, self._work = 0, None, []
        for bucket in self._all():
            bucket.missing = len(bucket.parameters)
        engine: Any = torch.autograd.Variable
        # Runs when this backward has accumulated everything, before backward() returns.
        engine._execution_engine.queue_callback(self._on_backward_end)

    def _launch_complete(self) -> None:
        """Launch what is complete, in order; a gap holds back everything behind it."""
        buckets = self._all()
        while self._next < len(buckets) and buckets[self._next].missing <= 0:
            if not self._launch(buckets[self._next]):
                return
            self._next += 1

    def _launch(self, bucket: Bucket) -> bool:
        """Start reducing one bucket. False: the step does not count, so nothing is reduced."""
        session = self.session
        if self._weight is None:
            if not session.counts():
                return False
            self._weight = session.weight()
        group, relay = session.group, session.relay
        assert group is not None
        if relay is not None and relay.takes:
            # A newcomer has nothing to add in its first step; the elders do not wait for it.
            bucket.let_go()
            return True
        with torch.no_grad():
            flat = bucket.fill(self._weight, self.compression)
        try:
            self._work.append((relay or group).all_reduce(flat))
        except GroupBroken as error:
            session.broke(error)
            return False
        return True

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

    def finish(self) -> None:
        """Reduce what is left, wait for all of it, and hand the gradients out."""
        if not self.session.counts():
            self._clear()
            return
        self.reduced = True
        if self._solo():
            return
        buckets, relay = self._all(), self.session.relay
        for bucket in buckets[self._next :]:
            if not self._launch(bucket):
                return
        self._next = len(buckets)
        with torch.no_grad():
            try:
                counts = self._settled() if relay is None else self._relayed(relay)
            except GroupBroken as error:
                self.session.broke(error)
                return
            tails = [bucket.tail() for bucket in buckets] if counts else []
            if not counts or any(tail[-1] > 0 for tail in tails):
                self.session.void()
                self._clear()
                return
            for bucket, tail in zip(buckets, tails, strict=True):
                bucket.spread(tail)

    def _settled(self) -> bool:
        self._await_device()
        # A second backward of this step is computing again.
        with self.session.waiting():
            for pending in self._work:
                pending.wait()
        self._work = []
        return True

    def _await_device(self) -> None:
        """A GPU computes what the host has given it; only what comes then is waiting for others.

        It costs nothing: what is reduced next is what the GPU still computes.
        """
        devices = {bucket.flat.device for bucket in self._all() if bucket.flat.is_cuda}
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
            self.session.computed()

    # -- the first step with newcomers -----------------------------------------------------

    def _relayed(self, relay: Relay) -> bool:
        """Newcomers get what the elders reduced. False: somebody left the loop in this step."""
        buckets = self._all()
        # Everybody's, so that a newcomer too can void the step; and so that newcomers have taken
        # what an earlier backward of this step gave before it is overwritten.
        if self._vote(0.0) > 0.0:
            self._settled()
            return False
        if relay.takes:
            relay.take([bucket.incoming(self.compression) for bucket in buckets])
        elif relay.hands:
            self._reserve(relay)
            # Before backward returns: from then on gradients are the script's to change.
            relay.hand(self._reduced_rows(buckets))
        return self._settled()

    def _reduced_rows(self, buckets: list[Bucket]) -> Iterator[torch.Tensor]:
        for bucket, pending in zip(buckets, self._work, strict=True):
            pending.wait()
            yield bucket.row

    def _reserve(self, relay: Relay) -> None:
        relay.reserve(bucket.size(self.compression) for bucket in self._all())

    def _vote(self, void: float) -> float:
        group = self.session.group
        assert group is not None
        vote = torch.tensor([void])
        group.all_reduce(vote, "max").wait()
        return vote.item()

    # -- a step that counts for nobody -----------------------------------------------------

    def abandon(self) -> None:
        """A peer is lost. What was launched may still write into the buckets: leave them to it."""
        self._buckets, self._place, self._work = None, {}, []
        self._next, self.reduced = 0, False
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    def void_step(self, group: Group, relay: Relay | None) -> None:
        """Take part in this step's reduction only to say that it does not count."""
        if group.size == 1:
            return
        if relay is None or not relay.takes:
            among = relay or group
            self._work = [among.all_reduce(b.voided(self.compression)) for b in self._all()]
        if relay is not None:
            self._vote(1.0)
        self._settled()

    def _clear(self) -> None:
        for parameter in self._parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()

    def _solo(self) -> bool:
        group = self.session.group
        return group is None or group.size == 1

    def _all(self) -> list[Bucket]:
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
