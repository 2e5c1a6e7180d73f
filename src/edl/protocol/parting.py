"""Those who stay in a generation for its first step only, as its leader sees them.

They go by rule, in-band: when everybody has committed that step they let the others go on, and
nobody completes anything more before all of them have (`runtime/rounds.py`). So a leaver that
could still lead is one that all the others need, and one job never becomes two. Holds: until it
has let the others go on, a leaver counts as any member does, for somebody may wait for it without
noticing that it is lost.
"""

from __future__ import annotations

from edl.protocol import messages as m
from edl.protocol.adjustment import Phase
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Effect
from edl.protocol.recovery import Recovery
from edl.protocol.topology import Generation
from edl.protocol.voice import Voice

__all__ = ["Parting"]


class Parting:
    """What the leader of a generation does about its leavers."""

    def __init__(self, *, conductor: Conductor, recovery: Recovery, voice: Voice) -> None:
        self.conductor = conductor
        self.recovery = recovery
        self.voice = voice

    def on_own(self, here: Generation, now: float) -> list[Effect]:
        """The leader's own training thread is past the first step, and has closed a round since."""
        return [] if here.leaving else self.on_through(here.number, now)

    def on_through(self, number: int, now: float, *, goes: bool = False) -> list[Effect]:
        """Everybody has committed the first step: newcomers are in, leavers are on their way.

        `goes`: this leader is one of them, and claims nothing of the job any more.
        """
        generation = self.conductor.generation
        if goes:
            self.recovery.let_go = number
        if generation is None or generation.number != number or not generation.leaving:
            return []
        return [*self.conductor.settle(), *self.recovery.on_settled(generation, now)]

    def on_leaving(self, message: m.Leaving, now: float) -> list[Effect]:
        """A worker goes in good order; after a first step everybody has committed that by then."""
        self.voice.peers.pop(message.worker, None)
        self.recovery.departed.add(message.worker)
        self.recovery.owing.discard(message.worker)
        generation = self.conductor.generation
        stayed = generation is not None and message.worker in generation.leaving
        return self.on_through(message.generation, now) if stayed else []

    def on_switched(self) -> None:
        """If everybody has trained without them, leavers are not needed any more."""
        adjustment = self.conductor.adjustment
        if adjustment is None or adjustment.phase is Phase.CLOSING:
            self.recovery.owing.clear()

    def on_stuck(self, message: m.Stuck, now: float) -> list[Effect]:
        """A leaver could not part in good order; some may wait for it without noticing.

        It hears that it is out when the job goes on without it, and not before: if it has not let
        the others go on, it may be the one that does.
        """
        if message.worker in self.recovery.owing:
            return self.recovery.on_torn(now)
        out = m.Out(generation=message.generation, why="it was scaled in")
        return self.voice.to([message.worker], out)

    def succeeded(self) -> list[Effect]:
        """To those who still listen to a leader that stayed for one step: turn to its successor.

        If they turned only when the store says so, or the successor is in office already, it might
        call them lost.
        """
        adjustment, generation = self.conductor.adjustment, self.conductor.generation
        if generation is None or adjustment is None or not adjustment.moving:
            return []
        word = m.Succeeded(generation=generation.number, worker=generation.leader)
        known = (self.conductor.me, generation.leader)
        return self.voice.to((w for w in self.voice.peers if w not in known), word)
