"""What every plug-in does alike for the session: groups, state on its way, registered objects.

Owns nothing of its own: a plug-in has a state, a reducer and a holding, and says what they are.
Holds: whatever is made ready for newcomers is made ready while their group is built, not in a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from edl.collective.build import build_group
from edl.plugin.holding import Holder, Holding
from edl.protocol.topology import Generation
from edl.runtime.board import Board
from edl.runtime.framework import BuildOptions, Group, Relay, StatePath, Transfer
from edl.runtime.session import Session
from edl.types import WorkerId

__all__ = ["BasePlugin"]


class _State(Protocol):
    @property
    def registered(self) -> list[Holder]: ...

    def start_sending(
        self, path: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]: ...

    def start_receiving(
        self, path: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]: ...


class _Reducer(Protocol):
    @property
    def reduced(self) -> bool: ...

    def begin_step(self) -> None: ...

    def prepare_relay(self, relay: Relay) -> None: ...

    def void_step(self, group: Group, relay: Relay | None) -> None: ...

    def abandon(self) -> None: ...


class BasePlugin:
    """A plug-in's way to what it is made of. Derive from it, and say what that is."""

    session: Session
    state: _State
    reducer: _Reducer
    _holding: Holding

    def _build(
        self, generation: Generation, me: WorkerId, board: Board, options: BuildOptions
    ) -> Group:
        return build_group(generation, me, board, options)

    # -- the port --------------------------------------------------------------------------

    def build_group(
        self, generation: Generation, me: WorkerId, board: Board, options: BuildOptions
    ) -> Group:
        group = self._build(generation, me, board, options)
        if group.relay is not None and group.relay.hands:
            self.reducer.prepare_relay(group.relay)
        return group

    def start_sending(
        self, path: StatePath, snapshot: dict[str, Any], *, extra: Any = None, bare: bool = False
    ) -> Callable[[], Transfer]:
        return self.state.start_sending(path, snapshot, extra=extra, bare=bare)

    def start_receiving(
        self, path: StatePath, *, aside: bool = False
    ) -> tuple[dict[str, Any], Callable[[], Transfer]]:
        return self.state.start_receiving(path, aside=aside)

    def hold(self, *, heavy: bool) -> None:
        self._holding.hold(heavy=heavy)

    def put_back(self) -> None:
        self._holding.put_back()

    def broke(self) -> None:
        self.reducer.abandon()

    def void_step(self, group: Group, relay: Relay | None) -> None:
        self.reducer.void_step(group, relay)

    # -- what the face calls ---------------------------------------------------------------

    @property
    def registered(self) -> list[Holder]:
        return self.state.registered

    def register(self, holder: Holder, *, same: bool) -> None:
        """`same`: the values of this object are equal on all workers."""
        self._holding.register(holder, same=same)

    @property
    def reduced(self) -> bool:
        return self.reducer.reduced

    def begin_step(self) -> None:
        self.reducer.begin_step()
