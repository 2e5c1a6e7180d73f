"""Which members cannot connect to each other, over the failed builds of one generation.

Two members may both reach the leader and yet not each other: a firewall, a broken path, a wrong
address. No group of both is ever built, however often it is tried. Owns: how many builds each pair
has failed, and how many builds each member has failed where nobody named a peer. Invariants: a
build counts once for a pair, whichever end reports it; after `limit` failed builds one end of the
worst pair is left out, and each further exclusion needs at least one more failed build. A pair
that connected but did not prove the job's secret counts for less: a stranger may have taken a
member's place, and must not have that member left out soon.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from edl.protocol.messages import GroupFailed
from edl.protocol.topology import Generation
from edl.types import WorkerId

__all__ = ["UNNAMED", "LeftOut", "Unreached", "unreached_text"]

_Pair = frozenset[WorkerId]

# A failure that names no peer, or an unproven one, may have another cause: messages were slow, or a
# stranger was there. It must come so many times as often.
UNNAMED = 3


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A member that the next generation is made without, and why."""

    worker: WorkerId
    why: str


def unreached_text(worker: WorkerId, others: Collection[WorkerId], target: Generation) -> str:
    """'w2 cannot connect to w1 at 10.0.0.1:7001'; empty if no member of `target` is named."""
    where = [f"{m.worker} at {m.address}" for m in target.members if m.worker in others]
    return f"{worker} cannot connect to {', '.join(where)}" if where else ""


class Unreached:
    """The failed builds since a group was last built."""

    def __init__(self, *, limit: int) -> None:
        self.limit = limit  # 0: nobody is ever left out
        # In thirds of a failed build.
        self._pairs: Counter[_Pair] = Counter()
        self._failures: Counter[WorkerId] = Counter()
        self._cut: set[_Pair] = set()  # pairs that did not connect
        self._builds = 0
        # Of the present build: who has reported that it failed, which pairs did not connect, and
        # which did not prove the secret.
        self.reported: set[WorkerId] = set()
        self._unconnected: set[_Pair] = set()
        self._unproven: set[_Pair] = set()

    def on_failed(self, target: Generation, report: GroupFailed) -> None:
        """A member reports that the present build failed, and which peers it did not reach."""
        self.reported.add(report.worker)
        self._unconnected |= _pairs_of(target, report.worker, report.unreached)
        self._unproven |= _pairs_of(target, report.worker, report.unproven)

    def end_build(self, target: Generation, silent: Collection[WorkerId]) -> None:
        """Count what was reported; `silent` had time to report success or failure, and did not.

        A failure without the name of a peer may follow from one that names a pair, and a failure
        after the time for it from members that are still connecting: the others did not fail by
        themselves. If most members are silent and nobody reports, messages are slow.
        """
        self._builds += 1
        if self._unconnected or self._unproven:
            self._pairs.update(dict.fromkeys(self._unproven - self._unconnected, 1))
            self._pairs.update(dict.fromkeys(self._unconnected, UNNAMED))
            self._cut |= self._unconnected
        elif silent and (self.reported or 2 * len(silent) <= target.size):
            self._failures.update(silent)
        elif self.reported:
            self._failures.update(self.reported)
        self.begin_build()

    def begin_build(self) -> None:
        """Drop what was reported of a build that was given up for another reason."""
        self.reported, self._unconnected, self._unproven = set(), set(), set()

    def forget(self) -> None:
        """A group was built."""
        self._pairs.clear()
        self._failures.clear()
        self._cut.clear()
        self._builds = 0
        self.begin_build()

    def leave_out(
        self, base: Generation, *, leader: WorkerId, gone: Collection[WorkerId]
    ) -> LeftOut | None:
        """Choose the member in most of the failed pairs, once a pair has failed `limit` builds.

        Among equals the leader stays, and the highest rank goes. With no such pair, a member that
        failed `limit` builds by itself.
        """
        left = [worker for worker in base.workers() if worker not in gone]
        if not self.limit or len(left) < 2:
            return None
        most = UNNAMED * self.limit
        pairs = [p for p, n in self._pairs.items() if n >= most and p <= set(left)]
        failures = {w: self._failures[w] for w in left if self._failures[w] >= most}
        many = Counter(worker for pair in pairs for worker in pair) or Counter(failures)
        if not many:
            return None
        worker = max(many, key=lambda w: (many[w], w != leader, base.rank(w)))
        others = {w for pair in pairs if worker in pair for w in pair if w != worker}
        what = unreached_text(worker, others, base) or f"{worker} cannot build the group"
        if others and self._cut.isdisjoint(pairs):
            names = ", ".join(sorted(others))
            what = f"{worker} did not prove the job's secret to {names}, or they not to {worker}"
        # What the others reported may have been a consequence: they must fail once more.
        self._pairs = Counter({p: min(n, most - 1) for p, n in self._pairs.items()})
        self._failures = Counter({w: min(n, most - 1) for w, n in self._failures.items()})
        return LeftOut(worker, f"{what}: left out after {self._builds} failed builds")


def _pairs_of(target: Generation, worker: WorkerId, others: Iterable[WorkerId]) -> set[_Pair]:
    return {frozenset((worker, other)) for other in others if other in target and other != worker}
