"""Requests from outside: who may have an adjustment, and what everybody else is told.

Holds: one adjustment at a time; a second request is told to retry at once, also while the job
recovers from a failure; the same request id always gets the same answer.
"""

from __future__ import annotations

from edl.config import Settings
from edl.protocol import messages as m
from edl.protocol.conductor import Conductor
from edl.protocol.effects import Effect, Send
from edl.protocol.recovery import Recovery
from edl.protocol.requests import choose_leavers, choose_movers, scale_out_fault
from edl.protocol.voice import Voice

__all__ = ["Reception"]


class Reception:
    """Where requesters come to."""

    def __init__(
        self, *, settings: Settings, conductor: Conductor, recovery: Recovery, voice: Voice
    ) -> None:
        self.settings = settings
        self.conductor = conductor
        self.recovery = recovery
        self.voice = voice

    def on_scale_out(self, peer: int, message: m.ScaleOut, now: float) -> list[Effect]:
        gate = self._gate(peer, message.request_id, "scale_out", now)
        generation = self.conductor.generation
        if gate is not None or generation is None:
            return gate or []
        reason = scale_out_fault(generation, message, self.settings)
        if reason:
            return self.voice.final(m.Refusal(request_id=message.request_id, reason=reason), peer)
        return self.conductor.open(
            peer,
            message.request_id,
            kind="scale_out",
            joiners=message.joiners,
            leavers=(),
            now=now,
        )

    def on_lessening(self, peer: int, message: m.ScaleIn | m.Withdraw, now: float) -> list[Effect]:
        if isinstance(message, m.ScaleIn):
            return self.on_scale_in(peer, message, now)
        adjustment = self.conductor.adjustment
        if adjustment is None or adjustment.request_id != message.request_id or adjustment.joined:
            # Of a migration whose newcomers are in, the rest is carried out.
            return []
        return self.conductor.undo(message.why, now)

    def on_scale_in(self, peer: int, message: m.ScaleIn, now: float) -> list[Effect]:
        gate = self._gate(peer, message.request_id, "scale_in", now)
        generation = self.conductor.generation
        if gate is not None or generation is None:
            return gate or []
        lost = self.recovery.lost_of(message)
        if lost:
            return self._undone(peer, message.request_id, "scale_in", lost)
        leavers, reason = choose_leavers(generation, message, self.settings)
        if reason:
            return self.voice.final(m.Refusal(request_id=message.request_id, reason=reason), peer)
        return self.conductor.open(
            peer, message.request_id, kind="scale_in", joiners=(), leavers=leavers, now=now
        )

    def on_migrate(self, peer: int, message: m.Migrate, now: float) -> list[Effect]:
        gate = self._gate(peer, message.request_id, "migrate", now)
        generation = self.conductor.generation
        if gate is not None or generation is None:
            return gate or []
        lost = self.recovery.lost_of(message)
        if lost:
            return self._undone(peer, message.request_id, "migrate", lost)
        leavers, reason = choose_movers(generation, message, self.settings)
        if reason:
            return self.voice.final(m.Refusal(request_id=message.request_id, reason=reason), peer)
        return self.conductor.open(
            peer,
            message.request_id,
            kind="migrate",
            joiners=message.joiners,
            leavers=leavers,
            now=now,
        )

    def _undone(self, peer: int, request_id: str, kind: str, why: str) -> list[Effect]:
        """A request that its workers did not live to see; the leader that took it may be gone."""
        told = self.voice.tell("adjust.undone", request_id, kind=kind, why=why)
        answer = m.Undone(request_id=request_id, reason=why)
        return [*told, *self.voice.final(answer, peer)]

    def on_stop(self, peer: int, message: m.StopJob, now: float) -> list[Effect]:
        if self.conductor.over:
            answer = m.Finished(request_id=message.request_id, reason="the job is over")
            return self.voice.final(answer, peer)
        if not self.conductor.founded or self.conductor.leaves:
            reason = "the leader changes" if self.conductor.leaves else "the job is starting"
            return self.voice.retry(message.request_id, peer, reason, self.settings.retry_after_s)
        self.conductor.stopping = message.why
        effects = self.conductor.undo("the job is stopping", now)
        effects += self.voice.accept(message.request_id, peer)
        effects += self.voice.tell("job.stopping", message.request_id, why=message.why)
        # What is being replaced has nothing to announce; what replaces it will.
        return effects if self.recovery.busy else [*effects, self.conductor.word()]

    def _gate(self, peer: int, request_id: str, kind: str, now: float) -> list[Effect] | None:
        """The answer to a request that cannot open an adjustment now; None: it can."""
        known = self.voice.requests.answered(request_id)
        if isinstance(known, m.Adjusted) and known.record.kind != kind:
            return self._another(peer, request_id, known.record.kind)
        if known is not None:
            return [Send(peer=peer, message=known)]
        adjustment = self.conductor.adjustment
        if adjustment is not None and adjustment.request_id == request_id:
            if adjustment.kind != kind:
                return self._another(peer, request_id, adjustment.kind)
            return self.voice.accept(request_id, peer)
        # What became of one that is recorded turns out when the recovery does.
        recorded = any(deed.request_id == request_id for deed in self.conductor.deeds)
        if self.conductor.over or (self.conductor.stopping and not recorded):
            reason = self.conductor.stopping or "the job is over"
            return self.voice.final(m.Finished(request_id=request_id, reason=reason), peer)
        reason = ""
        if adjustment is not None:
            reason = (
                f"already adjusting (request {adjustment.request_id}, "
                f"{adjustment.phase.value}, for {now - adjustment.opened:.1f} s)"
            )
        elif not self.conductor.founded:
            reason = "the job is starting"
        elif self.conductor.leaves:
            reason = "the leader changes"  # its successor knows what became of earlier requests
        elif self.recovery.busy:
            reason = f"recovering from a failure ({self.recovery.stage.value})"
        if reason:
            return self.voice.retry(request_id, peer, reason, self.settings.retry_after_s)
        return None

    def _another(self, peer: int, request_id: str, kind: str) -> list[Effect]:
        """Whoever gave the id of another request must not think that its own was carried out."""
        why = f"{request_id} is the id of a {kind} that was asked for before; give each its own"
        return [Send(peer=peer, message=m.Refusal(request_id=request_id, reason=why))]
