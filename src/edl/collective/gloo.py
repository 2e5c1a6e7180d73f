"""The group port filled by torch.distributed's Gloo, which also takes tensors on a GPU.

A generation has up to six process groups: a small one for records, one for gradients, one from
the state's source to the newcomers, one of the elders, for the first step's gradients; and where
some stay for that step only, records and gradients of those who go on after it. They are separate
so that a tiny record never waits behind a bucket. Holds: a group that failed once is never used
again.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed

from edl.collective.errands import Errand, Errands
from edl.collective.lane import LARGE, SLOT, Lane, open_lane
from edl.collective.proofs import ProcessGroup, prove
from edl.collective.rank_value import group_and_rank, own_key, split
from edl.collective.relay import Relay
from edl.collective.sockets import (
    Endpoint,
    break_connections,
    break_dials,
    close_listeners,
    connecting_to,
    connections,
    endpoint_in,
)
from edl.collective.solo import Alone, SoloGroup
from edl.collective.work import Fate, Move, Rows, Work, reason_of
from edl.errors import BuildFailed, GroupBroken, UsageError
from edl.failpoints import hit
from edl.protocol.topology import Generation
from edl.runtime.board import Board, Entry
from edl.runtime.framework import BuildOptions, Group
from edl.types import WorkerId

__all__ = ["GlooGroup", "build_group", "check_torch"]

_Result = TypeVar("_Result")

# torch's stubs know only part of what its distributed package has; one name for all of it.
dist: Any = torch.distributed
ProcessGroupGloo: Any = dist.ProcessGroupGloo

# Gloo waits for so many of a group's timeouts until a connection is there.
_CONNECT_TIMEOUTS = 5
# How often a constructor's time limit is divided to look which peers do not answer.
_LOOKS = 8
# Slow is not dead: collectives wait for as long as the script's own pauses last.
_FOREVER = timedelta(days=3650)
_OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
# Private or semi-private names this room needs; a torch without them is refused at the start.
_NEEDED: tuple[tuple[str, Callable[[], object]], ...] = (
    ("ProcessGroupGloo._Options", lambda: ProcessGroupGloo._Options),
    ("ProcessGroupGloo.create_device", lambda: ProcessGroupGloo.create_device),
    ("ProcessGroupGloo._set_default_timeout", lambda: ProcessGroupGloo._set_default_timeout),
    ("autograd engine's queue_callback", lambda: _engine().queue_callback),
)


def _engine() -> Any:
    engine: Any = torch.autograd.Variable
    return engine._execution_engine


def check_torch() -> None:
    """Refuse a torch that lacks what this room builds on, before anything is started."""
    for name, look in _NEEDED:
        try:
            look()
        except AttributeError:
            raise UsageError(
                f"this torch ({torch.__version__}) has no {name}, which EDL needs; "
                "install torch>=2.13,<2.14"
            ) from None


class _BoardStore(dist.Store):  # type: ignore[misc]
    """torch's rendezvous, pinned to our notice board.

    The value that each rank of a group publishes once is collected by the leader; any other key
    is relayed by itself.
    """

    def __init__(self, board: Board, timeout_s: float) -> None:
        super().__init__()
        self._board = board
        self._own: dict[str, tuple[str, int, int]] = {}  # by key: group, rank and size
        self._timeout_s = timeout_s
        # Where members listen, by group and rank: how their connections are recognised.
        self.listeners: dict[tuple[str, int], Endpoint] = {}

    def enter(self, group: str, rank: int, size: int) -> None:
        """This worker is about to build its end of a group."""
        self._own[own_key(group, rank)] = (group, rank, size)

    def set(self, key: str, value: Any) -> None:
        pinned = bytes(value)
        self._note(key, pinned)
        if key not in self._own:
            self._board.pin(key, pinned)
            return
        # Popped: were it set again, that would be news to the others and no part of a table.
        group, rank, size = self._own.pop(key)
        common, parts = split(pinned, size)
        self._board.pin_entry(
            Entry(group=group, rank=rank, size=size, key=key, common=common, parts=parts)
        )

    def get(self, key: str) -> bytes:
        self.wait([key])
        value = self._board.read(key, self._timeout_s)
        self._note(key, value)
        return value

    def _note(self, key: str, value: bytes) -> None:
        where = group_and_rank(key)
        if where is not None:
            self.listeners[where] = endpoint_in(value)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        # Gloo's own timeout is shorter: it is chosen for connections.
        hit("group.listening")
        self._board.wait(keys, self._timeout_s)


class GlooGroup:
    """One member's end of one generation."""

    def __init__(
        self,
        rank: int,
        size: int,
        control: Any,
        data: Any,
        state: Any,
        elders: Any,
        *,
        after: _After | None,
        together: bool,
        endpoints: frozenset[Endpoint],
    ) -> None:
        self.rank = rank
        self.size = size
        self.relay: Relay | None = None
        self._control = control
        self._data = data
        self._state = state
        self._elders = elders
        self._after = after
        self._before: list[Any] = []  # of all members, until those who left have parted
        self._parting: Errand[None] | None = None
        # Whether the state's source and all who receive it are on one machine.
        self._together = together
        self._lane: Lane | None = None
        self._endpoints = endpoints  # where its members listen
        self._fate = Fate()
        self._errands = Errands("edl-state")

    @property
    def broken(self) -> str:
        return self._fate.broken

    def open_relay(self, *, hands: bool, takes: bool, root: int) -> None:
        """The first step is a relay; `root` is the source's rank among the elders."""

        def reduce(tensor: torch.Tensor) -> Work | _Moved:
            if self._elders is None:
                return _Moved()
            return self._begin(lambda: self._elders.allreduce([tensor], _by("sum")), tensor)

        def spread(tensor: torch.Tensor) -> Work | _Moved:
            if self._elders is None:
                return _Moved()
            return self._begin(lambda: self._elders.broadcast([tensor], _from(root)), tensor)

        self.relay = Relay(
            hands=hands,
            takes=takes,
            together=self._together,
            reduce=reduce,
            spread=spread,
            tell=self._tell,
            agree=self._agree,
            beside=self.beside,
        )

    def exchange(self, values: list[int]) -> Rows | Alone:
        if self.size == 1:
            # The last one of a generation that others have left.
            self._check()
            return Alone(values)
        return self._gathered(self._control, self.size, values)

    def _gathered(self, control: Any, size: int, values: list[int]) -> Rows:
        mine = torch.tensor(values, dtype=torch.int64)
        rows = [torch.empty_like(mine) for _ in range(size)]
        work = self._launched(lambda: control.allgather([rows], [mine]))
        return Rows(self._fate, work, rows)

    def part(self, through: Callable[[], None]) -> Errand[None]:
        """See the port. In a thread of its own: `beside` may have the state to send first."""
        control, size = self._control, self.size

        def say() -> None:
            self._gathered(control, size, [1]).result()
            through()
            self._gathered(control, size, [2]).result()

        self._parting = parting = Errand(say)
        threading.Thread(target=parting.run, name="edl-part", daemon=True).start()
        return parting

    def settle(self) -> None:
        after, self._after = self._after, None
        assert after is not None
        self._before = [self._control, self._data]
        self.rank, self.size = after.rank, after.size
        self._control, self._data = after.control, after.data

    def all_reduce(self, tensor: torch.Tensor, op: str = "sum") -> Work | _Moved:
        if self.size == 1:
            return _Moved()
        return self._begin(lambda: self._data.allreduce([tensor], _by(op)), tensor)

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work | _Moved:
        if self.size == 1:
            return _Moved()
        return self._begin(lambda: self._data.broadcast([tensor], _from(root)), tensor)

    def pair(self, source: int, target: int) -> _Pair:
        return _Pair(self, source, target)

    def move(self, tensor: torch.Tensor, source: int, target: int) -> Move:
        """From one rank to another; only these two call it."""
        if self.rank == source:
            work = self._launched(lambda: self._data.send([tensor], target, 0))
        else:
            work = self._launched(lambda: self._data.recv([tensor], source, 0))
        return Move(self._fate, work, tensor)

    def _begin(self, launch: Callable[[], Any], kept: Any) -> Work:
        return Work(self._fate, self._launched(launch), kept)

    def _check(self) -> None:
        if self.broken:
            raise GroupBroken(self.broken)

    def _launched(self, launch: Callable[[], Any]) -> Any:
        self._check()
        try:
            return launch()
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {reason_of(error)}") from error

    def broadcast_state(self, tensor: torch.Tensor) -> Work | _Moved:
        if self._state is None:
            raise AssertionError("this generation has no newcomers for this member")
        if self._together and LARGE <= tensor.numel() <= SLOT and _row(tensor):
            state = self._state
            if self._lane is None:
                self._lane = open_lane(sends=state.rank() == 0, tell=self._tell, agree=self._agree)
                self._together = self._lane is not None
            if self._lane is not None:
                self._lane.move(tensor)
                return _Moved()
        return self._tell(tensor)

    def _tell(self, tensor: torch.Tensor) -> Work:
        return self._begin(lambda: self._state.broadcast([tensor], _from(0)), tensor)

    def _agree(self, tensor: torch.Tensor) -> Work:
        return self._begin(lambda: self._state.allreduce([tensor], _by("min")), tensor)

    def break_(self, why: str) -> None:
        self._fate.broken = self._fate.broken or why
        break_connections(self._endpoints)

    def beside(self, work: Callable[[], _Result]) -> Errand[_Result]:
        return self._errands.give(work)

    def drop_state(self) -> None:
        parting, self._parting = self._parting, None
        if parting is not None:
            with contextlib.suppress(GroupBroken):
                parting.wait()
        self._errands.close()
        lane, self._lane = self._lane, None
        if lane is not None:
            lane.close()
        if self.relay is not None:
            self.relay.close()
        self._state = self._elders = None
        self._before = []

    def abandon(self) -> None:
        # A destructor waits for pending work; this work never ends, so nothing is destroyed.
        after = (self._after.control, self._after.data) if self._after is not None else ()
        here = (self._control, self._data, self._state, self._elders)
        for group in (*here, *self._before, *after):
            if group is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))

    def drop(self) -> None:
        self._fate.broken = self._fate.broken or "this generation's group was dropped"
        if self._fate.stuck:
            self.abandon()
        self.drop_state()
        self._control = self._data = self._after = None


