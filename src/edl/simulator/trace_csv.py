"""Traces that are CSV: four dialects of one idea, told apart by their header.

A dialect is only which column means what. Real traces lack values: such a job is left out and
counted. What cannot be true (a negative duration, half a GPU, the same id twice) is an error with
its line. Holds: of every row there is a job, a reason in `Found.skipped`, or an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.jobs import TraceJob
from edl.simulator.trace_file import Found, Table, blame, is_missing, number, whole
from edl.simulator.trace_pollux import Alone, needless

__all__ = ["NO_DURATION", "NO_GPUS", "NO_SUBMISSION", "OPTIONAL", "OWN", "ZERO", "read_csv"]

NO_SUBMISSION = "without a submission time"
NO_GPUS = "without GPUs"
NO_DURATION = "without a duration"
ZERO = "of zero duration"

SECONDS = "a number of seconds"
# Beyond these a number is another thing than seconds, and a simulation of it would not end.
LONGEST_S = 1e9
LATEST_S = 1e12
YES, NO = ("true", "yes", "1"), ("false", "no", "0")
OPTIONAL = ("model", "batch", "min_gpus", "max_gpus", "elastic", "user")

Numbers = tuple[float, int, float]  # submission, GPUs, duration
Make = Callable[[int, list[str], Numbers], TraceJob]
Rows = Iterator[tuple[int, list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The columns of one format, by what they mean."""

    name: str
    id: str
    submit: str
    gpus: str
    duration: str = ""  # empty: found elsewhere
    others: tuple[str, ...] = ()  # without which it is not this format either
    model: str = ""
    user: str = ""

    @property
    def needed(self) -> tuple[str, ...]:
        columns = (self.id, self.submit, self.gpus, self.duration, *self.others)
        return tuple(column for column in columns if column)


OWN = Dialect(
    name="EDL's own format", id="id", submit="submit_s", gpus="gpus", duration="duration_s"
)
PHILLY = Dialect(
    name="a Philly CSV",
    id="job_id",
    submit="submit_time",
    gpus="num_gpus",
    duration="duration",
    # A virtual cluster is a team, the nearest to a user that these files have.
    user="vc",
)
TIRESIAS = Dialect(
    name="a Tiresias trace",
    id="job_id",
    submit="submit_time",
    gpus="num_gpu",
    duration="duration",
    model="model_name",
)
POLLUX = Dialect(
    name="a Pollux workload",
    id="name",
    submit="time",
    gpus="num_replicas",
    others=("application", "batch_size"),
    model="application",
)
DIALECTS = (OWN, PHILLY, TIRESIAS, POLLUX)


def read_csv(table: Table, standalone: str | Path | None) -> Found:
    """Jobs in the file's order. `standalone` is where a Pollux workload finds its durations."""
    dialect = _dialect_of(table)
    found = Found()
    if standalone is not None and dialect is not POLLUX:
        raise needless(table.path, dialect.name)
    if dialect is OWN:
        unknown = [name for name in table.columns if name not in (*OWN.needed, *OPTIONAL)]
        if unknown:
            found.notes.append(f"columns that mean nothing here: {', '.join(unknown)}")
        _collect(table, dialect, found, _maker_of_own(table))
    elif dialect is POLLUX:
        _collect_pollux(table, found, Alone.beside(table.path, standalone))
    else:
        _collect(table, dialect, found, _maker(table, dialect))
    return found


def _dialect_of(table: Table) -> Dialect:
    """The one that the header has most columns of; complete, or an error says what is missing."""

    def common(dialect: Dialect) -> int:
        return sum(name in table.columns for name in dialect.needed)

    best = max(DIALECTS, key=lambda each: (common(each) == len(each.needed), common(each)))
    if common(best) < 2:
        known = "; ".join(f"{each.name}: {', '.join(each.needed)}" for each in DIALECTS)
        raise blame(
            table.path,
            table.header_line,
            f"no trace has the columns {', '.join(table.columns)[:200]!r}; expected, with commas "
            f"between them, those of {known}",
        )
    table.need(best.needed, best.name)
    return best


# -- rows --------------------------------------------------------------------------------------


def _collect(
    table: Table, dialect: Dialect, found: Found, make: Make, rows: Rows | None = None
) -> None:
    """The one loop of every dialect; a hundred thousand rows take less than a second."""
    columns = table.columns
    place, submit_at, gpus_at = columns[dialect.id], columns[dialect.submit], columns[dialect.gpus]
    # What is found elsewhere is appended to the row.
    duration_at = columns[dialect.duration] if dialect.duration else len(columns)
    names = dialect.submit, dialect.gpus, dialect.duration or "duration"
    lines: dict[str, int] = {}
    append = found.jobs.append
    for line, row in rows or table.rows():
        first = lines.setdefault(row[place], line)
        if first != line:
            raise blame(table.path, line, f"{dialect.id} {row[place]!r} is line {first}'s too")
        cells = row[submit_at], row[gpus_at], row[duration_at]
        try:
            numbers = float(cells[0]), int(cells[1]), float(cells[2])
            plain = abs(numbers[0]) <= LATEST_S and numbers[1] > 0 and 0 < numbers[2] <= LONGEST_S
        except ValueError:
            plain = False
        if plain and "_" not in "".join(cells):
            append(make(line, row, numbers))
            continue
        answer = _carefully(table.path, line, names, cells)
        if isinstance(answer, str):
            found.skipped[answer] += 1
        else:
            append(make(line, row, answer))
    if not lines:
        raise UsageError(f"{table.path}: there is a header and not a single job under it")
    if "" in lines:
        raise blame(table.path, lines[""], f"{dialect.id} is empty; expected a name for the job")


