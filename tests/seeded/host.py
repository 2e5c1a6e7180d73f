"""What a fake training thread needs of its process, and says to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from edl.protocol.effects import Announce
from edl.protocol.events import Event
from edl.protocol.progress import Progress
from edl.protocol.topology import Generation
from edl.types import WorkerId
from tests.seeded.collective import Collective, Gate
from tests.seeded.history import History
from tests.seeded.plan import Plan

__all__ = ["Found", "Host", "How", "Line", "Wait"]

Wait = float | Gate


class Host(Protocol):
    """What a training thread needs of its process."""

    me: WorkerId
    word: Announce
    begun: Gate
    may_go: Gate
    let_go: set[int]
    generation: Generation | None
    history: History
    plan: Plan

    def post(self, event: Event) -> None: ...

    def adopt_progress(self, progress: Progress) -> None: ...

    def group(self, generation: Generation) -> Collective: ...

    def begun_after(self, number: int) -> Gate: ...

    def parting(self, number: int) -> Gate: ...

    def when_open(self, gate: Gate, then: Callable[[], None]) -> None: ...

    def jitter(self, mean: float) -> float: ...

    def now(self) -> float: ...

    def exit(self, status: int, why: str) -> None: ...


class How(Enum):
    """How a loop ended."""

    CLOSED = "closed"
    OVER = "over"
    LEFT = "left"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Line:
    """What one worker puts into a round: its record, and the state that a source sends beside."""

    values: list[int]
    snapshot: dict[str, Any] | None
    model: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Found:
    """What a recovery says of the act that broke here: its result, if a survivor has one."""

    committed: bool = False
    result: Any = None
