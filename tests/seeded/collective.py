"""Collectives between the fake workers: the n-th call of every member is one exchange.

Like the real ones, an exchange completes when every member has taken part, and never before; each
member completes in its own time. A death is noticed by the dead one's ring neighbours alone: the
others wait until they break their own group, and some of them may have completed before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["Broken", "Collective", "Exchange", "Gate", "Ground"]

# A peer behind a broken network is given up after so long, as TCP does in the end.
_GIVEN_UP_S = 5.0
_LOOK_AGAIN_S = 0.25


class Broken(Exception):
    """A collective failed under a training thread."""


class Gate:
    """Something that a training thread can wait for."""

    __slots__ = ("_waiting", "kind", "open")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.open = False
        self._waiting: list[Callable[[], None]] = []

    def when_open(self, resume: Callable[[], None]) -> None:
        self._waiting.append(resume)

    def let_through(self) -> None:
        self.open = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()


class Exchange(Gate):
    """One member's view of one exchange: everyone's value once it is complete here."""

    __slots__ = ("broken", "values")

    def __init__(self, kind: str, values: dict[WorkerId, Any]) -> None:
        super().__init__(kind)
        self.values = values
        self.broken = ""

    def fail(self, why: str) -> None:
        if not self.open:
            self.broken = why
            self.let_through()


class Ground(Protocol):
    """What a group stands on: time, luck, and who can be reached."""

    faulty: bool

    def chance(self, odds: float) -> bool: ...

    def after(self, delay: float, what: Callable[..., None], *arguments: Any) -> None: ...

    def spread_s(self) -> float: ...

    def is_frozen(self, worker: WorkerId) -> bool: ...

    def cut_for(self, one: WorkerId, other: WorkerId) -> float: ...

    def completed(self, kind: str, worker: WorkerId) -> None: ...


class _Meeting:
    """The n-th exchange of a kind, as all members together make it."""

    __slots__ = ("lost", "missing", "name", "torn", "values", "views")

    def __init__(self, name: str, order: tuple[WorkerId, ...]) -> None:
        self.name = name
        self.missing = set(order)
        self.values: dict[WorkerId, Any] = {}
        self.views: dict[WorkerId, Exchange] = {}
        self.torn = False  # somebody went before all of it had passed through
        self.lost: set[WorkerId] = set()  # members that its data will not reach any more


class Collective:
    """The group of one generation."""

    def __init__(self, generation: Generation, ground: Ground) -> None:
        self.generation = generation
        self.ground = ground
        self.gone: dict[WorkerId, str] = {}  # members that died or broke it on their side
        self._order = generation.workers()
        self._calls: dict[tuple[str, WorkerId], int] = {}
        self._meetings: dict[tuple[str, int], _Meeting] = {}
        self._arriving: list[_Meeting] = []  # complete, but not yet on everybody

    def put(self, kind: str, worker: WorkerId, value: Any) -> Exchange:
        """Take part in this member's next exchange of this kind."""
        if worker in self.gone:
            broken = Exchange(f"{kind} of generation {self.generation.number}", {})
            broken.fail(self.gone[worker])
            return broken
        number = self._calls.get((kind, worker), 0)
        self._calls[kind, worker] = number + 1
        found = self._meetings.get((kind, number))
        if found is None:
            name = f"{kind} {number} of generation {self.generation.number}"
            found = self._meetings[kind, number] = _Meeting(name, self._order)
        assert worker in found.missing, f"{worker} is in {found.name} twice"
        found.missing.discard(worker)
        found.values[worker] = value
        view = found.views[worker] = Exchange(found.name, found.values)
        if any(neighbour in self.gone for neighbour in self._neighbours(worker)):
            self.ground.after(self.ground.spread_s(), view.fail, "a peer has gone")
        if not found.missing:
            del self._meetings[kind, number]
            self._complete(kind, found)
        elif self.ground.faulty:
            self.ground.after(_GIVEN_UP_S, self._give_up, worker, view)
        return view

    def _complete(self, kind: str, meeting: _Meeting) -> None:
        ordered = {member: meeting.values[member] for member in self._order}
        meeting.values.clear()
        meeting.values.update(ordered)
        if not self.ground.faulty:
            for view in meeting.views.values():
                view.let_through()
            return
        self._arriving = [m for m in self._arriving if not all(v.open for v in m.views.values())]
        self._arriving.append(meeting)
        for member in meeting.views:
            self.ground.after(self.ground.spread_s(), self._arrive, kind, member, meeting)

    def _arrive(self, kind: str, member: WorkerId, meeting: _Meeting) -> None:
        """The data reaches this member, unless somebody on its way has gone."""
        ground, view = self.ground, meeting.views[member]
        if view.open or member in self.gone:
            return
        if meeting.torn and not ground.chance(0.5):
            meeting.lost.add(member)
            if any(neighbour in self.gone for neighbour in self._neighbours(member)):
                view.fail("a peer has gone")
            return
        held = any(ground.is_frozen(other) for other in self._order if other != member)
        if (held and not ground.chance(0.2)) or self._torn():
            ground.after(_LOOK_AGAIN_S, self._arrive, kind, member, meeting)
            self._give_up(member, view)
            return
        view.let_through()
        ground.completed(kind, member)

    def _torn(self) -> bool:
        pairs = zip(self._order, (*self._order[1:], self._order[0]), strict=True)
        return any(
            self.ground.cut_for(one, other)
            for one, other in pairs
            # One that went in good order had everything, and had sent it on.
            if one not in self.gone and other not in self.gone
        )

    def _give_up(self, member: WorkerId, view: Exchange) -> None:
        if view.open:
            return
        for other in self._neighbours(member):
            if self.ground.cut_for(member, other) > _GIVEN_UP_S:
                view.fail(f"{other} is out of reach")
        if any(self.ground.cut_for(member, other) for other in self._neighbours(member)):
            self.ground.after(1.0, self._give_up, member, view)

    def leave(self, member: WorkerId, why: str, *, in_order: bool = False) -> None:
        """This member goes, or breaks the group on its side: its neighbours notice.

        One that goes in good order has sent all it had to send. Of what another one had
        completed some may still be under way; then a neighbour misses it, and notices.
        """
        if member in self.gone or member not in self._order:
            return
        self.gone[member] = why
        for meeting in self._meetings.values():
            meeting.torn = True
            self._fail_around(member, meeting, why)
        for meeting in self._arriving:
            views = meeting.views
            near = [w for w in self._neighbours(member) if not views[w].open and w not in self.gone]
            if near and not in_order and self.ground.chance(0.7):
                meeting.torn = True
                self._fail_around(member, meeting, why)
            elif not views[member].open:
                views[member].fail(why)
            # What a neighbour still waits for can come from nobody else.
            for neighbour in self._neighbours(member):
                if neighbour in meeting.lost:
                    views[neighbour].fail(f"{member} has gone")

    def _fail_around(self, member: WorkerId, meeting: _Meeting, why: str) -> None:
        if member in meeting.views:
            meeting.views[member].fail(why)
        for neighbour in self._neighbours(member):
            if neighbour in meeting.views:
                late = self.ground.spread_s()
                self.ground.after(late, meeting.views[neighbour].fail, f"{member} has gone")

    def _neighbours(self, member: WorkerId) -> list[WorkerId]:
        place, size = self._order.index(member), len(self._order)
        around = {self._order[place - 1], self._order[(place + 1) % size]} - {member}
        # Sorted, so that the same seed is the same story in every process.
        return sorted(around)

    def waited_for(self) -> list[str]:
        """What is not complete, for the story of a job that hangs."""
        return [
            f"{meeting.name} lacks {', '.join(sorted(meeting.missing)[:8])}"
            for meeting in self._meetings.values()
        ]