def _carefully(
    path: str, line: int, names: tuple[str, str, str], cells: tuple[str, str, str]
) -> Numbers | str:
    """The numbers of an unusual row, or the reason to leave its job out."""
    submit, gpus, duration = cells
    if is_missing(submit):
        return NO_SUBMISSION
    submit_s = number(path, line, names[0], submit, expected=SECONDS)
    if abs(submit_s) > LATEST_S:
        most = f"{LATEST_S:g} at the most"
        raise blame(path, line, f"{names[0]} is {submit!r}; expected {SECONDS}, {most}")
    if is_missing(gpus) or not (count := whole(path, line, names[1], gpus, at_least=0)):
        return NO_GPUS
    if is_missing(duration):
        return NO_DURATION
    duration_s = number(path, line, names[2], duration, expected=f"{SECONDS}, 0 or more")
    if duration_s < 0:
        raise blame(path, line, f"{names[2]} is {duration!r}; expected {SECONDS}, 0 or more")
    if duration_s > LONGEST_S:
        most = f"{LONGEST_S:g} (32 years) at the most"
        raise blame(path, line, f"{names[2]} is {duration!r}; expected {SECONDS}, {most}")
    return (submit_s, count, duration_s) if duration_s else ZERO


def _maker(table: Table, dialect: Dialect) -> Make:
    place = table.columns[dialect.id]
    model_at, user_at = table.columns.get(dialect.model), table.columns.get(dialect.user)

    def make(line: int, row: list[str], numbers: Numbers) -> TraceJob:
        submit_s, gpus, duration_s = numbers
        return TraceJob(
            id=row[place],
            submit_s=submit_s,
            gpus=gpus,
            duration_s=duration_s,
            model="" if model_at is None else row[model_at],
            user="" if user_at is None else row[user_at],
        )

    return make


# -- Pollux ------------------------------------------------------------------------------------


def _collect_pollux(table: Table, found: Found, alone: Alone) -> None:
    place, gpus_at = table.columns["name"], table.columns["num_replicas"]
    model_at, batch_at = table.columns["application"], table.columns["batch_size"]
    guessed = 0

    def rows() -> Rows:
        nonlocal guessed
        for line, row in table.rows():
            duration = ""
            if not is_missing(row[gpus_at]) and (
                gpus := whole(table.path, line, "num_replicas", row[gpus_at], at_least=0)
            ):
                batch = whole(table.path, line, "batch_size", row[batch_at], at_least=1)
                seconds, exact = alone.seconds(table.path, line, row[model_at], batch, gpus)
                guessed += not exact
                duration = repr(seconds)
            yield line, [*row, duration]

    def make(line: int, row: list[str], numbers: Numbers) -> TraceJob:
        submit_s, gpus, duration_s = numbers
        return TraceJob(
            id=row[place],
            submit_s=submit_s,
            gpus=gpus,
            duration_s=duration_s,
            model=row[model_at],
            batch=int(float(row[batch_at])),
        )

    _collect(table, POLLUX, found, make, rows())
    found.notes.append(f"durations are those of {alone.path}")
    found.speeds = alone.path if alone.with_speeds else None
    if guessed:
        found.notes.append(
            f"jobs on a number of GPUs that was not measured: {guessed}; their durations come from "
            "the nearest numbers"
        )


# -- our own -----------------------------------------------------------------------------------


def _maker_of_own(table: Table) -> Make:
    cell, path = table.cell, table.path

    def count(line: int, row: list[str], name: str, default: int, least: int) -> int:
        text = cell(row, name)
        return default if is_missing(text) else whole(path, line, name, text, at_least=least)

    def make(line: int, row: list[str], numbers: Numbers) -> TraceJob:
        submit_s, gpus, duration_s = numbers
        least = count(line, row, "min_gpus", 1, 1)
        most = count(line, row, "max_gpus", 0, 0)
        if least > gpus:
            raise blame(path, line, f"min_gpus is {least}; expected {gpus} (gpus) or fewer")
        if 0 < most < gpus:
            raise blame(path, line, f"max_gpus is {most}; expected {gpus} (gpus) or more, or 0")
        elastic = cell(row, "elastic").strip().lower()
        if elastic not in ("", *YES, *NO):
            raise blame(path, line, f"elastic is {elastic!r}; expected true or false")
        return TraceJob(
            id=cell(row, "id"),
            submit_s=submit_s,
            gpus=gpus,
            duration_s=duration_s,
            model=cell(row, "model"),
            batch=count(line, row, "batch", 0, 0),
            min_gpus=least,
            max_gpus=most,
            elastic=elastic not in NO,
            user=cell(row, "user"),
        )

    return make
