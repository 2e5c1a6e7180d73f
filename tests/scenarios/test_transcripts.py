"""Three stories told in full, event by event, so that a change of behaviour shows as a diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl.protocol.effects import Effect
from edl.protocol.events import StepCommitted, Tick
from tests.seeded.checkers import check
from tests.seeded.plan import Ask, Plan
from tests.seeded.replay import line
from tests.seeded.world import run

HERE = Path(__file__).parent


def ask(time: float, kind: str, *fates: str) -> Ask:
    count = max(1, len(fates))
    return Ask(time=time, kind=kind, count=count, twice=False, again=False, fates=fates)


STORIES = {
    "scale_out": ask(1.5, "out", "lives"),
    "scale_in_of_the_leader": ask(1.5, "in-leader"),
    "undone_adjustment": ask(1.5, "out", "lives", "dies building"),
}


def told(plan: Plan) -> str:
    """Everything but the passing of time: who, what happened -> what it did about it."""
    lines: list[str] = []

    def tell(now: float, worker: str, event: object, effects: list[Effect]) -> None:
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
    plan = Plan(
        seed=4,
        founders=2,
        samples=36,
        batch=4,
        epochs=1,
        step_s=0.5,
        context_s=0.5,
        asks=[STORIES[name]],
    )
    story, path = told(plan), HERE / f"{name}.txt"
    if rewrite:
        path.write_text(story)
    written = path.read_text()
    assert story == written, "the story has changed; see it with pytest tests/scenarios --rewrite"
