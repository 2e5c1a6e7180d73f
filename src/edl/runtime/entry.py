"""How a worker gets into its job: alone, as a founder, or as a newcomer.

Holds: when an entry is returned, this worker has the group, the step, the ledger and the state
that everyone else has; a newcomer also has the records of its first round.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edl.errors import GroupBroken
from edl.protocol.events import ContextReady, RoundJoined
from edl.protocol.progress import Ledger, Progress
from edl.protocol.record import Kind, StepRecord, pack, unpack
from edl.protocol.shards import ShardPart
from edl.protocol.topology import draw_first
from edl.runtime.agent import Agent
from edl.runtime.board import Board
from edl.runtime.clock import now
from edl.runtime.framework import BuildOptions, Exchange, Framework, Group, Transfer
from edl.runtime.keeper import Keeper
from edl.runtime.replica_check import ReplicaCheck
from edl.types import Address, Gpu, Member, WorkerId

__all__ = ["Entry", "enter_alone", "enter_job", "present_pieces", "present_step"]

# This process's own, once it trains: asked for when its script fails.
_present: Progress | None = None

_NOTHING = Transfer(seconds=0.0, bytes=0)
_JOIN = StepRecord(
    kind=Kind.JOIN,
    step=0,
    samples=0,
    want=0,
    back=0,
    compute_us=0,
    leaving=0,
    ahead=0,
    next_generation=0,
    switch_step=0,
    token=0,
    detail=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a worker holds once it is in."""

    progress: Progress
    group: Group | None
    transfer: Transfer
    receiving: Callable[[], Transfer] | None
    records: list[StepRecord] | None
    whole: bool  # this worker has the job's state
    fault: GroupBroken | None = None  # the generation fell while this worker entered it


def present_step() -> int | None:
    """How many steps are done in this process; None until it is in its job."""
    return None if _present is None else _present.step


def present_pieces() -> list[tuple[int, int, int, int]]:
    """What the step in hand uses here of partitions: epoch, partition, offset and length."""
    if _present is None or _present.me not in _present.generation:
        return []
    part = _present.plan().part
    if not isinstance(part, ShardPart):
        return []
    return [(part.epoch, each.partition, each.offset, each.length) for each in part.pieces]


def _enter(progress: Progress) -> Progress:
    global _present
    _present = progress
    return progress


def enter_alone(
    framework: Framework, me: WorkerId, ledger: Ledger, keeper: Keeper | None, *, step: int
) -> Entry:
    """A job of one worker in this process, with nobody to ask; `step`: where its data is."""
    member = Member(
        worker=me,
        address=Address("127.0.0.1", 0),
        host="localhost",
        slot=Gpu("localhost", 0),
        pid=0,
    )
    generation = draw_first([member], number=1, leader=me, token=0)
    alone = BuildOptions(bind="127.0.0.1", timeout_s=0.0, proof_timeout_s=0.0, secret=b"")
    group = framework.build_group(generation, me, Board(lambda key, value: None), alone)
    progress = _enter(Progress(me=me, generation=generation, ledger=ledger, step=step))
    if keeper is not None:
        keeper.begin(progress)
    return Entry(
        progress=progress,
        group=group,
        transfer=_NOTHING,
        receiving=None,
        records=None,
        whole=True,
    )


def enter_job(
    agent: Agent,
    framework: Framework,
    me: WorkerId,
    ledger: Ledger,
    *,
    step: int,
    began: float,
    keeper: Keeper | None,
    check: ReplicaCheck,
) -> Entry:
    """Say that the context is prepared, wait to be let in, and take over the job's state."""
    warming = framework.warm_up() if agent.identity.request_id else iter(())
    # What may fail does now: until this worker is ready, that costs the job nothing.
    next(warming, None)
    agent.post(ContextReady(context_s=now() - began))
    # The rest beside what a newcomer waits for: others build groups and finish steps meanwhile.
    _warm_up(warming, until=agent.may_begin)
    generation = agent.wait_begun()
    assert generation is not None
    progress = _enter(Progress(me=me, generation=generation, ledger=ledger, step=step))
    source = generation.founding and generation.source == me
    if keeper is not None and source:
        keeper.begin(progress)
    group: Group | None = None
    try:
        if generation.mended:
            raise GroupBroken("the first generation fell before this worker had entered it")
        group = agent.entered(generation.number)
        return _take_part(agent, framework, progress, group, warming, check)
    except GroupBroken as error:
        return Entry(
            progress=progress,
            group=group,
            transfer=_NOTHING,
            receiving=None,
            records=None,
            whole=source,
            fault=error,
        )


def _warm_up(warming: Iterator[None], *, until: Callable[[], bool]) -> None:
    """Prepare for the first step as long as there is nothing better to do."""
    while not until():
        try:
            next(warming)
        except StopIteration:
            return


def _take_part(
    agent: Agent,
    framework: Framework,
    progress: Progress,
    group: Group,
    warming: Iterator[None],
    check: ReplicaCheck,
) -> Entry:
    """The first round of a group, and the state."""
    generation, me = progress.generation, progress.me
    records: list[StepRecord] | None = None
    transfer, receiving = _NOTHING, None
    if not generation.founding:
        # The first round of the new group is our first step, whichever number it has.
        exchange = group.exchange(pack(_JOIN))
        # It is under way, so nobody waits for this worker; the others are steps away from theirs.
        _warm_up(warming, until=lambda: exchange.ready() or agent.dismissal is not None)
        rows = _await_rows(agent, group, exchange)
        records = [unpack(row) for row in rows]
        agent.post(RoundJoined(generation=generation.number))
    if generation.newcomers and generation.source == me:
        snapshot = {**progress.snapshot(), **check.shared()}
        transfer = framework.start_sending(group, snapshot)()
    elif generation.newcomers:
        snapshot, receiving = framework.start_receiving(group)
        progress.adopt(snapshot)
        check.adopt(snapshot)
    if generation.founding and receiving is not None:
        # Founders carry their share at once, so they need the state at once.
        transfer, receiving = receiving(), None
    return Entry(
        progress=progress,
        group=group,
        transfer=transfer,
        receiving=receiving,
        records=records,
        whole=receiving is None,
    )


def _await_rows(agent: Agent, group: Group, exchange: Exchange) -> list[list[int]]:
    """Wait for the round, or for word that it will never be."""
    outcome: queue.SimpleQueue[list[list[int]] | GroupBroken | None] = queue.SimpleQueue()

    def collect() -> None:
        try:
            outcome.put(exchange.result())
        except GroupBroken as error:
            outcome.put(error)

    threading.Thread(target=collect, name="edl-join", daemon=True).start()
    agent.on_dismissed(lambda: outcome.put(None))
    answer = outcome.get()
    if answer is None or (isinstance(answer, GroupBroken) and agent.dismissal is not None):
        group.abandon()
        agent.go()
    if isinstance(answer, GroupBroken):
        raise answer
    assert answer is not None
    return answer
