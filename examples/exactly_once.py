"""Judge from the workers' own logs whether every sample was used exactly once an epoch.

    python examples/exactly_once.py DIR     # the DIR that digits.py was given as --log

Each worker wrote, before backward, which samples it was about to use, and after the step whether
it counted. A step counts in the latest generation in which any worker finished it. Nothing here
asks EDL: it only counts what the training script saw.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """How often the samples of one epoch were used."""

    number: int
    never: int
    once: int
    more: int
    batches: tuple[int, ...]  # samples in each step, all workers together

    def holds(self, batch: int) -> bool:
        """Each sample once, in steps of `batch`; only the last step may be smaller."""
        exact = self.never == 0 and self.more == 0
        return exact and all(each == batch for each in self.batches[:-1])


def read(folder: Path) -> dict[str, list[Line]]:
    """Every worker's lines, by its name."""
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }


def judge(logs: Iterable[list[Line]], *, samples: int) -> list[Epoch]:
    """One verdict per epoch."""
    lines = [line for log in logs for line in log]
    counted: dict[tuple[int, int], int] = {}
    for line in lines:
        if line["what"] == "ended" and line["advanced"]:
            step = (line["epoch"], line["step"])
            counted[step] = max(counted.get(step, 0), line["generation"])
    used: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for line in lines:
        step = (line.get("epoch", -1), line.get("step", -1))
        if line["what"] == "began" and counted.get(step) == line["generation"]:
            used[step].update(line["indexes"])
    return [_epoch(number, used, samples) for number in sorted({epoch for epoch, _ in used})]


def _epoch(number: int, used: dict[tuple[int, int], Counter[int]], samples: int) -> Epoch:
    steps = [used[step] for step in sorted(used) if step[0] == number]
    times: Counter[int] = Counter()
    for step in steps:
        times.update(step)
    once = sum(count == 1 for count in times.values())
    more = sum(count > 1 for count in times.values())
    return Epoch(
        number=number,
        never=samples - once - more,
        once=once,
        more=more,
        batches=tuple(step.total() for step in steps),
    )


def main() -> int:
    if len(sys.argv) != 2 or not (logs := read(Path(sys.argv[1]))):
        print("usage: exactly_once.py DIR, a folder of logs that digits.py --log DIR wrote")
        return 2
    samples = 1 + max(
        index for log in logs.values() for line in log for index in line.get("indexes", [])
    )
    epochs = judge(logs.values(), samples=samples)
    batch = max(max(epoch.batches) for epoch in epochs)
    print(f"{samples} samples, aggregate batch {batch}, {len(logs)} workers")
    print("epoch   never    once    more  steps")
    for epoch in epochs:
        counts = f"{epoch.never:7} {epoch.once:7} {epoch.more:7} {len(epoch.batches):6}"
        print(f"{epoch.number:5} {counts}{'' if epoch.holds(batch) else '   wrong'}")
    wrong = sum(not epoch.holds(batch) for epoch in epochs)
    print("exactly once" if not wrong else f"{wrong} epochs are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
