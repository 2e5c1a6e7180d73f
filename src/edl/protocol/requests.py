"""Who asked for what, and what they were told.

Holds: the same request id always gets the same final answer, however often and over however many
connections it is asked, and also from the next leader.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from edl.config import Settings
from edl.protocol.messages import (
    Adjusted,
    AdjustmentRecord,
    Finished,
    Migrate,
    Refusal,
    ScaleIn,
    ScaleOut,
    Undone,
)
from edl.protocol.recorded import Deed
from edl.protocol.topology import Generation
from edl.types import NAME, Gpu, WorkerId

__all__ = ["Final", "Requests", "choose_leavers", "choose_movers", "name_fault", "scale_out_fault"]

Final = Refusal | Adjusted | Undone | Finished

_REMEMBERED = 512


class Requests:
    """Open requesters and given answers."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, Final] = OrderedDict()
        self._waiting: dict[str, list[int]] = {}

    def answered(self, request_id: str) -> Final | None:
        return self._answers.get(request_id)

    def await_answer(self, request_id: str, peer: int) -> None:
        listeners = self._waiting.setdefault(request_id, [])
        if peer not in listeners:
            listeners.append(peer)

    def open_ids(self) -> list[str]:
        return list(self._waiting)

    def settle(self, answer: Final) -> list[int]:
        """Remember the final answer; returns everyone who waits for it."""
        self._keep(answer)
        return self._waiting.pop(answer.request_id, [])

    def _keep(self, answer: Final) -> None:
        """Remember an answer, and forget the oldest one if there are too many."""
        self._answers[answer.request_id] = answer
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)

    def forget(self, peer: int) -> None:
        """A connection closed; its request goes on without it."""
        for listeners in self._waiting.values():
            if peer in listeners:
                listeners.remove(peer)

    def memory(self) -> tuple[tuple[str, str, str], ...]:
        """Every answer without a record of its own, for the next leader."""
        return tuple(
            (request_id, type(answer).__name__, answer.reason)
            for request_id, answer in self._answers.items()
            if not isinstance(answer, Adjusted)
        )

    def restore(
        self,
        answers: tuple[tuple[str, str, str], ...],
        records: tuple[AdjustmentRecord, ...],
    ) -> None:
        """Take over what the old leader had answered."""
        kinds: dict[str, type[Refusal] | type[Undone] | type[Finished]] = {
            "Refusal": Refusal,
            "Undone": Undone,
            "Finished": Finished,
        }
        for request_id, kind, reason in answers:
            self._keep(kinds[kind](request_id=request_id, reason=reason))
        for record in records:
            self._keep(Adjusted(request_id=record.request_id, record=record))

    def remember(self, deeds: Iterable[Deed]) -> None:
        """What the store's record says of requests that another leader had answered."""
        for deed in deeds:
            if deed.request_id in self._answers:
                continue
            if deed.undone:
                answer: Final = Undone(request_id=deed.request_id, reason=deed.undone)
            else:
                answer = Adjusted(request_id=deed.request_id, record=deed.record())
            self._keep(answer)


def scale_out_fault(generation: Generation, message: ScaleOut, settings: Settings) -> str:
    """Why a scale-out can never be granted as asked; empty if it can."""
    size, limit, add = generation.size, settings.max_workers, len(message.joiners)
    if not add:
        return "scale_out of 0 workers; give at least one"
    fault = _joiner_fault(generation, message)
    if fault:
        return fault
    if limit and size + add > limit:
        room = max(0, limit - size)
        return f"{size} workers and {add} more are over --max {limit}; add at most {room}"
    return ""


def choose_leavers(
    generation: Generation, message: ScaleIn, settings: Settings
) -> tuple[tuple[WorkerId, ...], str]:
    """Who leaves, or why nobody can. Without names the highest ranks go, the leader last."""
    members = generation.workers()
    chosen, fault = _named(generation, message)
    if fault:
        return (), fault
    if message.count:
        rest = [w for w in reversed(members) if w not in chosen and w != generation.leader]
        if generation.leader not in chosen:
            rest.append(generation.leader)
        chosen += rest[: message.count]
    leavers = tuple(dict.fromkeys(chosen))
    if not leavers:
        return (), "scale_in of 0 workers; give at least one"
    asked = len(leavers) if not message.count else max(len(leavers), message.count)
    left = len(members) - asked
    if left < 1:
        return (), (
            f"removing {asked} of {len(members)} workers leaves none; "
            "keep at least one, or end the job with `edl stop`"
        )
    if left < settings.min_workers:
        least = settings.min_workers
        most = max(0, len(members) - least)
        advice = f"remove at most {most}" if most else "it can only grow, or end with `edl stop`"
        return (), f"{left} left of {len(members)} is under --min {least}; {advice}"
    return leavers, ""


def choose_movers(
    generation: Generation, message: Migrate, settings: Settings
) -> tuple[tuple[WorkerId, ...], str]:
    """Who leaves in a migration, or why it can never be granted as asked."""
    chosen, fault = _named(generation, message)
    leavers = tuple(dict.fromkeys(chosen))
    size, add = generation.size, len(message.joiners)
    after = size - len(leavers) + add
    least, most = settings.min_workers, settings.max_workers
    fault = fault or _joiner_fault(generation, message)
    if fault:
        return (), fault
    if not leavers or not add:
        other = "scale_out" if add else "scale_in"
        return (), (
            f"migrate of {len(leavers)} workers to {add} slots; give at least one of each, or "
            f"use {other}"
        )
    moved = f"{size} workers without {len(leavers)} and with {add} more are {after}"
    if most and after > most:
        return (), f"{moved}, over --max {most}; add at most {max(0, add - after + most)}"
    if after < least:
        return (), f"{moved}, under --min {least}; add at least {add + least - after}"
    return leavers, ""


def name_fault(worker: WorkerId, slot: Gpu) -> str:
    """Why a worker cannot have this name or slot; empty if it can.

    Names come from other processes, and reach terminals, logs and paths.
    """
    for what, name in (("worker", worker), ("host", slot.host)):
        if not NAME.fullmatch(name):
            return (
                f"{what} {name[:64]!a} is no name; give up to 128 letters, digits, '.', '_' and '-'"
            )
    return ""


def _joiner_fault(generation: Generation, message: ScaleOut | Migrate) -> str:
    for joiner in message.joiners:
        fault = name_fault(joiner.worker, joiner.slot)
        if fault:
            return fault
        if joiner.worker in generation:
            return f"worker {joiner.worker} is in the job already; start a new one"
    return ""


def _named(generation: Generation, message: ScaleIn | Migrate) -> tuple[list[WorkerId], str]:
    """The members that are named by id or by slot, or which name is nobody's."""
    members = generation.workers()
    by_slot = {str(member.slot): member.worker for member in generation.members}
    chosen: list[WorkerId] = []
    for worker in message.workers:
        if worker not in members:
            have = ", ".join(members)
            return [], f"worker {worker!r} is not in the job; it has {have}"
        chosen.append(worker)
    for gpu in message.gpus:
        if str(gpu) not in by_slot:
            have = ", ".join(sorted(by_slot))
            return [], f"slot {gpu} has no worker of this job; it has {have}"
        chosen.append(by_slot[str(gpu)])
    return chosen, ""
