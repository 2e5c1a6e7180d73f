"""A group of one: every collective is already complete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from edl.collective.errands import Errand
from edl.errors import GroupBroken

__all__ = ["Alone", "SoloGroup"]

_Result = TypeVar("_Result")


class Alone:
    """A collective of one member."""

    def __init__(self, values: list[int] | None = None) -> None:
        self._rows = [] if values is None else [values]

    def wait(self) -> None:
        return

    def result(self) -> list[list[int]]:
        return self._rows

    def ready(self) -> bool:
        return True


class SoloGroup:
    """The whole job in this process."""

    rank = 0
    size = 1
    relay = None

    def __init__(self) -> None:
        self.broken = ""

    def exchange(self, values: list[int]) -> Alone:
        if self.broken:
            raise GroupBroken(self.broken)
        return Alone(values)

    def all_reduce(self, tensor: Any, op: str = "sum") -> Alone:
        return Alone()

    def broadcast(self, tensor: Any, root: int) -> Alone:
        return Alone()

    def broadcast_state(self, tensor: Any) -> Alone:
        return Alone()

    def part(self, through: Callable[[], None]) -> Errand[None]:
        raise AssertionError("nobody leaves a group of one")

    def settle(self) -> None:
        raise AssertionError("nobody leaves a group of one")

    def pair(self, source: int, target: int) -> SoloGroup:
        raise AssertionError("a group of one has no pairs")

    def break_(self, why: str) -> None:
        self.broken = self.broken or why

    def beside(self, work: Callable[[], _Result]) -> Errand[_Result]:
        errand = Errand(work)
        errand.run()
        return errand

    def drop_state(self) -> None:
        return

    def abandon(self) -> None:
        return

    def drop(self) -> None:
        return