@dataclass(frozen=True, slots=True)
class _After:
    """The groups of those who go on after the first step."""

    rank: int
    size: int
    control: Any
    data: Any


class _Pair:
    """The way of state between two members of a group, beside all others."""

    def __init__(self, group: GlooGroup, source: int, target: int) -> None:
        self._group = group
        self._source = source
        self._target = target

    def broadcast_state(self, tensor: torch.Tensor) -> Work:
        return self._group.move(tensor, self._source, self._target)

    def beside(self, work: Callable[[], _Result]) -> Errand[_Result]:
        """At once: whoever mends has nothing else to do."""
        errand = Errand(work)
        errand.run()
        return errand


class _Moved:
    """A row that is there already."""

    def wait(self) -> None:
        return


def _row(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.uint8 and tensor.device.type == "cpu" and tensor.dim() == 1


def _by(op: str) -> Any:
    options = dist.AllreduceOptions()
    options.reduceOp = _OPS[op]
    return options


def _from(root: int) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return options


def build_group(generation: Generation, me: WorkerId, board: Board, options: BuildOptions) -> Group:
    """Build this member's end of a generation; returns once every peer has proved the secret.

    Raises BuildFailed, which names the peers that could not be reached, as far as they are known.
    """
    workers = generation.workers()
    if len(workers) == 1:
        return SoloGroup()
    making = _Making(generation, me, board, options)
    family = [generation.source, *generation.newcomers]
    elders = generation.elders()
    try:
        with making.watched():
            control, data = making.gloo("control", workers), making.gloo("data", workers)
            state = making.gloo("state", family) if generation.newcomers and me in family else None
            reduce_apart = len(elders) > 1 and me in elders
            apart = making.gloo("elders", elders) if reduce_apart else None
            after = _built_after(generation, me, making.gloo) if generation.leaving else None
        making.check()
    except Exception as error:
        # A full table of descriptors, say: the leader must hear that this build failed.
        raise making.failure(error) from error
    hosts = {generation.member(worker).host for worker in family}
    group = GlooGroup(
        generation.rank(me),
        len(workers),
        control,
        data,
        state,
        apart,
        after=after,
        together=len(hosts) == 1,
        endpoints=making.endpoints(),
    )
    if elders:
        source = generation.source
        group.open_relay(
            hands=me == source, takes=me in generation.newcomers, root=elders.index(source)
        )
    return group


class _Making:
    """The process groups of one generation while they are made."""

    def __init__(
        self, generation: Generation, me: WorkerId, board: Board, options: BuildOptions
    ) -> None:
        self._generation = generation
        self._me = me
        self._board = board
        self._options = options
        self._store = _BoardStore(board, options.timeout_s)
        self._orders: dict[str, Sequence[WorkerId]] = {}  # of every group that was begun
        self._made: list[ProcessGroup] = []
        self._silent: frozenset[Endpoint] = frozenset()

    def gloo(self, name: str, order: Sequence[WorkerId]) -> Any:
        """Connect one process group. The peers have proved nothing yet."""
        self._orders[name] = order
        options = ProcessGroupGloo._Options()
        # An explicit address, never one found by resolving the host's name; and connected now,
        # not at its first use: what is not connected cannot be checked.
        device = ProcessGroupGloo.create_device(hostname=self._options.bind, lazy_init=False)
        options._devices = [device]
        options._timeout = timedelta(seconds=self._options.timeout_s / _CONNECT_TIMEOUTS)
        self._store.enter(name, order.index(self._me), len(order))
        group = ProcessGroupGloo(
            dist.PrefixStore(name, self._store), order.index(self._me), len(order), options
        )
        group._set_default_timeout(_FOREVER)
        self._made.append(ProcessGroup(name, group, order))
        return group

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Let connections that a peer does not answer fail while constructors connect.

        Where packets are dropped, Gloo says that a connection timed out, but not to whom. Then it
        forgets the connection, and aborts the process when that fails later.
        """
        done = threading.Event()

        def watch() -> None:
            seen: Counter[Endpoint] = Counter()
            while not done.wait(self._options.timeout_s / _LOOKS):
                with contextlib.suppress(OSError):  # no descriptor is left to look with
                    seen = Counter({where: seen[where] + 1 for where in connecting_to()})
                    silent = {where for where, times in seen.items() if times >= _LOOKS / 2}
                    silent &= self.endpoints()
                    self._silent |= silent
                    break_dials(silent)

        watcher = threading.Thread(target=watch, name="edl-build-watch", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()

    def check(self) -> None:
        """Every connection can be found again, and has a member of the job at its other end."""
        sizes = {made.name: len(made.workers) for made in self._made}
        _check_connections(sizes, self._store.listeners)
        prove(
            self._made,
            self._generation,
            self._me,
            secret=self._options.secret,
            timeout_s=self._options.proof_timeout_s,
        )
        # All members are connected, so a later connection is a stranger's.
        close_listeners(self.endpoints())

    def endpoints(self) -> frozenset[Endpoint]:
        return frozenset(list(self._store.listeners.values()))

    def failure(self, error: Exception) -> BuildFailed:
        """Give up what was made, and name the peers that were not reached."""
        # Peers that wait here for a proof or a connection need not wait any longer.
        break_connections(self.endpoints())
        self._made.clear()
        if isinstance(error, BuildFailed):
            return error
        unreached = () if self._board.cancelled() else self._unreached(str(error))
        return BuildFailed(f"the group was not built: {reason_of(error)}", unreached=unreached)

    def _unreached(self, text: str) -> tuple[WorkerId, ...]:
        """Members whose address is in Gloo's message, and those that did not answer.

        A member whose address never came is not among them: addresses come by way of the leader,
        and it may be the one that waits for a third.
        """
        named = {
            key
            for key, (host, port) in self._store.listeners.items()
            if (host, port) in self._silent or re.search(rf"{re.escape(host)}\]?:{port}\b", text)
        }
        found = dict.fromkeys(self._orders[group][rank] for group, rank in sorted(named))
        return tuple(worker for worker in found if worker != self._me)


def _built_after(
    generation: Generation, me: WorkerId, gloo: Callable[[str, Sequence[WorkerId]], Any]
) -> _After | None:
    workers = list(generation.settled().workers())
    if me not in workers:
        return None
    if len(workers) == 1:
        return _After(0, 1, None, None)
    control, data = gloo("after-control", workers), gloo("after-data", workers)
    return _After(workers.index(me), len(workers), control, data)


def _check_connections(
    sizes: Mapping[str, int], listeners: Mapping[tuple[str, int], Endpoint]
) -> None:
    """Every group must have a connection to each peer that `break_` would find.

    Otherwise a thread that waits for a dead peer could not be woken, and the job would hang.
    """
    found = connections()
    for name, size in sizes.items():
        known = {where for (group, _), where in listeners.items() if group == name}
        count = sum(1 for ends in found if not known.isdisjoint(ends))
        if len(known) != size or count < size - 1:
            raise BuildFailed(
                f"{count} connections of group {name!r} were found by the addresses of {len(known)}"
                f" listeners, expected {size - 1} by {size}: this torch ({torch.__version__}) "
                "connects Gloo groups in a way that EDL does not know; install torch>=2.13,<2.14"
            )
