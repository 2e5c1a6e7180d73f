"""The one scale-out, scale-in or migration in flight.

Owns: who is expected, who has registered, become ready, built and switched, and until when each
phase may last. Returns values; the leader alone turns them into effects. Holds: until the switch
has happened, giving up costs the job nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from edl.config import Settings
from edl.protocol.messages import (
    AdjustmentRecord,
    AdjustmentStatus,
    Parts,
    Switched,
)
from edl.protocol.recorded import Deed
from edl.protocol.rendezvous import Rendezvous
from edl.protocol.topology import Generation
from edl.types import Gpu, Member, WorkerId

__all__ = ["REPORT_S", "Adjustment", "Phase"]

# A member gives a build up after `build_timeout_s` and reports which peers it did not reach. The
# leader waits this much longer for the reports, and as long for the others' after the first one:
# a member may fail only because two others do not connect.
REPORT_S = 2.0


class Phase(Enum):
    """Where an adjustment stands."""

    GATHERING = "waiting for new workers"
    BUILDING = "building the group"
    RECORDING = "recording the generation"
    ANNOUNCED = "waiting for the switch"
    WITHDRAWING = "withdrawing the switch"
    RESTORING = "restoring the generation in the store"
    SWITCHING = "switching"
    CLOSING = "recording who has left"


@dataclass(slots=True, kw_only=True)
class Adjustment:
    """One change of membership, from Accepted to Adjusted or Undone."""

    request_id: str
    kind: str
    expected: dict[WorkerId, Gpu]
    leavers: tuple[WorkerId, ...]
    opened: float
    settings: Settings
    # Of a migration: who leaves after the newcomers' first step, and, once that is done, who came
    # with it.
    moving: tuple[WorkerId, ...] = ()
    joined: tuple[WorkerId, ...] = ()
    phase: Phase = Phase.GATHERING
    deadline: float = 0.0
    arrived: dict[WorkerId, Member] = field(default_factory=dict)
    ready: set[WorkerId] = field(default_factory=set)
    generation: Generation | None = None
    keys: Rendezvous = field(default_factory=Rendezvous)
    waiting: set[WorkerId] = field(default_factory=set)
    step: int = 0
    why: str = ""
    dropped: bool = False  # its joiners are left out of what is made of the survivors
    transfer_bytes: int = 0
    build_began: float = 0.0
    announced_at: float = 0.0
    process_start_s: float = 0.0
    context_s: float = 0.0
    topology_s: float = 0.0
    switch_wait_s: float = 0.0
    transfer_s: float = 0.0
    stop_s: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = self.opened + self.settings.register_timeout_s

    # -- gathering -------------------------------------------------------------------------

    def on_registered(self, member: Member, *, process_start_s: float, now: float) -> None:
        """A new worker has arrived; once all have, they get the time to become ready."""
        self.arrived[member.worker] = member
        self.process_start_s = max(self.process_start_s, process_start_s)
        if self.arrived.keys() == self.expected.keys():
            self.deadline = now + self.settings.ready_timeout_s

    def on_ready(self, worker: WorkerId, *, context_s: float) -> None:
        self.ready.add(worker)
        self.context_s = max(self.context_s, context_s)

    def gathered(self) -> bool:
        """Everyone is here and ready. Only then is a group built: nobody waits for imports."""
        everyone = self.expected.keys()
        return self.arrived.keys() == everyone and self.ready >= everyone

    # -- building, recording, announcing ---------------------------------------------------

    def build(self, generation: Generation, *, now: float) -> None:
        self.generation = generation
        self.phase = Phase.BUILDING
        # Leavers confirm too: whoever sees the announcement must know what it means.
        self.waiting = {*generation.workers(), *self.leavers}
        self.build_began = now
        self.deadline = now + self.settings.build_timeout_s + REPORT_S

    def on_built(self, worker: WorkerId) -> bool:
        """True when this was the last one."""
        if self.phase is not Phase.BUILDING:
            # Said again to a new leader; who waits for the switch is another question.
            return False
        self.waiting.discard(worker)
        return not self.waiting

    def record(self) -> None:
        self.phase = Phase.RECORDING
        # Whether the generation exists is for the store to say, however long it takes.
        self.deadline = float("inf")

    def announce(self, *, step: int, now: float) -> None:
        self.phase = Phase.ANNOUNCED
        self.step = step
        self.announced_at = now
        self.topology_s = now - self.build_began
        # From here on training decides; a pause of any length is the script's own business.
        self.deadline = float("inf")

    # -- switching -------------------------------------------------------------------------

    def switch(self, *, step: int, now: float) -> None:
        assert self.generation is not None
        self.phase = Phase.SWITCHING
        self.step = step
        self.switch_wait_s = now - self.announced_at
        # Whoever goes after the first step says so by going.
        self.waiting = set(self.generation.settled().workers())
        self.deadline = float("inf")

    def on_switched(self, said: Switched) -> bool:
        """True when everyone has committed a step in the new generation."""
        self.waiting.discard(said.worker)
        self.transfer_s = max(self.transfer_s, said.transfer_s)
        self.transfer_bytes = max(self.transfer_bytes, said.transfer_bytes)
        self.stop_s = max(self.stop_s, said.stop_s)
        return self.phase is Phase.SWITCHING and not self.waiting

    def awaits(self, worker: WorkerId) -> bool:
        """Whether the switch has happened, but not yet on this worker as far as is known."""
        leaving = self.generation.leaving if self.generation is not None else ()
        return self.phase is Phase.SWITCHING and (worker in self.waiting or worker in leaving)

    def outlives(self, survivors: Generation, now: float) -> bool:
        """After a failure: False if it is undone, as nobody of it is among the survivors."""
        if survivors.leaving:
            self.follow(survivors, now)
        elif not self.dropped and any(worker in survivors for worker in self.moving):
            self.drop("its newcomers were lost")
        return not self.dropped

    def drop(self, why: str) -> None:
        """A failure came between: what is made of the survivors takes its place."""
        self.why = self.why or why
        self.dropped = True

    def settle(self, generation: Generation) -> None:
        """Everybody has committed the first step: newcomers are new no more, and leavers gone.

        What a failure seemed to have undone before that was known stands.
        """
        self.dropped, self.why = False, ""
        self.joined = self.joined or tuple(sorted(self.expected))
        self.expected, self.generation = {}, generation

    def follow(self, survivors: Generation, now: float) -> None:
        """Some of the survivors are still to leave: the switch is that one's now."""
        self.generation = survivors
        self.switch(step=self.step, now=now)

    # -- telling ---------------------------------------------------------------------------

    def overdue(self, now: float) -> str | None:
        """Why the adjustment must be undone now, or None."""
        if now < self.deadline:
            return None
        if self.phase is Phase.GATHERING:
            absent = sorted(self.expected.keys() - self.arrived.keys())
            if absent:
                limit = self.settings.register_timeout_s
                return f"{', '.join(absent)} did not register within {limit:g} s"
            unready = ", ".join(sorted(self.expected.keys() - self.ready))
            return f"{unready} did not become ready within {self.settings.ready_timeout_s:g} s"
        waiting = ", ".join(sorted(self.waiting))
        return f"{waiting} did not build the group within {self.settings.build_timeout_s:g} s"

    def touched(self) -> set[WorkerId]:
        """Everybody who may hold something of this adjustment."""
        members = set(self.generation.workers()) if self.generation else set()
        return members | self.arrived.keys() | set(self.leavers)

    def deed(self) -> Deed:
        """The adjustment as the store's record carries it."""
        given_up = (self.dropped or self.phase is Phase.RESTORING) and not self.joined
        return Deed(
            request_id=self.request_id,
            kind=self.kind,
            joined=self.joined or tuple(sorted(self.expected)),
            left=(*self.leavers, *self.moving),
            generation=self.generation.number if self.generation else 0,
            size=self.generation.settled().size if self.generation else 0,
            undone=self.why if given_up else "",
        )

    def status(self, now: float) -> AdjustmentStatus:
        return AdjustmentStatus(
            request_id=self.request_id,
            kind=self.kind,
            phase=self.phase.value,
            age_s=now - self.opened,
            workers=(*sorted(self.expected), *self.leavers, *self.moving),
            detail=self._detail(),
        )

    def _detail(self) -> str:
        """Whom or what it waits for."""
        if self.phase is Phase.GATHERING:
            absent = sorted(self.expected.keys() - self.arrived.keys())
            loading = sorted(self.arrived.keys() - self.ready)
            told = [f"{', '.join(absent)} to start"] if absent else []
            told += [f"{', '.join(loading)} to load model and data"] if loading else []
            return "; ".join(told)
        if self.phase is Phase.ANNOUNCED:
            return f"at step {self.step}"
        if self.phase in (Phase.BUILDING, Phase.SWITCHING):
            return ", ".join(sorted(self.waiting))
        return ""

    def summary(self, record: AdjustmentRecord) -> dict[str, str | int | float]:
        """The finished adjustment as the fields of one event."""
        parts = record.parts
        return {
            "kind": record.kind,
            "joined": ",".join(record.joined),
            "left": ",".join(record.left),
            "workers": record.size,
            "total_s": record.total_s,
            "process_start_s": parts.process_start_s,
            "context_s": parts.context_s,
            "topology_s": parts.topology_s,
            "switch_wait_s": parts.switch_wait_s,
            "transfer_s": parts.transfer_s,
            "transfer_bytes": record.transfer_bytes,
            "stop_s": parts.stop_s,
        }

    def report(self, now: float) -> AdjustmentRecord:
        assert self.generation is not None
        parts = Parts(
            process_start_s=self.process_start_s,
            context_s=self.context_s,
            topology_s=self.topology_s,
            switch_wait_s=self.switch_wait_s,
            transfer_s=self.transfer_s,
            stop_s=self.stop_s,
        )
        return AdjustmentRecord(
            request_id=self.request_id,
            kind=self.kind,
            joined=self.joined or tuple(sorted(self.expected)),
            left=(*self.leavers, *self.moving),
            generation=self.generation.number,
            step=self.step,
            size=self.generation.size,
            total_s=now - self.opened,
            transfer_bytes=self.transfer_bytes,
            parts=parts,
        )
