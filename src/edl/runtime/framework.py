"""The ports between the runtime and what it does not know: groups and frameworks.

A group is one generation's collectives. A framework is the plug-in that owns the model; the
session tells it when to send, to receive and to even out. Neither port knows of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from edl.protocol.topology import Generation
from edl.runtime.board import Board
from edl.runtime.tensorfile import Tensors
from edl.types import WorkerId

__all__ = [
    "BuildGroup",
    "BuildOptions",
    "Framework",
    "Group",
    "Pending",
    "Relay",
    "StatePath",
    "Task",
    "Transfer",
]

_Result = TypeVar("_Result")
_Given = TypeVar("_Given", covariant=True)


class Pending(Protocol):
    """Something under way in a group."""

    def wait(self) -> None: ...


class Exchange(Protocol):
    """A round of integers under way; `result` waits for it."""

    def result(self) -> list[list[int]]: ...

    def ready(self) -> bool: ...


class Task(Protocol[_Given]):
    """Something done in the background; `wait` gives its result or raises its error."""

    @property
    def began(self) -> float: ...

    @property
    def ended(self) -> float: ...

    def wait(self) -> _Given: ...


class Relay(Protocol):
    """The first step with newcomers, whose gradients the elders reduce among themselves."""

    @property
    def hands(self) -> bool:
        """This member is the source: it hands the newcomers what the elders have reduced."""
        ...

    @property
    def takes(self) -> bool:
        """This member is a newcomer."""
        ...

    def all_reduce(self, tensor: Any) -> Pending:
        """Among the elders."""
        ...

    def broadcast(self, tensor: Any) -> Pending:
        """From the source to the other elders."""
        ...

    def prepare(self, sizes: Iterable[int]) -> None:
        """Make room for what is handed over; it is ready before the step, if there is time."""
        ...

    def reserve(self, sizes: Iterable[int]) -> None:
        """The source will hand over rows of so many bytes."""
        ...

    def hand(self, rows: Iterable[Any]) -> None:
        """Read these rows now; they reach the newcomers in the background."""
        ...

    def take(self, rows: Sequence[Any]) -> None:
        """What was handed over, into these rows; waits for it."""
        ...

    def pass_on(self, tensor: Any) -> None:
        """The source's tensor to the newcomers, which wait for it; the source leaves it alone."""
        ...


class StatePath(Protocol):
    """The way of state from one member to others."""

    def broadcast_state(self, tensor: Any) -> Pending: ...

    def beside(self, work: Callable[[], _Result]) -> Task[_Result]:
        """Do this in the background, after whatever was given before it."""
        ...


class Group(StatePath, Protocol):
    """The collectives of one generation, as one member sees them."""

    rank: int
    size: int

    @property
    def broken(self) -> str:
        """Why it is of no use any more; empty while it is."""
        ...

    @property
    def relay(self) -> Relay | None:
        """How the first step is done, if some are new and others are not."""
        ...

    def exchange(self, values: list[int]) -> Exchange:
        """All-gather one row of integers, in rank order, without waiting."""
        ...

    def all_reduce(self, tensor: Any, op: str = "sum") -> Pending: ...

    def broadcast(self, tensor: Any, root: int) -> Pending: ...

    def part(self, through: Callable[[], None]) -> Task[None]:
        """After the first step, where some stay for it only: all say that they have committed it.

        In the background: `through` is called when everybody has, and the task is done when
        everybody's call has returned and everybody knows.
        """
        ...

    def settle(self) -> None:
        """From now on this is the group of those who go on; rank and size are theirs."""
        ...

    def pair(self, source: int, target: int) -> StatePath:
        """From one rank to another; only these two use it."""
        ...

    def break_(self, why: str) -> None:
        """Make everything that is under way in it fail, now, on whichever thread it waits."""
        ...

    def beside(self, work: Callable[[], _Result]) -> Task[_Result]:
        """Do this in the background, after whatever was given before it."""
        ...

    def drop_state(self) -> None:
        """The first step is done here: give back what only it needed, once everything given to
        `beside` is done. May take a while, as `drop` may."""
        ...

    def abandon(self) -> None:
        """Leave it to the process's end: work is pending in it that nobody will finish."""
        ...

    def drop(self) -> None:
        """Give everything back; may take a while, so never on the training thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a worker needs to build its end of a group, whichever the generation."""

    bind: str  # the address that its listeners bind to
    timeout_s: float  # until every peer is connected
    proof_timeout_s: float  # from then on, until every peer has proved the secret
    secret: bytes  # the job's


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What moving the state cost."""

    seconds: float
    bytes: int


class Framework(Protocol):
    """What a plug-in does for the session."""

    def build_group(
        self, generation: Generation, me: WorkerId, board: Board, options: BuildOptions
    ) -> Group: ...

    def start_sending(
        self, path: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]:
        """Read what must be as of now, stream the rest in the background; the result waits.

        `extra` is one more tensor, or None; `bare`: nothing but the snapshot and that.
        """
        ...

    def start_receiving(
        self, path: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]:
        """The source's snapshot now; the state arrives in the background, the result waits.

        `aside`: nothing of this worker's own state is touched before all of it has arrived. The
        sender's extra tensor is the snapshot's "extra" once the result has been called.
        """
        ...

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """Everything that makes the training what it is, copied; and a skeleton as plain JSON."""
        ...

    def install(self, tensors: Tensors, skeleton: dict[str, Any]) -> None:
        """Put back what `capture` gave."""
        ...

    def warm_up(self) -> Iterator[None]:
        """A newcomer is not in yet: whatever its first step would have to make is made now.

        A little with each `next`: the first does what may fail, the others may be left to the step.
        """
        ...

    def even_out(self, group: Group, root: int, relay: Relay | None) -> None:
        """Give everyone the root's buffers; newcomers by the relay, if there is one."""
        ...

    def hold(self, *, heavy: bool) -> None:
        """Remember the registered objects as they are; the heavy ones only if asked for.

        Heavy ones that are remembered already stay as they were remembered.
        """
        ...

    def put_back(self) -> None:
        """Make the registered objects what they were when they were remembered."""
        ...

    def settings(self) -> list[tuple[str, str]]:
        """Hyperparameters and what is small of registered objects: name and value, in an order
        that is the same on every worker. Called at every step."""
        ...

    def digests(self, part: int, parts: int) -> Callable[[], list[tuple[str, str]]]:
        """Digests of one of so many parts of all parameters and optimizer state, without buffers:
        the name of each array in it, and a digest of what of it lies in this part.

        The values are those of this moment; the result may be asked for later, and may wait then.
        """
        ...

    def broke(self) -> None:
        """Abandoned work may still write into buckets: the next step needs fresh ones."""
        ...

    def void_step(self, group: Group, relay: Relay | None) -> None:
        """Take part in the present step's reduction without a contribution, and void it."""
        ...


BuildGroup = Callable[[Generation, WorkerId, Board, BuildOptions], Group]
