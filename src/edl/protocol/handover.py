"""A leader's state as one value, for its successor.

Holds: whoever takes over gives the same answers to the same request ids, goes on numbering
events and generations, and finishes the switch that made it leader.
"""

from __future__ import annotations

from edl.config import Settings
from edl.protocol.adjustment import Adjustment
from edl.protocol.messages import Handover, OpenSwitch

__all__ = ["open_switch", "reopened"]


def open_switch(adjustment: Adjustment | None, now: float) -> OpenSwitch | None:
    """The adjustment whose switch is under way, as a value that travels."""
    if adjustment is None:
        return None
    return OpenSwitch(
        record=adjustment.report(now),
        age_s=now - adjustment.opened,
        waiting=tuple(sorted(adjustment.waiting)),
    )


def reopened(past: Handover, settings: Settings, now: float) -> Adjustment | None:
    """The same adjustment in the successor's hands."""
    if past.open_switch is None:
        return None
    record, parts = past.open_switch.record, past.open_switch.record.parts
    generation = past.generation
    slots = {member.worker: member.slot for member in generation.members}
    # Whoever came with an earlier half of the same request has trained since.
    new = [worker for worker in record.joined if worker in generation.newcomers]
    adjustment = Adjustment(
        request_id=record.request_id,
        kind=record.kind,
        expected={worker: slots[worker] for worker in new},
        leavers=record.left,
        opened=now - past.open_switch.age_s,
        settings=settings,
        joined=() if new else record.joined,
        generation=generation,
        process_start_s=parts.process_start_s,
        context_s=parts.context_s,
        topology_s=parts.topology_s,
    )
    adjustment.switch(step=record.step, now=now)
    adjustment.switch_wait_s = parts.switch_wait_s
    adjustment.waiting = set(past.open_switch.waiting)
    return adjustment
