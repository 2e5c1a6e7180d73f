"""Run a range of seeds on all cores and list those that fail.

    python -m tests.seeded.sweep 5000000 20000

Each seed is one world. The kinds of worlds take turns: plain, deaths, migrations, both, and both
with requesters that give up. Prints a line every 500 seeds, and for each failed seed the command
that replays it. Exit status 1 if a seed failed, and 2 for wrong arguments.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.seeded.checkers import check
from tests.seeded.crashes import draw_crash_plan
from tests.seeded.migrations import draw_crash_migrations, draw_migrations
from tests.seeded.plan import Plan, draw_plan
from tests.seeded.withdrawals import with_withdrawals
from tests.seeded.world import run

__all__ = ["main"]

PROGRESS_SEEDS = 500

# How a world is drawn, and the arguments of `tests.seeded.replay` that draw the same one.
KINDS: tuple[tuple[Callable[[int], Plan], str], ...] = (
    (draw_plan, ""),
    (draw_crash_plan, " --crash"),
    (draw_migrations, " --migrate"),
    (draw_crash_migrations, " --crash --migrate"),
    (
        lambda seed: with_withdrawals(draw_crash_migrations(seed)),
        " --crash --migrate --withdraw",
    ),
)


def faults_of(seed: int) -> str:
    """What is wrong with this seed's world; empty if nothing is."""
    draw, arguments = KINDS[seed % len(KINDS)]
    try:
        found = check(run(draw(seed)))
    except Exception as error:
        found = {"raised": [repr(error)]}
    if not found:
        return ""
    lines = "\n".join(f"  {name}: {faults}" for name, faults in found.items())
    return f"replay with: make seeded SEED='{seed}{arguments}'\n{lines}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or not all(argument.isdigit() for argument in arguments):
        print(__doc__)
        return 2
    first, count = map(int, arguments)
    began, failed = time.monotonic(), 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(faults_of, range(first, first + count), chunksize=20)
        for done, fault in enumerate(results, 1):
            if fault:
                failed += 1
                print(fault, flush=True)
            if done % PROGRESS_SEEDS == 0 or done == count:
                seconds = time.monotonic() - began
                print(f"{done} of {count} seeds, {failed} failed, {seconds:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
