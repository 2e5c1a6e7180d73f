"""A migration of more than a few workers, which takes two changes of generation.

Newcomers have no share in their first step. If the leavers were gone by then, those who stay would
carry the whole batch alone, and nobody would where all of them leave. So everybody stays for that
step: the first generation adds, the second one removes, and the requester hears one answer, after
the second. In between the recorded generation says who is still to leave (`Generation.leaving`).
Holds: whoever leads then, however it came to lead, finishes the request or knows that it is undone,
by the store's record alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from edl.config import Settings
from edl.protocol.adjustment import Adjustment
from edl.protocol.recorded import Deed
from edl.protocol.topology import Generation

__all__ = ["costly", "judged", "owed", "taken_up"]


def costly(leavers: int, *, of: int, bearable: float) -> bool:
    """Whether a step without the leavers would take much longer than a usual one, or never end."""
    return leavers >= of or leavers / (of - leavers) > bearable


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
    """The second half of a migration in the hands of a leader that did not see the first."""
    return Adjustment(
        request_id=deed.request_id,
        kind=deed.kind,
        expected={},
        leavers=generation.leaving,
        opened=now,
        settings=settings,
        joined=deed.joined,
    )
