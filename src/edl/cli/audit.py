"""`edl audit`: was each sample used exactly once?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace

from rich import box
from rich.console import Console
from rich.table import Table

from edl.launch.jobs import find_job
from edl.launch.told import audited
from edl.runtime.auditing import Audit, EpochAudit

__all__ = ["audit"]


def audit(options: argparse.Namespace) -> int:
    """0 if no sample was used twice or passed over, as far as the job came, else 1.

    With --strict also 1 if an epoch ended with samples that nobody had used.
    """
    found = audited(find_job(options.job))
    if options.json:
        head = {"job": options.job, "exact": found.exact, "unused": found.unused}
        print(json.dumps({**head, **asdict(found)}, indent=2))
    else:
        Console().print(_table(found))
        print(_verdict(found))
    for torn in found.torn:
        print(f"note: {torn}; what comes before it counts", file=sys.stderr)
    return 0 if found.exact and not (options.strict and found.unused) else 1


def _table(found: Audit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    names = ("epoch", "state", "steps", "samples", "used once", "twice", "left", "never")
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number == 1 else "right", no_wrap=True)
    for alike in _alike(found.epochs):
        epoch, last = alike[0], alike[-1]
        table.add_row(
            # As people count, from 1; --json counts from 0, as scripts do.
            f"{epoch.epoch + 1}"
            if epoch is last
            else f"{epoch.epoch + 1} to {last.epoch + 1}, each",
            epoch.state,
            f"{epoch.steps:,}",
            f"{epoch.samples:,}",
            f"{epoch.used - epoch.twice * 2:,}",
            f"{epoch.twice:,}",
            f"{epoch.unused:,}",
            # Of an epoch that runs, nobody can say yet what will not have been used.
            f"{epoch.never:,}" if epoch.state != "running" or epoch.never else "-",
            style="red" if epoch.fault else "",
        )
    return table


def _alike(epochs: Iterable[EpochAudit]) -> list[list[EpochAudit]]:
    """Epochs of which the same is to be told, one after another: a long job has thousands."""
    found: list[list[EpochAudit]] = []
    for epoch in epochs:
        before = found[-1][-1] if found else None
        if before is not None and replace(before, epoch=epoch.epoch) == epoch:
            found[-1].append(epoch)
        else:
            found.append([epoch])
    return found


def _verdict(found: Audit) -> str:
    if found.fault:
        return f"NOT exactly once: {found.fault}"
    earlier = sum(epoch.earlier for epoch in found.epochs)
    begun = f" ({earlier:,} samples were used before its log begins)" if earlier else ""
    last = found.epochs[-1].state if found.epochs else ""
    so_far = {"running": ", so far", "unfinished": ", as far as it came"}.get(last, "")
    epochs, logs = len(found.epochs), len(found.logs)
    proof = (
        f"{found.steps:,} {'steps' if found.steps != 1 else 'step'} in "
        f"{epochs} {'epochs' if epochs != 1 else 'epoch'}{begun}, by the "
        f"{f'logs of {logs} workers' if logs != 1 else f'log of {found.logs[0]}'}"
    )
    left = [epoch for epoch in found.epochs if epoch.state == "left early"]
    if not left:
        return f"exactly once{so_far}: {proof}"
    which, them = f"epoch {left[0].epoch + 1}", "it"
    if len(left) > 1:
        which, them = f"{len(left)} epochs", "them"
    unused = sum(epoch.unused for epoch in left)
    samples, were = ("samples", "were") if unused != 1 else ("sample", "was")
    return (
        f"at most once{so_far}: {unused:,} {samples} of {which} {were} left unused, since the "
        f"script ended {them} early; {proof}"
    )
