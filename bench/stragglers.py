"""How soon is a slow worker found, and what does each policy make of it?

    python bench/stragglers.py [--rounds 5] [--wait 0.8] [--late 0.333] [--window 20]

Four workers train; from a step on one of them (or two) is late in every mini-batch by the part
--late of a healthy one. Compute is a timed wait proportional to a worker's rows, see
tests/integration/scripts/straggling.py, where everybody also waits for everybody in each step.
A round runs every case once: four, three and two healthy workers; a straggler under `off`,
`remove`, `replace` and `rebalance`; and two stragglers at once under `remove`.

Told for each case: the throughput of the last --window steps, the mini-batches until the straggler
was found, and the stop, which is the longest gap between two steps of a worker that stays, within
two steps of the change, less the larger of the median steps before and after it; with healthy
workers the same where nothing changes, for even steps are longer by chance. Medians over the
rounds. Then the bars: found after 10 and before 15 mini-batches; without a stop; at least 94 % of
the healthy job that has as many workers as are left; `rebalance` faster than `remove`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edl.client import Event, Job, run

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "integration" / "scripts" / "straggling.py"
BATCH = 48
SINCE = 12  # the first step that is slow
STAYS = "w0"


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    workers: int = 4
    policy: str = "warn"
    slow: tuple[str, ...] = ()
    done: str = ""  # the event that tells that the policy has acted


CASES = (
    Case("4 healthy"),
    Case("3 healthy", workers=3),
    Case("2 healthy", workers=2),
    Case("off", policy="off", slow=("w2",)),
    Case("remove", policy="remove", slow=("w2",), done="straggler.removed"),
    Case("replace", policy="replace", slow=("w2",), done="straggler.replaced"),
    Case("rebalance", policy="rebalance", slow=("w2",), done="straggler.weighed"),
    Case("remove two", policy="remove", slow=("w1", "w2"), done="straggler.removed"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    throughput: float  # samples a second
    found: tuple[int, ...] = ()  # mini-batches, for each straggler
    wrong: tuple[str, ...] = ()  # who was found and was not slow
    stop_s: float | None = None
    step_s: float = 0.0  # the larger of the median steps before and after the change


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait", type=float, default=0.8, help="seconds for the whole batch")
    parser.add_argument("--late", type=float, default=1 / 3, help="part of a healthy mini-batch")
    parser.add_argument("--window", type=int, default=20, help="steps that throughput is told of")
    return parser.parse_args()


# -- one job -----------------------------------------------------------------------------------


def once(case: Case, options: argparse.Namespace, folder: Path) -> Outcome:
    os.environ["EDL_HOME"] = str(folder / "home")
    end = folder / "end"
    job = run(
        str(SCRIPT),
        *("--log", str(folder), "--until", str(end), "--wait", str(options.wait)),
        *("--slow", ",".join(case.slow), "--since", str(SINCE), "--late", str(options.late)),
        workers=case.workers,
        stragglers=case.policy,
    )
    try:
        if case.done:
            await_events(job, case.done, len(case.slow))
        else:
            await_step(folder, SINCE + 3)
        await_step(folder, max(gaps_of(folder, STAYS)) + options.window + 3)
        end.touch()
        job.wait(60)
    finally:
        if job.running():
            job.stop(force=True)
    audit = job.audit()
    if not audit.exact:
        raise SystemExit(f"{case.name}: samples not used exactly once: {audit.fault}")
    return judged(case, options, folder, list(job.events()))


def judged(case: Case, options: argparse.Namespace, folder: Path, events: list[Event]) -> Outcome:
    gaps = list(gaps_of(folder, STAYS).values())[-options.window :]
    throughput = BATCH * len(gaps) / sum(gaps)
    found = [event for event in events if event.what == "straggler.found"]
    named = [str(event.fields["worker"]) for event in found]
    after = tuple(e.step - SINCE for e in found if e.fields["worker"] in case.slow)
    wrong = tuple(name for name in named if name not in case.slow)
    switch = next((e.step for e in events if e.what == "adjust.switching"), None)
    if switch is None and case.slow:
        return Outcome(throughput, after, wrong)
    if switch is None:
        switch = max(gaps_of(folder, STAYS)) - 8
    stayers = [f"w{n}" for n in range(case.workers) if f"w{n}" not in case.slow]
    stop_s, step_s = max(stop(gaps_of(folder, worker), switch) for worker in stayers)
    return Outcome(throughput, after, wrong, stop_s, step_s)


def gaps_of(folder: Path, worker: str) -> dict[int, float]:
    """Seconds from the end of the step before to the end of each step."""
    path = folder / f"{worker}.jsonl"
    # The last line may be half written.
    rows = [json.loads(text) for text in path.read_text().split("\n")[:-1]] if path.exists() else []
    return {after[0]: after[3] - before[3] for before, after in pairwise(rows)}


def stop(gaps: dict[int, float], switch: int) -> tuple[float, float]:
    """The stop at the first step of a new generation, and the usual step that it is beside."""
    before = [gap for step, gap in gaps.items() if switch - 7 <= step < switch - 2]
    after = [gap for step, gap in gaps.items() if switch + 2 < step <= switch + 7]
    near = [gap for step, gap in gaps.items() if abs(step - switch) <= 2]
    usual = max(statistics.median(before), statistics.median(after))
    return max(near) - usual, usual


def await_step(folder: Path, step: int) -> None:
    await_(lambda: max(gaps_of(folder, STAYS), default=0) >= step, f"step {step}")


def await_events(job: Job, what: str, count: int) -> None:
    await_(lambda: sum(event.what == what for event in job.events()) >= count, what)


def await_(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 180
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {what} within 180 s")
        time.sleep(0.1)


# -- all of it ---------------------------------------------------------------------------------


def tell(results: dict[str, list[Outcome]]) -> None:
    rate = {name: statistics.median(o.throughput for o in all_) for name, all_ in results.items()}
    print(f"\n{'':<12}{'samples/s':>10}{'of 4':>8}{'of 3':>8}{'found after':>14}{'stop':>24}")
    for name, outcomes in results.items():
        steps = sorted(count for outcome in outcomes for count in outcome.found)
        stops = sorted((o.stop_s, o.step_s) for o in outcomes if o.stop_s is not None)
        middle = stops[len(stops) // 2] if stops else None
        print(
            f"{name:<12}{rate[name]:>10.1f}{rate[name] / rate['4 healthy']:>8.1%}"
            f"{rate[name] / rate['3 healthy']:>8.1%}"
            f"{f'{steps[0]} to {steps[-1]}' if steps else '':>14}"
            + (
                f"{middle[0] * 1e3:>9.0f} ms ({max(0.0, middle[0]) / middle[1]:.1%})"
                if middle
                else ""
            )
        )
    every = [count for outcomes in results.values() for o in outcomes for count in o.found]
    wrong = [name for outcomes in results.values() for o in outcomes for name in o.wrong]
    told = sum(len(case.slow) * len(results[case.name]) for case in CASES if case.policy != "off")
    bars = {
        f"found after 10 and before 15 mini-batches: {len(every)} of {told}, "
        f"{min(every, default=0)} to {max(every, default=0)}": (
            len(every) == told and all(10 <= count < 15 for count in every)
        ),
        f"nobody else found: {len(wrong)}": not wrong,
    }
    for name, healthy in (("remove", "3 healthy"), ("remove two", "2 healthy")):
        share = rate[name] / rate[healthy]
        bars[f"{name}: {share:.1%} of {healthy}, at least 94 %"] = share >= 0.94
    gain = rate["rebalance"] / rate["remove"]
    bars[f"rebalance: {gain:.2f} times the throughput of remove, above 1"] = gain > 1.0
    print()
    for bar, holds in bars.items():
        print(f"{'holds ' if holds else 'BROKEN'} {bar}")


def main() -> int:
    options = parse()
    results: dict[str, list[Outcome]] = defaultdict(list)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", flush=True)
        for case in CASES:
            with tempfile.TemporaryDirectory(prefix="edl-bench-") as scratch:
                outcome = once(case, options, Path(scratch))
            results[case.name].append(outcome)
            print(f"  {case.name}: {outcome}", flush=True)
    print(f"wait {options.wait:g} s, late by {options.late:.3f} of a mini-batch of 4 workers")
    tell(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
