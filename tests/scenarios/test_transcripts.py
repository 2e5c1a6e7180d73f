"""A few stories told in full, event by event, so that a change of behaviour shows as a diff."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.config import Settings
from edl.protocol.effects import Effect, Send
from edl.protocol.events import Heard, StepCommitted, Tick
from edl.protocol.messages import Ping, Pong
from tests.seeded.checkers import check
from tests.seeded.plan import Ask, Fault, Plan
from tests.seeded.replay import line
from tests.seeded.world import run

HERE = Path(__file__).parent


def ask(time: float, kind: str, *fates: str) -> Ask:
    count = max(1, len(fates))
    return Ask(time=time, kind=kind, count=count, twice=False, again=False, fates=fates)


def job(*asks: Ask, **changes: Any) -> Plan:
    plan = Plan(
        seed=4,
        founders=2,
        samples=36,
        batch=4,
        epochs=1,
        step_s=0.5,
        context_s=0.5,
        asks=[*asks],
    )
    return replace(plan, **changes)


def crash(kind: str, who: str, span_s: float = 0.0) -> Plan:
    """Three workers, and in the third step one goes."""
    fault = Fault(kind=kind, who=who, time=2.6, span_s=span_s)
    settings = Settings(silence_s=2.0, lease_s=1.0, reconnect_s=1.0)
    return job(founders=3, samples=20, faults=[fault], settings=settings)


STORIES = {
    "scale_out": job(ask(1.5, "out", "lives")),
    "scale_in_of_the_leader": job(ask(1.5, "in-leader")),
    "migration_of_the_leader": job(ask(1.5, "move-leader", "lives")),
    "migration_of_the_only_worker": job(ask(1.5, "move-all", "lives"), founders=1, samples=48),
    "undone_migration": job(ask(1.5, "move", "lives", "dies building"), founders=3),
    "undone_adjustment": job(ask(1.5, "out", "lives", "dies building")),
    "death_of_a_follower": crash("kill", "follower"),
    "death_of_the_leader": crash("kill", "leader"),
    "a_frozen_worker_wakes_up": crash("freeze", "follower", span_s=6.0),
}


def is_heartbeat(event: object, effects: list[Effect]) -> bool:
    """Pings and pongs are half of a story, and the dullest half."""
    if isinstance(event, Heard):
        return isinstance(event.message, Ping | Pong)
    sent = [effect.message for effect in effects if isinstance(effect, Send)]
    only = isinstance(event, Tick) and len(sent) == len(effects)
    return only and bool(sent) and all(isinstance(message, Ping) for message in sent)


def told(plan: Plan) -> str:
    """Everything but the passing of time: who, what happened -> what it did about it."""
    lines: list[str] = []

    def tell(now: float, worker: str, event: object, effects: list[Effect]) -> None:
        if is_heartbeat(event, effects):
            return
        if effects or not isinstance(event, Tick | StepCommitted):
            # Without the times, which say nothing about the protocol.
            lines.append(line(now, worker, event, effects).split(maxsplit=1)[1])

    history = run(plan, tell)
    assert check(history) == {}
    lines += [
        f"requester of {request.kind}: {[kind for _, kind in request.finals]}"
        for request in history.requests
    ]
    lines += [f"{worker} ended with {end.status}" for worker, end in history.exits.items()]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_told_as_it_was(name: str, rewrite: bool) -> None:
    story, path = told(STORIES[name]), HERE / f"{name}.txt"
    if rewrite:
        path.write_text(story)
    written = path.read_text()
    assert story == written, "the story has changed; see it with pytest tests/scenarios --rewrite"
