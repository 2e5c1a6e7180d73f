"""What the demo tells at its end: the adjustments in parts, and whether the promises held."""

from __future__ import annotations

from exactly_once import Line, judge
from rich.console import Console
from rich.table import Table

from edl.protocol.tale import AdjustmentRecord

Logs = dict[str, list[Line]]
# As digits.py has them.
SAMPLES, BATCH = 1437, 96
PARTS = {
    "process_start_s": "process start   (beside training)",
    "context_s": "context         (beside training)",
    "topology_s": "topology        (beside training)",
    "switch_wait_s": "wait for switch (beside training)",
    "transfer_s": "state transfer  (inside one step)",
    "stop_s": "[bold]stop[/]: that step, less a usual one",
}


def show(console: Console, records: tuple[AdjustmentRecord, ...]) -> None:
    names = (f"{record.kind.replace('_', ' ')} to {record.size}" for record in records)
    table = Table("what an adjustment is made of", *names)
    for part, name in PARTS.items():
        times = (getattr(record.parts, part) for record in records)
        table.add_row(name, *(f"{1000 * seconds:8,.0f} ms" for seconds in times))
    table.add_row("from request to answer", *(f"{1000 * r.total_s:8,.0f} ms" for r in records))
    console.print(table)


def checked(console: Console, elastic: Logs, static: Logs) -> bool:
    """Print what must hold, and whether it does."""
    epochs = judge(elastic.values(), samples=SAMPLES)
    never, once, more = (sum(getattr(e, n) for e in epochs) for n in ("never", "once", "more"))
    ends = [log[-1] for log in elastic.values() if log[-1]["what"] == "finished"]
    alone = [log[-1] for log in static.values() if log[-1]["what"] == "finished"]
    alike = len({line["fingerprint"] for line in ends}) == 1
    score, other = ends[0]["accuracy"], alone[0]["accuracy"]
    used = f"used never {never}, once {once:,}, more often {more}"
    claims = {
        f"each sample once an epoch ({used})": never == more == 0,
        f"{BATCH} samples a step, with 2, 4 and 3 workers": all(e.holds(BATCH) for e in epochs),
        f"{len(ends)} workers end with equal models, bit for bit": len(ends) == 3 and alike,
        f"test accuracy {score:.1%}, without scaling {other:.1%}": abs(score - other) <= 0.01,
    }
    for text, holds in claims.items():
        console.print(f"[{'green]yes' if holds else 'bold red]NO '}[/]  {text}")
    return all(claims.values())
