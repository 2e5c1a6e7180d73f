"""How a job must end. Judged only where nothing else is wrong: a wrong job may well hang, too."""

from __future__ import annotations

import math
from collections.abc import Callable

from edl.protocol.record import STOP, Kind
from edl.types import WorkerId
from tests.seeded.history import Exit, History
from tests.seeded.process import KILLED

__all__ = ["ENDINGS", "survivors"]


def survivors(history: History) -> list[WorkerId]:
    """Members of the last recorded generation that did not die, and could have gone on."""
    if not history.recorded:
        return []
    last = history.recorded[-1]
    settled = {commit.worker for commit in history.commits}
    return [
        worker
        for worker in last.workers()
        if not (worker in history.exits and history.exits[worker].status == KILLED)
        # Who has let the others go on is theirs no more, whatever becomes of them.
        and (worker, last.number) not in history.let_go
        and (worker in settled or worker not in last.newcomers or last.founding)
    ]


def everything_ends(history: History) -> list[str]:
    """Once faults stop, the job goes on to its end: nothing waits for ever."""
    faults = []
    if history.stuck:
        faults.append(f"not over after {history.ended_at:.0f} s: {history.stuck}")
    if history.state not in ("finished", "stopped") and not history.fenced_at:
        done = _through(history) | _gave_up(history)
        left = [worker for worker in survivors(history) if worker not in done]
        # A joiner may be killed in a calm world too, and may be the only one that was left.
        if left or not (history.faulty or _last_were_killed(history)):
            faults.append(f"the store says {history.state!r} of the job, though {left} survived")
    return faults


def _gave_up(history: History) -> set[WorkerId]:
    """Founders that did not come together in time, though one of them founded the job unseen."""
    return {
        worker
        for worker, end in history.exits.items()
        if end.status == 1 and history.faulty and _hopeless(history, worker, end)
    }


def _last_were_killed(history: History) -> bool:
    """Whether everybody that the last recorded generation goes on with was killed."""
    last = history.recorded[-1].settled() if history.recorded else None
    ends = [history.exits.get(worker) for worker in last.workers()] if last is not None else []
    return bool(ends) and all(end is not None and end.status == KILLED for end in ends)


def _through(history: History) -> set[WorkerId]:
    """Who reached the job's end. The store's word on it may die with whoever was to say it.

    A worker that was merely scaled in has seen no end.
    """
    stopped = {move.worker for move in history.moves if move.target == STOP}
    return {
        worker
        for worker, end in history.exits.items()
        if end.status == 0 and (end.why == "over" or (end.why == "left" and worker in stopped))
    }


def every_request_is_answered(history: History) -> list[str]:
    """Whoever asks hears a final answer, and what it hears is true."""
    faults = []
    for request in history.requests:
        kinds = {kind for _, kind in request.finals}
        if not kinds:
            faults.append(f"request {request.request_id} was never answered")
        trained = {commit.worker for commit in history.commits}
        if "Adjusted" in kinds and not set(request.joiners) <= trained:
            idle = [worker for worker in request.joiners if worker not in trained]
            if not _voided(history) and not history.faulty:
                faults.append(f"{request.request_id} is complete, but {idle} never trained")
    return faults


def _voided(history: History) -> bool:
    """Whether a loop was left early, so that a newcomer's only step may count for nobody."""
    kinds = {record.kind for gathered in history.rounds[-3:] for record in gathered.records}
    return bool(history.broken_epochs) or Kind.END in kinds


def right_exits(history: History) -> list[str]:
    """Members and leavers end with 0; so do joiners that were dismissed, unless for a fault."""
    faults = []
    undone = {
        worker
        for request in history.requests
        for one in history.answers.get(request.request_id, [])
        if type(one.answer).__name__ in ("Undone", "Finished")
        for worker in request.joiners
    }
    for worker in history.started:
        end = history.exits.get(worker)
        if end is None:
            faults.append(f"{worker} never ended")
        elif end.status == 1 and history.faulty and _hopeless(history, worker, end):
            continue
        elif end.status == 1 and worker not in undone:
            faults.append(f"{worker} failed: {end.why}")
        elif end.status == 1 and "not expected" not in end.why:
            faults.append(f"{worker} failed, though it did nothing wrong: {end.why}")
        elif end.status not in (0, 1, KILLED):
            faults.append(f"{worker} ended with {end.status}")
    return faults


def _hopeless(history: History, worker: WorkerId, end: Exit) -> bool:
    """Whoever cannot go on without the others says so.

    Founders that gave up before anybody trained, or that were cut off from those who did; those
    that cannot lead, where nobody does; and joiners whose request died with the leader that had
    accepted it. Never one that could go on alone.
    """
    why = end.why
    others_count = worker not in history.touched
    began = [c.time for c in history.commits if others_count or c.worker == worker]
    if end.time < min(began, default=math.inf):
        begins = (
            "before the job began",
            "workers are here",
            "build the group",
            "the job could not begin with",  # a pair of founders that never connects
        )
        if any(part in why for part in begins):
            return True
    if not history.recorded:
        return "has had no leader" in why
    joiners = {joiner for request in history.requests for joiner in request.joiners}
    expected = "not expected" not in why
    alone = "has had no leader" in why and worker not in survivors(history)
    return alone or (worker in joiners and not expected)


ENDINGS: dict[str, Callable[[History], list[str]]] = {
    "everything_ends": everything_ends,
    "every_request_is_answered": every_request_is_answered,
    "right_exits": right_exits,
}
