"""Replay one fake-world job and tell its story.

`python -m tests.seeded.replay SEED [--big | --crash] [--migrate] [--withdraw]`

One line per event: virtual time, worker, event -> effects; then what the checkers say.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass

from edl.protocol import effects as fx
from edl.protocol.events import Heard, StepCommitted, Tick
from edl.protocol.topology import Generation
from edl.types import Member
from tests.seeded.checkers import check
from tests.seeded.crashes import draw_crash_plan
from tests.seeded.migrations import with_migrations
from tests.seeded.plan import draw_big_plan, draw_plan
from tests.seeded.withdrawals import with_withdrawals
from tests.seeded.world import run

__all__ = ["line", "main"]

BIG = 1024
# Bytes of a rendezvous, of which nobody can read anything.
_LONG = ("common", "parts", "shared", "entries")


def brief(value: object) -> str:
    """A value in as few words as tell it apart."""
    if isinstance(value, Generation):
        return f"g{value.number}[{' '.join(value.workers()[:12])}]"
    if isinstance(value, Member):
        return str(value.worker)
    if isinstance(value, StepCommitted):
        said = {r.next_generation for r in value.records} - {0}
        return f"StepCommitted(step={value.step} epoch={value.epoch} said={sorted(said)})"
    if isinstance(value, Heard):
        return f"Heard({value.peer}: {brief(value.message)})"
    if isinstance(value, fx.Send):
        return f"Send({value.peer}: {brief(value.message)})"
    if isinstance(value, fx.Publish):
        return f"Publish({value.happened.what})"
    if is_dataclass(value) and not isinstance(value, type):
        shown = [f.name for f in fields(value) if f.name not in _LONG]
        inner = ", ".join(f"{name}={brief(getattr(value, name))}" for name in shown)
        return f"{type(value).__name__}({inner})"
    if isinstance(value, tuple | list):
        return "(" + " ".join(brief(item) for item in value[:8]) + ")"
    text = str(value)
    return text if len(text) <= 90 else text[:87] + "..."


def line(now: float, worker: str, event: object, effects: list[fx.Effect]) -> str:
    """One event and what came of it."""
    did = "; ".join(brief(effect) for effect in effects) or "-"
    return f"{now:9.4f} {worker:>6}  {brief(event)} -> {did}"


def main(arguments: list[str]) -> int:
    if not arguments or not arguments[0].isdigit():
        print(__doc__)
        return 2
    seed = int(arguments[0])
    plan = draw_big_plan(seed, BIG) if "--big" in arguments else draw_plan(seed)
    if "--crash" in arguments:
        plan = draw_crash_plan(seed)
    if "--migrate" in arguments:
        plan = with_migrations(plan)
    if "--withdraw" in arguments:
        plan = with_withdrawals(plan)
    print(plan)

    def tell(now: float, worker: str, event: object, effects: list[fx.Effect]) -> None:
        if effects or not isinstance(event, Tick):
            print(line(now, worker, event, effects))

    history = run(plan, tell)
    for worker, end in history.exits.items():
        print(f"{end.time:9.4f} {worker:>6}  exit {end.status}: {end.why}")
    for request in history.requests:
        print(f"request {request.request_id} {request.kind}: {request.finals}")
    faults = check(history)
    for name, found in faults.items():
        print(f"FAULT {name}: {found}")
    ended = history.state or "no end"
    print(f"{len(history.commits)} commits, {ended}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
