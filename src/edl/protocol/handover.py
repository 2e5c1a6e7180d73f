"""A leader's state as one value, for its successor.

Holds: whoever takes over gives the same answers to the same request ids, goes on numbering
events and generations, and finishes the switch that made it leader.
"""

from __future__ import annotations

from collections.abc import Iterable

from edl.config import Settings
from edl.protocol.adjustment import Adjustment
from edl.protocol.conductor import Conductor
from edl.protocol.messages import Handover, OpenSwitch
from edl.protocol.voice import Voice
from edl.types import WorkerId

__all__ = ["handed_over", "open_switch", "reopened"]


def handed_over(
    conductor: Conductor,
    parting: Iterable[WorkerId],
    voice: Voice,
    now: float,
    *,
    failed: bool = False,
) -> Handover:
    """What the successor needs; the open switch is its to finish."""
    assert conductor.generation is not None
    chronicle = voice.chronicle
    return Handover(
        generation=conductor.generation,
        leader_revision=conductor.token,
        generation_revision=conductor.generation_revision,
        last_number=conductor.last_number,
        seq=chronicle.seq,
        stopping=conductor.stopping,
        answers=voice.requests.memory(),
        records=tuple(chronicle.records),
        deeds=tuple(conductor.deeds),
        recent=chronicle.since(chronicle.seq - 200),
        open_switch=open_switch(conductor.adjustment, now, parting),
        failed=failed,
    )


def open_switch(
    adjustment: Adjustment | None, now: float, parting: Iterable[WorkerId] = ()
) -> OpenSwitch | None:
    """The adjustment whose switch is under way, as a value that travels."""
    if adjustment is None:
        return None
    return OpenSwitch(
        record=adjustment.report(now),
        age_s=now - adjustment.opened,
        waiting=tuple(sorted(adjustment.waiting)),
        parting=tuple(sorted(parting)),
    )


def reopened(past: Handover, settings: Settings, now: float) -> Adjustment | None:
    """The same adjustment in the successor's hands."""
    if past.open_switch is None:
        return None
    record, parts = past.open_switch.record, past.open_switch.record.parts
    generation = past.generation
    slots = {member.worker: member.slot for member in generation.members}
    # The newcomers of a migration have trained by the time its leader goes.
    new = [worker for worker in record.joined if worker in generation.newcomers]
    moved = bool(record.joined)
    adjustment = Adjustment(
        request_id=record.request_id,
        kind=record.kind,
        expected={worker: slots[worker] for worker in new},
        leavers=() if moved else record.left,
        moving=record.left if moved else (),
        opened=now - past.open_switch.age_s,
        settings=settings,
        joined=() if new else record.joined,
        generation=generation,
        process_start_s=parts.process_start_s,
        context_s=parts.context_s,
        topology_s=parts.topology_s,
        transfer_bytes=record.transfer_bytes,
        transfer_s=parts.transfer_s,
        stop_s=parts.stop_s,
    )
    adjustment.switch(step=record.step, now=now)
    adjustment.switch_wait_s = parts.switch_wait_s
    adjustment.waiting = set(past.open_switch.waiting)
    return adjustment
