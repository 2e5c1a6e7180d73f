"""A newcomer prepares its first step beside what it waits for, and keeps nobody waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edl.config import Settings
from edl.errors import UsageError
from edl.protocol.events import ContextReady
from edl.protocol.ledger import MapLedger
from edl.protocol.progress import Progress
from edl.protocol.record import Kind, unpack
from edl.protocol.topology import Generation, draw_next
from edl.runtime.entry import Entry, enter_job
from edl.runtime.replica_check import ReplicaCheck
from tests.seeded.cast import first, member, w

LEDGER = MapLedger(samples=8, batch=4, seed=0, shuffle=False, drop_last=False, epochs=1)
TARGET = draw_next(
    first(0), number=2, joiners=[member(1)], leavers=(), token=1, request_id="r"
)  # fmt: skip


class Round:
    """Complete when it has been looked at so often."""

    def __init__(self, looks: int, values: list[int]) -> None:
        self._looks, self._values = looks, values

    def ready(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def result(self) -> list[list[int]]:
        return [self._values, self._values]


class World:
    """Agent, framework and group of one newcomer, and what happens in which order."""

    def __init__(self, *, pieces: int, begun_after: int, round_after: int) -> None:
        self.order: list[str] = []
        self.identity = SimpleNamespace(request_id="r")
        self.dismissal = None
        self._pieces = pieces
        self._begun_after = begun_after
        self._round_after = round_after

    # As the agent.

    def post(self, event: object) -> None:
        self.order.append("ready" if isinstance(event, ContextReady) else "joined")

    def may_begin(self) -> bool:
        self._begun_after -= 1
        return self._begun_after < 0

    def wait_begun(self) -> Generation:
        self.order.append("begun")
        return TARGET

    def entered(self, number: int) -> World:
        assert number == TARGET.number
        return self

    def on_dismissed(self, listener: Callable[[], None]) -> None:
        assert callable(listener)

    # As the group.

    def exchange(self, values: list[int]) -> Round:
        assert unpack(values).kind == Kind.JOIN
        self.order.append("record")
        return Round(self._round_after, values)

    # As the framework.

    def warm_up(self) -> Iterator[None]:
        for _ in range(self._pieces):
            self.order.append("piece")
            yield

    def start_receiving(self, group: object) -> tuple[dict[str, Any], Callable[[], None]]:
        assert group is self
        self.order.append("state")
        return Progress(me=w(0), generation=TARGET, ledger=LEDGER).snapshot(), lambda: None

    def enter(self) -> Entry:
        actor = cast(Any, self)
        check = ReplicaCheck(actor, Settings())
        return enter_job(actor, actor, w(1), LEDGER, step=0, began=0.0, keeper=None, check=check)


def test_a_newcomer_is_ready_before_it_has_prepared_its_first_step() -> None:
    world = World(pieces=5, begun_after=2, round_after=9)
    assert world.enter().records is not None
    assert world.order == [
        "piece", "ready", "piece", "piece", "begun", "record", "piece", "piece", "joined", "state"
    ]  # fmt: skip


def test_preparations_that_are_not_done_at_the_switch_are_left_to_the_step() -> None:
    world = World(pieces=99, begun_after=0, round_after=1)
    world.enter()
    assert world.order == ["piece", "ready", "begun", "record", "piece", "joined", "state"]


def test_a_founder_prepares_nothing() -> None:
    world = World(pieces=5, begun_after=3, round_after=3)
    world.identity.request_id = ""
    world.enter()
    assert "piece" not in world.order


def test_what_may_fail_does_before_anybody_counts_on_the_newcomer() -> None:
    class Full(World):
        def warm_up(self) -> Iterator[None]:
            yield from self._make_buckets()

        def _make_buckets(self) -> Iterator[None]:
            raise UsageError("no room for the buckets")

    world = Full(pieces=0, begun_after=0, round_after=0)
    with pytest.raises(UsageError, match="no room"):
        world.enter()
    assert world.order == []
