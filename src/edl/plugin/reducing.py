"""Buckets of gradients, launched in order and brought back, whichever framework fills them.

Every reducer goes through the same motions, since all workers of a generation must. Each bucket
has a tail that says which variables had a gradient at all, and whether anyone left the loop inside
this step. Holds: buckets are launched in the same order on every worker and joiner, never by
arrival; nothing is launched before the step's record is complete, so everybody launches or nobody
does; a lost peer is never raised: the step is void then, and is done again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from edl.errors import GroupBroken, UsageError
from edl.runtime.framework import Group, Pending, Relay
from edl.runtime.session import Session

__all__ = ["Carrier", "Reducing", "Reduction"]

_COMPRESSIONS = {"bf16": "bfloat16", "fp16": "float16"}


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
    def narrow(self) -> str | None:
        """The name of the dtype that float32 gradients travel in."""
        return _COMPRESSIONS[self.compression] if self.compression else None


class Carrier(Protocol):
    """A bucket, as far as its way through the group goes (see collective/row.py)."""

    def fill(self, weight: float, compression: Any) -> Any:
        """Weighted gradients into the row; returns what is to be reduced."""
        ...

    def let_go(self) -> None:
        """The gradients are of no use, and others will come: their memory is free for the next."""
        ...

    def voided(self, compression: Any) -> Any: ...

    def size(self, compression: Any) -> int: ...

    def incoming(self, compression: Any) -> Any: ...

    @property
    def row(self) -> Any: ...

    def tail(self) -> list[float]: ...

    def spread(self, tail: list[float]) -> None:
        """Every variable that had a gradient anywhere gets the common one."""
        ...


class Reducing(ABC):
    """What all reducers do alike. Derive from it, and say which buckets there are."""

    def __init__(self, session: Session, bucket_bytes: int) -> None:
        self.session = session
        self.reduced = False  # in the present step
        self.bucket_bytes = bucket_bytes
        self.compression: Any = None  # the dtype that float32 gradients travel in
        self._next = 0  # the bucket that is launched next
        self._weight: float | None = None  # of this reduction; None: nothing is launched yet
        self._work: list[Pending] = []

    # -- what a framework says -------------------------------------------------------------

    @abstractmethod
    def _buckets_now(self) -> Sequence[Carrier]:
        """All buckets, in their order; they are made if need be."""

    @abstractmethod
    def _clear(self) -> None:
        """The step does not count: its gradients become zero."""

    def _await_device(self) -> None:
        """What was computed beside the host is complete; here nothing is."""
        return

    def _ballot(self, value: float) -> Any:
        """One number as a tensor of the group's."""
        from edl.collective.row import ballot

        return ballot(value)

    # -- a reduction -----------------------------------------------------------------------

    def prepare(self, relay: Relay, buckets: Sequence[Carrier]) -> None:
        """A generation is built: make room for what its newcomers will get."""
        relay.prepare(bucket.size(self.compression) for bucket in buckets)

    def begin_step(self) -> None:
        self.reduced = False
        relay = self.session.relay
        if relay is not None and relay.hands:
            self._reserve(relay)

    def begin_reduction(self) -> None:
        self._next, self._weight, self._work = 0, None, []

    def _launch(self, bucket: Carrier) -> bool:
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
        flat = bucket.fill(self._weight, self.compression)
        try:
            self._work.append((relay or group).all_reduce(flat))
        except GroupBroken as error:
            session.broke(error)
            return False
        return True

    def finish(self) -> bool:
        """Reduce what is left, wait for all of it, and hand the gradients out.

        False: the step counts for nobody.
        """
        if not self.session.counts():
            self._clear()
            return False
        self.reduced = True
        if self._solo():
            return True
        buckets, relay = self._buckets_now(), self.session.relay
        for bucket in buckets[self._next :]:
            if not self._launch(bucket):
                return False
        self._next = len(buckets)
        try:
            counts = self._settled() if relay is None else self._relayed(relay)
        except GroupBroken as error:
            self.session.broke(error)
            return False
        tails = [bucket.tail() for bucket in buckets] if counts else []
        if not counts or any(tail[-1] > 0 for tail in tails):
            self.session.void()
            self._clear()
            return False
        for bucket, tail in zip(buckets, tails, strict=True):
            bucket.spread(tail)
        return True

    def _settled(self) -> bool:
        self._await_device()
        # A second reduction of this step is computing again.
        with self.session.waiting():
            for pending in self._work:
                pending.wait()
        self._work = []
        return True

    def _solo(self) -> bool:
        group = self.session.group
        return group is None or group.size == 1

    # -- the first step with newcomers -----------------------------------------------------

    def _relayed(self, relay: Relay) -> bool:
        """Newcomers get what the elders reduced. False: somebody left the loop in this step."""
        buckets = self._buckets_now()
        # Everybody's, so that a newcomer too can void the step; and so that newcomers have taken
        # what an earlier reduction of this step gave before it is overwritten.
        if self._vote(0.0) > 0.0:
            self._settled()
            return False
        if relay.takes:
            relay.take([bucket.incoming(self.compression) for bucket in buckets])
        elif relay.hands:
            self._reserve(relay)
            # Before this returns: from then on gradients are the script's to change.
            relay.hand(self._reduced_rows(buckets))
        return self._settled()

    def _reduced_rows(self, buckets: Sequence[Carrier]) -> Iterator[Any]:
        for bucket, pending in zip(buckets, self._work, strict=True):
            pending.wait()
            yield bucket.row

    def _reserve(self, relay: Relay) -> None:
        relay.reserve(bucket.size(self.compression) for bucket in self._buckets_now())

    def _vote(self, void: float) -> float:
        group = self.session.group
        assert group is not None
        vote = self._ballot(void)
        group.all_reduce(vote, "max").wait()
        return float(vote.item())

    # -- a step that counts for nobody -----------------------------------------------------

    def void_step(self, group: Group, relay: Relay | None) -> None:
        """Take part in this step's reduction only to say that it does not count."""
        if group.size == 1:
            return
        if relay is None or not relay.takes:
            among = relay or group
            buckets = self._buckets_now()
            self._work = [among.all_reduce(bucket.voided(self.compression)) for bucket in buckets]
        if relay is not None:
            self._vote(1.0)
        self._settled()
