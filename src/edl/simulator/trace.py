"""Trace files to jobs, and back.

Whoever has a log of a cluster has it in some other form; `read_trace` tells which by looking inside
(docs/traces.md describes them). Owns what all formats have in common: jobs come sorted, the first
one at 0, and those larger than the cluster are left out. Holds: every change of that kind is said
in `Trace.notes` or counted in `Trace.skipped`.
"""

from __future__ import annotations

import gzip
import re
from dataclasses import fields, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.philly import read_philly
from edl.simulator.trace_csv import OPTIONAL, OWN, read_csv
from edl.simulator.trace_file import Found, read_text, table_of
from edl.simulator.trace_pollux import needless

__all__ = ["read_trace", "write_trace"]

BAD = re.compile("\0|[\ud800-\udfff]+")
SUFFIXES = (".gz", ".csv", ".json", ".txt")
DEFAULTS = {each.name: each.default for each in fields(TraceJob) if each.name in OPTIONAL}


def read_trace(
    path: str | Path, *, capacity: int | None = None, standalone: str | Path | None = None
) -> Trace:
    """The jobs of a file in any of the known formats, packed by gzip or not.

    With `capacity`, jobs that ask for more GPUs are left out. `standalone` is the table of times
    alone that a Pollux workload needs, if it does not lie beside it.
    """
    if capacity is not None and capacity < 1:
        raise UsageError(f"the capacity is {capacity} GPUs; at least 1 is needed")
    text = read_text(path)
    if text.lstrip()[:1] in ("[", "{"):
        found = read_philly(str(path), text)
        if standalone is not None:
            raise needless(path, "a Philly log")
    else:
        found = read_csv(table_of(str(path), text), standalone)
    return _finished(path, found, capacity)


def _finished(path: str | Path, found: Found, capacity: int | None) -> Trace:
    jobs, skipped, notes = found.jobs, found.skipped, found.notes
    if capacity is not None:
        fitting = [job for job in jobs if job.gpus <= capacity]
        if len(fitting) < len(jobs):
            skipped[f"larger than the cluster of {capacity} GPUs"] = len(jobs) - len(fitting)
        jobs = fitting
    if not jobs:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise UsageError(f"{path}: no job is left of {skipped.total()}: {reasons}")
    times = [job.submit_s for job in jobs]
    backward = sum(later < earlier for earlier, later in pairwise(times))
    if backward:
        jobs = sorted(jobs, key=attrgetter("submit_s"))
        notes.append(f"sorted by submission: {backward} jobs stood behind a later one")
    first = jobs[0].submit_s
    if first:
        jobs = [replace(job, submit_s=job.submit_s - first) for job in jobs]
        notes.append(f"the first submission, at {first:.15g} s, is now at 0, the others likewise")
    name = Path(path).name
    while name.endswith(SUFFIXES) and "." in name[1:]:
        name = name.rpartition(".")[0]
    return Trace(
        name=name,
        jobs=tuple(jobs),
        skipped=dict(skipped),
        notes=tuple(notes),
        speeds=found.speeds,
    )


# -- writing -----------------------------------------------------------------------------------


def write_trace(path: str | Path, trace: Trace) -> None:
    """In EDL's own format, packed if the name ends in `.gz`. Read again, the jobs are equal.

    A column that may be left out is, where no job differs from its default.
    """
    optional = [
        name for name in OPTIONAL if any(getattr(job, name) != DEFAULTS[name] for job in trace.jobs)
    ]
    lines = [",".join([*OWN.needed, *optional])]
    values = attrgetter(*OWN.needed, *optional)
    lines += [",".join(map(_cell, values(job))) for job in trace.jobs]
    text = "\n".join([*lines, ""])
    # Zero bytes and halves of characters could not be read again.
    bad = BAD.search(text)
    if bad:
        raise UsageError(f"{path} cannot be written: {bad.group()!r} in a name is no text")
    content = text.encode()
    try:
        packed = str(path).endswith(".gz")
        # Without the time of day in it, equal traces are equal files.
        Path(path).write_bytes(gzip.compress(content, 6, mtime=0) if packed else content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _cell(value: str | bool | int | float) -> str:
    """A number so that it is read back exactly; a text in quotes where it would not be one cell."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return str(value)
    plain = not value.startswith(" ") and not any(mark in value for mark in ',"\r\n')
    return value if plain else '"' + value.replace('"', '""') + '"'
