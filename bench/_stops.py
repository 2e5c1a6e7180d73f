"""How long training stops at a change of membership, from the workers' own logs.

The stop is the longest gap between two steps on the workers that stay, within two steps of the
change, less the larger of the median steps before and after it. The steps before a join are longer
where newcomers' imports share the cores, so the stop beside the steps after it is told too.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Stop", "ends", "stop_at", "wait_for_steps"]


@dataclass(frozen=True, slots=True)
class Stop:
    seconds: float
    step_s: float
    after_s: float  # a usual step after the change

    @property
    def share(self) -> float:
        """Of a step; not below nothing."""
        return max(0.0, self.seconds) / self.step_s

    @property
    def share_after(self) -> float:
        """The same, had the steps before never been longer than those after."""
        return max(0.0, self.seconds + self.step_s - self.after_s) / self.after_s

    def __str__(self) -> str:
        return (
            f"stop {self.seconds * 1e3:6.0f} ms of a {self.step_s:.2f} s step "
            f"({self.share_after:.0%} beside the {self.after_s:.2f} s after)"
        )


def ends(folder: Path, worker: str) -> dict[int, tuple[int, float]]:
    """When each step ended on one worker, and among how many."""
    path = folder / f"{worker}.steps"
    if not path.exists():
        return {}
    # The last line may be half written.
    rows = [line.split() for line in path.read_text().split("\n")[:-1]]
    found: dict[int, tuple[int, float]] = {}
    for step, size, end in rows:
        # A step that was done again counts from its first end: the gap to the next is the loss.
        found.setdefault(int(step), (int(size), float(end)))
    return found


def stop_at(folder: Path, workers: list[str], step: int) -> Stop:
    """Around `step`, the first one with the new membership."""
    found: list[Stop] = []
    for worker in workers:
        seen = ends(folder, worker)
        gaps = {s: seen[s][1] - seen[s - 1][1] for s in seen if s - 1 in seen}
        before = [gaps[s] for s in range(step - 7, step - 2) if s in gaps]
        after = [gaps[s] for s in range(step + 3, step + 7) if s in gaps]
        near = [gaps[s] for s in range(step - 2, step + 3) if s in gaps]
        if len(before) < 3 or len(after) < 2 or len(near) < 3:
            raise SystemExit(f"too few steps on {worker} around step {step}: {sorted(gaps)[-12:]}")
        later = statistics.median(after)
        usual = max(statistics.median(before), later)
        found.append(Stop(max(near) - usual, usual, later))
    return max(found, key=lambda stop: stop.seconds)


def wait_for_steps(folder: Path, worker: str, count: int, *, size: int = 0) -> None:
    """Until this worker has done `count` more steps, all of them among `size` workers if given."""
    deadline = time.monotonic() + 300
    begun = len(ends(folder, worker))
    while True:
        seen = list(ends(folder, worker).values())[begun:]
        if len([row for row in seen if not size or row[0] == size]) >= count:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"{worker} did not do {count} steps among {size} workers in 300 s")
        time.sleep(0.1)
