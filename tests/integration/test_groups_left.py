"""A group that a worker has left is dropped while its script computes, and not before.

Dropping one takes tens of milliseconds of a core: at the switch itself everybody waited for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event

import pytest

from edl.collective.solo import SoloGroup
from edl.config import Settings
from edl.protocol.topology import Generation
from edl.runtime.agent import Agent
from edl.runtime.identity import Identity
from edl.store.embedded import EmbeddedServer
from edl.types import Address, Gpu, JobHandle, Member, WorkerId

pytestmark = pytest.mark.paired

PATIENCE_S = 20.0
ME = WorkerId("w0")
SLOT = Gpu("here", 0)


class Watched(SoloGroup):
    def __init__(self) -> None:
        super().__init__()
        self.dropped = Event()

    def drop(self) -> None:
        self.dropped.set()


@contextmanager
def agent_in(*groups: Watched) -> Iterator[Agent]:
    """A worker that has built a group for each generation from 1 on."""
    server = EmbeddedServer(job="job", secret=b"secret")
    server.start()
    identity = Identity(
        job=JobHandle("job"),
        worker=ME,
        slot=SLOT,
        bind="127.0.0.1",
        store=f"edl://{server.address}",
        secret=b"secret",
        request_id="request",
        founders=1,
        spawned_at=0.0,
        settings=Settings(),
    )
    agent = Agent(identity, lambda *_: SoloGroup())
    member = Member(worker=ME, address=Address("127.0.0.1", 1), host="here", slot=SLOT, pid=1)
    first = Generation(
        number=1,
        members=(member,),
        newcomers=(),
        source=ME,
        leader=ME,
        founding=True,
        mended=False,
        token=1,
        request_id="request",
    )
    for number, group in enumerate(groups, 1):
        agent.groups[number] = (replace(first, number=number), group)
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()
        server.stop()


def test_a_group_is_dropped_when_the_script_computes() -> None:
    left, entered = Watched(), Watched()
    with agent_in(left, entered) as agent:
        assert agent.entered(2) is entered
        assert not left.dropped.is_set()
        agent.sweep()
        assert left.dropped.wait(PATIENCE_S)
        assert not entered.dropped.is_set()


def test_whoever_goes_without_another_step_drops_it_too() -> None:
    left, entered = Watched(), Watched()
    with agent_in(left, entered) as agent:
        agent.entered(2)
    assert left.dropped.is_set()


def test_each_is_dropped_once() -> None:
    dropped: list[int] = []
    with agent_in(Watched()) as agent:
        agent.put_aside(lambda: dropped.append(1))
        agent.put_aside(lambda: dropped.append(2))
        agent.sweep()
        agent.sweep()
    assert sorted(dropped) == [1, 2]
