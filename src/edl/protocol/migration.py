"""A migration: one change of generation that both adds and removes.

Newcomers have no share in their first step. If the leavers were gone by then, those who stay would
carry the whole batch alone, and nobody would where all of them leave. So everybody is in the
generation for its first step, and the recorded generation says who goes after it
(`Generation.leaving`). Holds: whoever leads, however it came to lead, knows by the store's record
and by who is left what becomes of the request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl.config import Settings
from edl.protocol.adjustment import Adjustment
from edl.protocol.recorded import Deed
from edl.protocol.topology import Generation

__all__ = ["judged", "owed", "taken_up"]


def owed(generation: Generation, deeds: Iterable[Deed]) -> Deed | None:
    """The migration whose newcomers are in and whose leavers are still to go."""
    if not generation.leaving:
        return None
    mine = (deed for deed in deeds if deed.request_id == generation.request_id)
    return next((deed for deed in mine if not deed.undone), None)


def judged(generation: Generation, deeds: Iterable[Deed]) -> list[Deed]:
    """The deeds after a failure: a migration that nobody is left of to stay for is undone."""
    return [
        replace(deed, undone="its newcomers were lost")
        if deed.request_id == generation.request_id
        and not generation.leaving
        and not deed.undone
        and any(worker in generation for worker in deed.left)
        else deed
        for deed in deeds
    ]


def taken_up(deed: Deed, generation: Generation, settings: Settings, now: float) -> Adjustment:
    """A migration in the hands of a leader that did not see its switch: leavers still go."""
    adjustment = Adjustment(
        request_id=deed.request_id,
        kind=deed.kind,
        expected={},
        leavers=(),
        opened=now,
        settings=settings,
        moving=deed.left,
        joined=deed.joined,
        announced_at=now,
    )
    adjustment.follow(generation, now)
    return adjustment
