"""The background thread of a worker: feeds its machines and does what they ask.

Owns: the hub's thread, the connections, the groups that are built or being built, and what the
training thread may want to know (the announcement in force, whether it may begin or go). Holds:
machines are stepped on this thread only; the training thread waits, posts and reads. A machine that
raised is never stepped again: the agent gives its lease up, closes its connections, and the process
ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NoReturn

from edl.errors import BuildFailed, CheckpointError, EdlError, GroupBroken, Leave, StoreError
from edl.failpoints import hit
from edl.protocol import effects as fx
from edl.protocol.conductor import GENERATION_KEY
from edl.protocol.election import LEADER_KEY
from edl.protocol.events import (
    Broke,
    EntryMade,
    Event,
    GenerationSeen,
    GroupFell,
    GroupStands,
    Heard,
    KeyMade,
    LeaderSeen,
    PeerClosed,
    PeerOpened,
    StateSeen,
    Swapped,
    Tick,
)
from edl.protocol.leader import STATE_KEY
from edl.protocol.messages import MESSAGES
from edl.protocol.node import Node
from edl.protocol.recorded import read_recorded
from edl.protocol.topology import Generation
from edl.runtime.board import Board, Entry
from edl.runtime.clock import now, wall
from edl.runtime.courier import Courier
from edl.runtime.framework import BuildGroup, BuildOptions, Group
from edl.runtime.identity import Identity
from edl.runtime.watchdog import Charge, Watchdog
from edl.store.base import Versioned, open_store
from edl.types import Address, Member, WorkerId
from edl.wire.codec import Codec
from edl.wire.hub import Hub
from edl.wire.peer import Peer

__all__ = ["Agent", "Dismissal"]

_log = logging.getLogger("edl.agent")

# How long a worker that goes waits for groups that are still being destroyed.
_DROP_S = 5.0
# After a fault of the agent, how long the training thread has to notice it and end the script.
_FAULT_GRACE_S = 10.0
# Between two attempts to watch a key.
_WATCH_AGAIN_S = 0.2
_QUIET = fx.Announce(generation=0, switch_step=0, token=0)


@dataclass(frozen=True, slots=True)
class Dismissal:
    """Why this worker is not wanted."""

    why: str
    failed: bool
    over: bool  # because the whole job is


class Agent:
    """One worker's control side, running."""

    def __init__(self, identity: Identity, build_group: BuildGroup) -> None:
        self.identity = identity
        self._build_group = build_group
        self.word = _QUIET
        self.groups: dict[int, tuple[Generation, Group | None]] = {}
        self.begun: Generation | None = None
        self.dismissal: Dismissal | None = None
        self.may_go = False
        self.committed = 0  # written by the training thread, for events of this worker as leader
        self.let_go = 0  # the generation whose others may go on without this worker
        self.changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._boards: dict[int, Board] = {}
        self._early: dict[int, list[fx.OfferKey | fx.OfferTable]] = {}
        self._dialled: dict[int, Peer] = {}
        self._incoming: dict[int, Peer] = {}
        self._next_incoming = 1
        self._aside: list[Callable[[], None]] = []
        self._drops: list[threading.Thread] = []
        self._builds: list[threading.Thread] = []
        self._faulted = False  # a machine raised
        # Ready from the start: a process that is out of threads cannot start one when it must end.
        self._ender = threading.Thread(target=self._await_end, name="edl-ender", daemon=True)
        self._must_end = threading.Event()
        self._stopping = threading.Lock()
        self._control_stopped = False
        self._stopped = threading.Event()
        self._proof_timeout_s = identity.settings.proof_timeout_s
        self._hub = Hub(
            name=f"edl-agent-{identity.worker}",
            job=identity.job,
            secret=identity.secret,
            codec=Codec(MESSAGES),
            on_message=self._on_message,
            on_open=self._on_open,
            on_closed=self._on_closed,
            on_tick=self._on_tick,
            on_error=self._on_error,
            tls=identity.tls,
        )
        address = self._hub.listen(identity.bind)
        self.node = Node(
            me=_member_of(identity, address),
            request_id=identity.request_id,
            founders=identity.founders,
            settings=identity.settings,
            process_start_s=max(0.0, wall() - identity.spawned_at) if identity.spawned_at else 0.0,
        )
        self._store = open_store(
            identity.store, job=identity.job, secret=identity.secret, tls=identity.tls
        )
        lease = f"{identity.worker}-{os.getpid()}"
        self._courier = Courier(
            self._store,
            lease=lease,
            lease_s=identity.settings.lease_s,
            answer=self._on_swapped,
        )
        self._watchdog = _watchdog_of(identity, lease)

    # -- for the training thread -----------------------------------------------------------

    def start(self) -> None:
        self._ender.start()
        if self._watchdog is not None:
            self._watchdog.start()
        self._hub.start()
        self._courier.start()
        self._watch(LEADER_KEY, lambda at: LeaderSeen(value=at.value, revision=at.revision))
        self._watch(GENERATION_KEY, lambda at: GenerationSeen(value=at.value, revision=at.revision))
        self._watch(STATE_KEY, lambda at: StateSeen(value=at.value))

    def _watch(self, key: str, event_of: Callable[[Versioned], Event]) -> None:
        """A store that is away for a moment while this worker starts does not end the worker."""
        deadline = now() + self.identity.settings.register_timeout_s
        while True:
            try:
                self._store.watch(key, lambda found: self.post(event_of(found)))
                return
            except StoreError as error:
                if now() >= deadline:
                    raise
                _log.warning("store.watch key=%s failed, asking again: %s", key, error)
                time.sleep(_WATCH_AGAIN_S)

    def post(self, event: Event, *, urgent: bool = True) -> None:
        """From any thread: the machines see it soon; what is not urgent, within a tick.

        To wake the agent after every step would cost more than all that EDL does in one.
        """
        self._hub.post(lambda: self._step(event), wake=urgent)

    @property
    def leads(self) -> bool:
        """Whether this worker leads now. A hint: it may change while it is read."""
        return self.node.leader is not None

    def confirm_member(self) -> None:
        """CheckpointError unless this worker is a member now. From any thread; asks the store.

        A launcher sees its own workers end. One that it did not start may live when the launcher
        takes it for dead, fences its generation and starts the job again.
        """
        standing = self.node.standing
        if not self.identity.unsupervised or standing.ended:
            return
        advice = "it is tried again when the next one is due"
        try:
            ended, found = self._store.get(STATE_KEY), self._store.get(GENERATION_KEY)
        except StoreError as error:
            raise CheckpointError(
                "no checkpoint was written, since the store does not confirm that worker "
                f"{self.identity.worker} is still a member: {error}; {advice}"
            ) from error
        if ended.value is not None:
            return
        known = read_recorded(found.value).generation if found.value is not None else None
        if standing.fenced or known is None or self.identity.worker not in known:
            raise CheckpointError(
                f"no checkpoint was written, since worker {self.identity.worker} is no member of "
                f"job {self.identity.job} any more"
            )

    def on_dismissed(self, listener: Callable[[], None]) -> None:
        """Call this when the worker turns out not to be wanted; at once if it has."""
        with self.changed:
            self._listeners.append(listener)
            late = self.dismissal is not None
        if late:
            listener()

    def wait_may_go(self, timeout_s: float) -> bool:
        """Until nothing keeps this process any more."""
        with self.changed:
            return self.changed.wait_for(lambda: self.may_go, timeout_s)

    def may_begin(self) -> bool:
        """Whether `wait_begun` would not wait."""
        return self.begun is not None or self.dismissal is not None

    def wait_begun(self, *, beyond: int = 0) -> Generation | None:
        """Until the training thread may begin a generation later than this one.

        None: the job is over, and this worker was in it. Raises Leave, or what went wrong, if this
        worker turns out not to be wanted.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    (self.begun is not None and self.begun.number > beyond)
                    or self.dismissal is not None
                )
            )
            begun, dismissal = self.begun, self.dismissal
        if dismissal is not None and dismissal.over and beyond:
            return None
        if dismissal is not None:
            self.go()
        return begun

    def wait_let_go(self, number: int) -> None:
        """Until this worker may let the others go on without it. Raises GroupBroken if never."""

        group = self.groups[number][1]
        assert group is not None
        with self.changed:
            self.changed.wait_for(lambda: self.let_go == number or group.broken or self.may_go)
            if self.let_go != number:
                raise GroupBroken(group.broken or "this worker is dismissed")

    def go(self) -> NoReturn:
        """This worker is dismissed: say goodbye, and tell the script."""
        assert self.dismissal is not None
        self.stop()
        why = self.dismissal.why
        if self.dismissal.failed:
            raise EdlError(why)
        self.identity.announce(f"worker {self.identity.worker} left job {self.identity.job}: {why}")
        raise Leave(why)

    def broke(self, number: int, why: str) -> None:
        """From the training thread: this generation is dead for it, and for its neighbours."""
        self.post(Broke(generation=number, why=why))
        self.break_group(number, why)

    def break_group(self, number: int, why: str) -> None:
        """Wake whoever waits in this generation's collectives, here and at the other ends."""
        built = self.groups.get(number)
        if built is not None and built[1] is not None:
            built[1].break_(why)
            with self.changed:
                self.changed.notify_all()

    def abandon(self) -> None:
        """The script failed: nobody must wait for this worker while its process ends."""
        for number, (_, group) in list(self.groups.items()):
            self.break_group(number, "this worker's script failed")
            if group is not None:
                group.abandon()

    def stop(self) -> None:
        """Say what is still to be said, then close everything."""
        self._stop_control()
        for board in list(self._boards.values()):
            board.cancel("this worker is going")
        self.sweep()
        # An interpreter that ends while a group is being destroyed takes the process down with it.
        until = now() + _DROP_S
        for thread in self._drops:
            thread.join(max(0.0, until - now()))
        if not self.identity.spawned_at:
            # Nor must it end while a constructor of Gloo waits for a peer; that gives up by itself.
            # A worker of a launcher ends without finalizing its interpreter.
            until = now() + self.identity.settings.build_timeout_s + _DROP_S
            for thread in self._builds:
                thread.join(max(0.0, until - now()))
        self._stopped.set()
        self._must_end.set()

    def _stop_control(self) -> None:
        """End the heartbeats, give the lease up and close every connection, once."""
        with self._stopping:
            if self._control_stopped:
                return
            self._control_stopped = True
            if self._watchdog is not None:
                # First: it must not renew a lease that is about to be given up.
                self._watchdog.stop()
            self._courier.stop(revoke=True, timeout_s=5.0)
            self._hub.stop()
            self._store.close()

    # -- events in -------------------------------------------------------------------------

    def _on_open(self, peer: Peer) -> None:
        if isinstance(peer.tag, int):
            self._step(PeerOpened(peer=peer.tag))
            return
        number = self._next_incoming
        self._next_incoming += 1
        peer.tag = number
        self._incoming[number] = peer

    def _on_message(self, peer: Peer, message: object) -> None:
        assert isinstance(peer.tag, int)
        self._step(Heard(peer=peer.tag, message=message))  # type: ignore[arg-type]

    def _on_closed(self, peer: Peer, why: str) -> None:
        number = peer.tag
        if not isinstance(number, int):
            return
        self._incoming.pop(number, None)
        self._dialled.pop(number, None)
        self._step(PeerClosed(peer=number, why=why))

    def _on_tick(self) -> None:
        self._step(Tick())
        if self._watchdog is not None and not self._faulted:
            self._watchdog.beat(now(), self.node.watchers, leads=self.leads)

    def _on_swapped(self, event: Swapped) -> None:
        self.post(event)

    def _on_error(self, error: BaseException) -> None:
        """A machine raised half-way. Its state may be inconsistent, so nothing is done by it."""
        _log.error("agent.fault job=%s: %r", self.identity.job, error, exc_info=error)
        if self._faulted:
            return
        self._faulted = True
        why = f"the agent failed: {error!r}"
        try:
            self._dismiss(fx.Dismiss(why=why, failed=True))
            for number in list(self.groups):
                self.break_group(number, why)
        finally:
            self._must_end.set()

    def _await_end(self) -> None:
        """On a thread of its own: this worker leads no more, whatever its script does meanwhile."""
        self._must_end.wait()
        if self._stopped.is_set():
            return
        try:
            self._stop_control()
        except Exception:
            _log.exception("agent.fault job=%s: the control side did not stop", self.identity.job)
            os._exit(1)
        if self._faulted and not self._stopped.wait(_FAULT_GRACE_S):
            _log.error("agent.fault job=%s: the script goes on, so it is ended", self.identity.job)
            os._exit(1)

    def _step(self, event: Event) -> None:
        if self._faulted:
            return
        hit("agent.event")
        self.node.committed = self.committed
        for message, effects in groupby(self.node.step(event, now()), key=_message_identity):
            if message is None:
                for effect in effects:
                    self._perform(effect)
            else:
                self._send([each for each in effects if isinstance(each, fx.Send)])

    # -- effects out -----------------------------------------------------------------------

    def _send(self, sends: list[fx.Send]) -> None:
        """Send the one message that all of these carry; it is encoded once."""
        peers = (self._dialled.get(each.peer) or self._incoming.get(each.peer) for each in sends)
        self._hub.broadcast((peer for peer in peers if peer is not None), sends[0].message)

    def _perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Dial(peer=number, address=address):
                self._dialled[number] = self._hub.connect(address, tag=number)
            case fx.Close(peer=number):
                peer = self._dialled.get(number) or self._incoming.get(number)
                if peer is not None:
                    self._hub.close(peer)
            case fx.StoreSwap():
                self._courier.swap(effect)
            case fx.BuildGroup(generation=generation):
                self._start_building(generation)
            case fx.DropGroup(number=number, why=why):
                self._drop(number, why)
            case fx.BreakGroup(number=number, why=why):
                self.break_group(number, why)
                board = self._boards.get(number)
                if board is not None:
                    board.cancel(why)
            case fx.OfferKey() | fx.OfferTable():
                self._offer(effect)
            case fx.Announce():
                self.word = effect
            case fx.Begin(generation=generation):
                with self.changed:
                    self.begun = generation
                    self.changed.notify_all()
            case fx.Dismiss():
                self._dismiss(effect)
            case fx.LetGo(generation=number):
                with self.changed:
                    self.let_go = number
                    self.changed.notify_all()
            case fx.MayGo():
                with self.changed:
                    self.may_go = True
                    self.changed.notify_all()
            case fx.Publish(happened=happened):
                fields = " ".join(f"{k}={v}" for k, v in happened.fields.items())
                _log.info(
                    "%s job=%s gen=%d batch=%d request=%s %s",
                    happened.what,
                    self.identity.job,
                    happened.generation,
                    happened.step,
                    happened.request_id or "-",
                    fields,
                )

    def _dismiss(self, effect: fx.Dismiss) -> None:
        with self.changed:
            if self.dismissal is None:
                self.dismissal = Dismissal(effect.why, effect.failed, effect.over)
            self.may_go = True
            self.changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        if effect.retire:
            self._must_end.set()

    # -- groups ----------------------------------------------------------------------------

    def _start_building(self, generation: Generation) -> None:
        number, me = generation.number, self.identity.worker
        if me not in generation:
            self.groups[number] = (generation, None)
            self._step(GroupStands(number=number, build_s=0.0))
            return
        board = Board(
            lambda key, value: self.post(KeyMade(generation=number, key=key, value=value)),
            lambda entry: self._post_entry(number, entry),
        )
        self._boards[number] = board
        for early in self._early.pop(number, []):
            self._offer(early)
        thread = threading.Thread(
            target=self._build, args=(generation, board), name=f"edl-build-{number}", daemon=True
        )
        self._builds = [one for one in self._builds if one.is_alive()] + [thread]
        thread.start()

    def _build(self, generation: Generation, board: Board) -> None:
        began, number = now(), generation.number
        settings = self.identity.settings
        options = BuildOptions(
            bind=self.identity.bind,
            timeout_s=settings.build_timeout_s,
            proof_timeout_s=self._proof_timeout_s,
            secret=self.identity.secret,
        )
        try:
            group = self._build_group(generation, self.identity.worker, board, options)
        except EdlError as error:
            if not board.cancelled():
                # Peers that are only slow get more time at the next attempt.
                longer = min(2 * options.proof_timeout_s, settings.build_timeout_s)
                self._proof_timeout_s = max(options.proof_timeout_s, longer)
            failed = error if isinstance(error, BuildFailed) else BuildFailed(str(error))
            self.post(
                GroupFell(
                    number=number,
                    why=str(error),
                    unreached=tuple(map(WorkerId, failed.unreached)),
                    unproven=tuple(map(WorkerId, failed.unproven)),
                )
            )
            return
        except Exception as error:
            # A fault of ours, or of the system. The leader must not wait for this build.
            _log.exception("group.fault job=%s gen=%d", self.identity.job, number)
            self.post(GroupFell(number=number, why=f"{type(error).__name__}: {error}"))
            return
        if board.cancelled():
            group.drop()
            self.post(GroupFell(number=number, why="it was undone while it was built"))
            return
        self._proof_timeout_s = settings.proof_timeout_s
        self.groups[number] = (generation, group)
        self.post(GroupStands(number=number, build_s=now() - began))

    def _post_entry(self, number: int, entry: Entry) -> None:
        self.post(
            EntryMade(
                generation=number,
                group=entry.group,
                rank=entry.rank,
                size=entry.size,
                key=entry.key,
                common=entry.common,
                parts=entry.parts,
            )
        )

    def _offer(self, effect: fx.OfferKey | fx.OfferTable) -> None:
        board = self._boards.get(effect.generation)
        if board is None:
            self._early.setdefault(effect.generation, []).append(effect)
        elif isinstance(effect, fx.OfferTable):
            board.offer_table(effect.entries, rank=effect.rank, size=effect.size)
        else:
            board.offer(effect.key, effect.value)

    def _drop(self, number: int, why: str) -> None:
        board = self._boards.pop(number, None)
        if board is not None:
            board.cancel(why)
        built = self.groups.pop(number, None)
        if built is not None and built[1] is not None:
            self._begin_drop(built[1].drop)

    def entered(self, number: int) -> Group:
        """The training thread moves to this generation; older ones are done with."""
        group = self.groups.get(number, (None, None))[1]
        if group is None:
            raise GroupBroken(f"generation {number} was given up, or is without this worker")
        if group.broken:
            raise GroupBroken(group.broken)
        # A copy: a build thread may add its group meanwhile.
        for old in [n for n in list(self.groups) if n < number]:
            leftover = self.groups.pop(old)[1]
            self._boards.pop(old, None)
            if leftover is not None:
                self.put_aside(leftover.drop)
        self._boards.pop(number, None)
        return group

    def put_aside(self, drop: Callable[[], None]) -> None:
        """To be done by `sweep`: what drops a group, or a part of one, that is done with."""
        self._aside.append(drop)

    def sweep(self) -> None:
        """The training thread computes now: the time to drop what it has left.

        Dropping a group takes tens of milliseconds of a core, which nobody should wait for, and
        its destructor may take seconds.
        """
        while self._aside:
            self._begin_drop(self._aside.pop())

    def _begin_drop(self, drop: Callable[[], None]) -> None:
        thread = threading.Thread(target=drop, name="edl-drop", daemon=True)
        self._drops = [one for one in self._drops if one.is_alive()] + [thread]
        thread.start()


def _member_of(identity: Identity, address: Address) -> Member:
    return Member(
        worker=identity.worker,
        address=address,
        host=identity.slot.host,
        slot=identity.slot,
        pid=os.getpid(),
    )


def _message_identity(effect: fx.Effect) -> int | None:
    """Equal for sends of the very same message; None for what is no send."""
    return id(effect.message) if isinstance(effect, fx.Send) else None


def _watchdog_of(identity: Identity, lease: str) -> Watchdog | None:
    settings = identity.settings
    if not Watchdog.wanted(settings):
        return None
    return Watchdog(
        Charge(
            job=identity.job,
            worker=identity.worker,
            pid=os.getpid(),
            secret=identity.secret.hex(),
            store=identity.store,
            lease=lease,
            lease_s=settings.lease_s,
            silence_s=settings.silence_s,
            reconnect_s=settings.reconnect_s,
            unresponsive_s=settings.unresponsive_s,
        )
    )
