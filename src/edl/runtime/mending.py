"""Takes a worker's training over a failure, so that the script does not see it.

What a script does with EDL is a sequence of acts that every worker goes through in the same order:
steps, reductions of its own, the ends of loops. Owns: how far this worker is in it, and the result
of the last act. When a collective breaks, the act is void; the survivors meet in the generation
that the leader makes of them, compare how far they are, and whoever is behind takes the most
advanced one's state. Then everybody enters the same act. Holds: nothing of a worker's own state is
touched before all of the other's has arrived, so a death in the middle of that loses nothing; and
registered objects are at each act what they were when it was entered first, whatever the script
did with them in a step that did not count.

A script passes the code between two steps again after a step that is void. There `edl.step()` is
the same as before that step, so the script makes the same reductions again, but a survivor that was
not in the void step does not. So these calls replay the results of the first pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from edl.errors import GroupBroken
from edl.protocol.position import Comparison, Position, compare
from edl.protocol.progress import Progress
from edl.runtime.agent import Agent
from edl.runtime.framework import Framework, Group
from edl.runtime.replica_check import ReplicaCheck

__all__ = ["Act", "Mender"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """The result of an act that is no step: a loop's end, or a reduction of the script's own."""

    ended: bool = False
    closed: bool = False
    reduced: Any = None


class Mender:
    """One worker's place in the history, and its way over a failure."""

    def __init__(
        self, framework: Framework, agent: Agent | None, check: ReplicaCheck, *, approximate: bool
    ) -> None:
        self.fault: GroupBroken | None = None  # why the present act is void
        self.whole = False  # this worker has the job's state
        self.calls = 0  # changes of the model since the last commit
        self._made: dict[int, int] = {}  # complete steps of each optimizer among them
        self._passed: dict[int, int] = {}  # calls of each since the present act was entered
        self._framework = framework
        self._agent = agent
        self._check = check
        self._approximate = approximate
        self._acts = 0
        self._acts_before = 0  # when the present act was entered
        self._last: Act | None = None
        self._again = False
        # The script's reductions since the last commit, until its loop ends: what was reduced, and
        # the result. `_replay` iterates over them after a void step.
        self._reductions: list[tuple[int, Any]] = []
        self._loop_ended = False
        self._replay: Iterator[tuple[int, Any]] | None = None

    # -- in the course of things -----------------------------------------------------------

    def enter_act(self) -> None:
        """Every act begins with this, and an act that is done again begins as it did before."""
        self._replay = None
        if self._agent is None:
            return
        self._acts_before = self._acts
        if self._again:
            self._framework.put_back()
            self._again = False
        self._framework.hold(heavy=False)

    def committed(self) -> None:
        self.whole = True
        self.calls, self._acts, self._last = 0, 0, None
        self._made, self._passed = {}, {}
        self._reductions, self._loop_ended = [], False

    @property
    def fresh(self) -> bool:
        """Nothing of the present step has been done to the model."""
        return self.fault is None and not self.calls and not self._made

    def may_update(self, optimizer: int) -> bool:
        """Whether this optimizer's step is still to be made, in a step that may be done again."""
        number = self._passed[optimizer] = self._passed.get(optimizer, 0) + 1
        if number <= self._made.get(optimizer, 0):
            # It was complete when a peer was lost, and is in everybody's state.
            return False
        self.calls += 1
        return True

    def updated(self, optimizer: int) -> None:
        self._made[optimizer] = self._made.get(optimizer, 0) + 1

    def done(self, act: Act) -> None:
        """An act that is no step is complete here."""
        self._acts += 1
        self._last = act
        self._loop_ended = self._loop_ended or act.closed or act.ended

    def reduced(self, detail: int, result: Any) -> None:
        """A reduction of the script's own is complete here, or on the most advanced survivor."""
        # What follows a loop's end is never passed again.
        if self._agent is not None and not self._loop_ended:
            self._reductions.append((detail, result))

    @property
    def replaying(self) -> bool:
        """Whether the script is between a void step and its next act."""
        return self._replay is not None

    def end_replay(self) -> None:
        """The script is past that place: its loop is over."""
        self._replay = None

    def replay(self, detail: int) -> Any:
        """The result of this reduction in the first pass; None if the script made another one."""
        assert self._replay is not None
        found, result = next(self._replay, (detail, None))
        return result if found == detail else None

    # -- when something breaks -------------------------------------------------------------

    def broke(self, generation: int, error: GroupBroken) -> None:
        """The present act is void on this worker; the agent hears of it at once."""
        if self._agent is None:
            raise error
        if self.fault is None:
            self.fault = error
            self._framework.hold(heavy=True)
            self._framework.broke()
            self._agent.broke(generation, str(error))

    def mend(
        self, progress: Progress, begin: Callable[[], None]
    ) -> tuple[Group | None, Act | None]:
        """Wait for what is left of the job, and go on with it.

        The act is the result of the one that this worker was in, if another has completed it.
        `begin` is what the first of all sources does, should it turn out to be this worker.
        Without a group the job is over.
        """
        agent = self._agent
        assert agent is not None
        self._framework.put_back()
        number = progress.generation.number
        if progress.generation.mended and not self.whole:
            number -= 1  # it was let into this one, but has not been in it yet
        while True:
            generation = agent.wait_begun(beyond=number)
            if generation is None:
                # The others have passed the closing round, which needed this worker's part too.
                self.fault = None
                return None, Act(ended=True)
            number = generation.number
            try:
                group = agent.entered(number)
                act = self._level(group, progress, begin)
                break
            except GroupBroken as error:
                agent.broke(number, str(error))
        progress.enter(generation)
        self.fault, self._again, self._passed = None, True, {}
        return group, act

    def again(self) -> None:
        """The step that was under way will be done again from its beginning."""
        self._acts = self._acts_before
        self._replay = iter(self._reductions)

    def _level(self, group: Group, progress: Progress, begin: Callable[[], None]) -> Act | None:
        """Bring everybody to where the most advanced one is."""
        here = Position(
            state=int(self.whole), step=progress.step, calls=self.calls, acts=self._acts
        )
        positions = [Position.unpack(row) for row in group.exchange(here.pack()).result()]
        found = compare(positions)
        if group.rank == found.source:
            if not self.whole:
                begin()
                self.whole = True
            self._give(group, progress, found, positions)
        elif group.rank in found.behind or group.rank in found.late:
            best = positions[found.source]
            act = self._take(group, progress, found, here)
            self._acts, self._last = best.acts, act
            if group.rank not in found.behind:
                return act
        return None

    def _give(
        self, group: Group, progress: Progress, found: Comparison, positions: list[Position]
    ) -> None:
        last = self._last
        calls = [self.calls, *(list(pair) for pair in self._made.items())]
        snapshot = {**progress.snapshot(), **self._check.shared(), "act": None, "calls": calls}
        if last is not None:
            snapshot["act"] = [int(last.ended), int(last.closed)]
        extra = last.reduced if last is not None else None
        for rank in sorted({*found.behind, *found.late}):
            path = group.pair(found.source, rank)
            # Approximate: replicas may differ a little; a worker with no state at all may not.
            bare = self._approximate and bool(positions[rank].state)
            self._framework.start_sending(path, snapshot, extra=extra, bare=bare)()

    def _take(
        self, group: Group, progress: Progress, found: Comparison, here: Position
    ) -> Act | None:
        path = group.pair(found.source, group.rank)
        snapshot, finish = self._framework.start_receiving(path, aside=True)
        finish()
        self._check.adopt(snapshot)
        # What was received is what the next act begins with.
        self._framework.hold(heavy=False)
        self._framework.hold(heavy=True)
        if group.rank in found.behind:
            progress.adopt(snapshot)
            if progress.step != here.step:
                self._reductions, self._loop_ended = [], False
            self.whole = True
            if not (self._approximate and here.state and here.step == progress.step):
                # Unless its own model stays, and has not been changed in this step.
                self.calls, *made = snapshot["calls"]
                self._made = dict(map(tuple, made))
        act = snapshot["act"]
        if act is None:
            return None
        return Act(ended=bool(act[0]), closed=bool(act[1]), reduced=snapshot.get("extra"))
