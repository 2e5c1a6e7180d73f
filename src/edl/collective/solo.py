"""A group of one: every collective is already complete."""

from __future__ import annotations

from typing import Any

from edl.errors import GroupBroken

__all__ = ["SoloGroup"]


class _Done:
    def __init__(self, rows: list[list[int]]) -> None:
        self._rows = rows

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

    def __init__(self) -> None:
        self.broken = ""

    def exchange(self, values: list[int]) -> _Done:
        if self.broken:
            raise GroupBroken(self.broken)
        return _Done([values])

    def all_reduce(self, tensor: Any, op: str = "sum") -> _Done:
        return _Done([])

    def broadcast(self, tensor: Any, root: int) -> _Done:
        return _Done([])

    def broadcast_state(self, tensor: Any) -> _Done:
        return _Done([])

    def pair(self, source: int, target: int) -> SoloGroup:
        raise AssertionError("a group of one has no pairs")

    def break_(self, why: str) -> None:
        self.broken = self.broken or why

    def drop_state(self) -> None:
        return

    def abandon(self) -> None:
        return

    def drop(self) -> None:
        return
