"""Registered objects, remembered so that a step that did not count leaves no trace in them.

Owns: what was remembered when the present act began (see runtime/mending.py). Holds: an object
that is put back is what it was, as often as that happens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from edl.errors import UsageError
from edl.runtime.digests import flat_settings

__all__ = ["Holder", "Holding", "checked_holder"]

# Registered objects up to so many bytes of arrays are remembered at every step.
_LIGHT = 64 << 10


class Holder(Protocol):
    """Anything that can be registered."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def checked_holder(holder: Any) -> None:
    """UsageError for what cannot be registered."""
    if not callable(getattr(holder, "state_dict", None)) or not callable(
        getattr(holder, "load_state_dict", None)
    ):
        raise UsageError(
            f"edl.register needs state_dict() and load_state_dict(); "
            f"{type(holder).__name__} has not both"
        )


class Holding:
    """What `Framework.hold` and `Framework.put_back` do.

    `take` and `give` are for what the plug-in holds beside registered objects, such as learning
    rates, which schedules write into the optimizer. `slow`: reading this object costs too much to
    do it at every step, however small it is. `compared`: the part of an object's state that must be
    equal on all workers.
    """

    def __init__(
        self,
        registered: list[Holder],
        *,
        take: Callable[[], Any],
        give: Callable[[Any], None],
        slow: Callable[[Holder], bool] = lambda holder: False,
        compared: Callable[[Holder], object] = lambda holder: holder.state_dict(),
    ) -> None:
        self._registered = registered
        self._take = take
        self._give = give
        self._slow = slow
        self._compared = compared
        self._may_differ: set[int] = set()  # indexes of objects whose values are not compared
        self._held: dict[int, dict[str, Any]] = {}
        self._light: dict[int, bool] = {}
        self._rest: Any = None

    def register(self, holder: Holder, *, same: bool) -> None:
        """`same`: the values of this object are equal on all workers."""
        if not same:
            self._may_differ.add(len(self._registered))
        self._registered.append(holder)

    def hold(self, *, heavy: bool, slow: bool = True) -> None:
        """`slow`: those that are too much for every step, too."""
        if not heavy:
            self._held = {}
        for index, holder in enumerate(self._registered):
            now = self._is_light(index, holder) or (heavy and (slow or not self._slow(holder)))
            if index not in self._held and now:
                self._held[index] = copy.deepcopy(holder.state_dict())
        if not heavy or not self._rest:
            self._rest = self._take()

    def put_back(self) -> None:
        for index, held in self._held.items():
            self._registered[index].load_state_dict(copy.deepcopy(held))
        if self._rest:
            self._give(self._rest)

    def settings(self, scalar: Callable[[Any], object]) -> Iterator[tuple[str, str]]:
        """Plain values of registered objects that must be equal on all workers.

        Objects that are too much for every step are left out. `scalar`: see `flat_settings`.
        """
        for index, holder in enumerate(self._registered):
            if index not in self._may_differ and self._is_light(index, holder):
                name = f"registered {type(holder).__name__} ({index})"
                yield from flat_settings(name, self._compared(holder), scalar)

    def _is_light(self, index: int, holder: Holder) -> bool:
        """Whether it can be copied at every step without anybody noticing."""
        known = self._light.get(index)
        if known is None:
            light = not self._slow(holder) and weight_of(holder.state_dict()) <= _LIGHT
            known = self._light[index] = light
        return known


def weight_of(value: object) -> int:
    """Bytes of all arrays in a state_dict."""
    if isinstance(value, dict):
        return sum(map(weight_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(weight_of, value))
    size = getattr(value, "nbytes", 0)
    return size if isinstance(size, int) else 0
