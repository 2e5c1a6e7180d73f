"""What goes wrong in a world: deaths, freezes, torn networks, a store that is away.

Each fault strikes at a time, or at the n-th time that something happens, which hits the moments
between two messages that no clock would. Every fault ends, so that what must come after can come,
except deaths and the pairs that are cut forever.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from edl.protocol.election import LEADER_KEY, read_leader
from edl.types import WorkerId
from tests.seeded.plan import Fault

if TYPE_CHECKING:
    from tests.seeded.process import Process
    from tests.seeded.world import World

__all__ = ["Trouble"]


class Trouble:
    """All faults of one world, and what is out of reach because of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cuts: dict[frozenset[WorkerId], float] = {}
        # Pairs whose control connections work, but whose groups' connections do not.
        self.barred: dict[frozenset[WorkerId], float] = {}
        self.store_out = 0
        self._seen: Counter[str] = Counter()
        self._waiting: dict[tuple[str, int], list[Fault]] = {}

    def begin(self) -> None:
        for fault in self.world.plan.faults:
            if fault.point:
                self._waiting.setdefault((fault.point, fault.nth), []).append(fault)
            else:
                self.world.schedule.at(fault.time, self._strike, fault, None)

    def notice(self, point: str, actor: Process) -> None:
        """Something happened at which a fault may strike."""
        if not self._waiting:
            return
        self._seen[point] += 1
        for fault in self._waiting.pop((point, self._seen[point]), ()):
            self.world.schedule.after(fault.time, self._strike, fault, actor)

    # -- whom it meets ---------------------------------------------------------------------

    def _victims(self, fault: Fault, actor: Process | None) -> list[Process]:
        alive = [p for p in self.world.processes.values() if p.alive and not p.frozen]
        if not alive:
            return []
        leader = self._leader()
        chosen = self.world.rng.choice(alive)
        match fault.who:
            case "leader":
                return [leader or chosen]
            case "follower":
                others = [p for p in alive if p is not leader]
                return [self.world.rng.choice(others or alive)]
            case "actor":
                return [actor if actor is not None and actor.alive else chosen]
            case "leader and joiner":
                joiners = [p for p in alive if p.node.worker.request_id]
                return [leader or chosen, *joiners[-1:]]
            case "two":
                return self.world.rng.sample(alive, min(2, len(alive)))
            case "all but one":
                return [p for p in alive if p is not chosen]
            case "all":
                return alive
        return [chosen]

    def _leader(self) -> Process | None:
        key = self.world.shelf.get(LEADER_KEY)
        if key.value is None:
            return None
        found = self.world.processes.get(read_leader(key.value, key.revision).worker)
        return found if found is not None and found.alive else None

    # -- what it does ----------------------------------------------------------------------

    def _strike(self, fault: Fault, actor: Process | None) -> None:
        world, history = self.world, self.world.history
        victims = self._victims(fault, actor)
        if world.story is not None:
            names = [p.me for p in victims]
            world.story(world.schedule.now, "FAULT", f"{fault.kind} {names} {fault.span_s:.2f}", [])
        if victims:
            self.notice("struck", victims[0])
        if fault.kind == "outage":
            self._outage(fault.span_s)
            return
        if fault.kind == "fence":
            if world.shelf.fence():
                history.fenced_at = world.schedule.now
                history.touched |= set(world.processes)
            return
        history.touched |= {p.me for p in victims}
        for process in victims:
            match fault.kind:
                case "kill":
                    process.kill()
                case "freeze":
                    process.freeze()
                    self._lapse_later(process)
                    world.schedule.after(fault.span_s, process.thaw)
                case "cut store":
                    process.store_cut = True
                    self._lapse_later(process)
                    world.schedule.after(fault.span_s, self._mend_store, process)
                case "lapse":
                    world.shelf.revoke(process.me)
                case "cut leader":
                    self._cut(process, self._leader(), fault.span_s)
                case "cut pair":
                    other = world.rng.choice([*world.processes.values()])
                    self._cut(process, other, fault.span_s)
                case "cut forever":
                    self._part_forever(process, messages=True)
                case "bar forever":
                    self._part_forever(process, messages=False)
                case "isolate":
                    self._isolate(process, fault.span_s)
                case "cut off":
                    # Its store comes back before the others do, or after them.
                    self._isolate(process, fault.span_s)
                    process.store_cut = True
                    self._lapse_later(process)
                    process.deaf = True
                    store_s = fault.span_s * (0.5 + world.rng.random())
                    world.schedule.after(store_s, self._mend_store, process)
                    # It can ask again before it is told again: a watch has its own connection.
                    told_s = store_s + world.rng.random() * 2.0
                    world.schedule.after(told_s, self._mend_ears, process)

    def _isolate(self, process: Process, span_s: float) -> None:
        for other in list(self.world.processes.values()):
            self._cut(process, other, span_s)

    def _outage(self, span_s: float) -> None:
        """A store that is away lets no lease lapse: it renews all of them when it is back."""
        self.store_out += 1
        for process in self.world.processes.values():
            process.store_cut = True
        self.world.schedule.after(span_s, self._store_is_back)

    def _store_is_back(self) -> None:
        self.store_out -= 1
        if not self.store_out:
            for process in self.world.processes.values():
                process.store_cut = False

    def _mend_store(self, process: Process) -> None:
        process.store_cut = bool(self.store_out)

    def _mend_ears(self, process: Process) -> None:
        process.deaf = False

    def _lapse_later(self, process: Process) -> None:
        self.world.schedule.after(self.world.plan.settings.lease_s, self._lapse, process)

    def _lapse(self, process: Process) -> None:
        if process.frozen or (process.store_cut and not self.store_out):
            self.world.shelf.revoke(process.me)

    def _cut(self, one: Process, other: Process | None, span_s: float) -> None:
        if other is None or one is other:
            return
        pair = frozenset((one.me, other.me))
        self.world.history.touched |= pair
        self.cuts[pair] = self.world.schedule.now
        self.world.network.cut(one, other)
        if pair not in self.barred:
            self.world.schedule.after(span_s, self._join, pair)

    def _part_forever(self, process: Process, *, messages: bool) -> None:
        """It never connects to one of the others again: a firewall, a wrong route.

        Without `messages` only the connections of their groups fail.
        """
        others = [p for p in self.world.processes.values() if p.alive and p is not process]
        if not others:
            return
        other = self.world.rng.choice(others)
        pair = frozenset((process.me, other.me))
        self.world.history.touched |= pair
        self.barred.setdefault(pair, self.world.schedule.now)
        if messages:
            self._cut(process, other, math.inf)

    def _join(self, pair: frozenset[WorkerId]) -> None:
        self.cuts.pop(pair, None)

    def cut_for(self, one: WorkerId, other: WorkerId) -> float:
        """Since how long two workers' groups have not reached each other; 0 if they do."""
        if not self.cuts and not self.barred:
            return 0.0
        pair = frozenset((one, other))
        since = self.cuts.get(pair, self.barred.get(pair))
        return 0.0 if since is None else max(1e-6, self.world.schedule.now - since)

    def is_cut(self, one: WorkerId, other: WorkerId) -> bool:
        """Whether messages between two workers are lost."""
        return bool(self.cuts) and frozenset((one, other)) in self.cuts
