"""Tables of speed: what `edl profile` measured, fitted step times, and measured throughputs.

They say how fast a job of a model goes on p GPUs; traces say which jobs there are. Owns the columns
of these files. Holds: every number that leaves here is finite and in range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from dataclasses import dataclass
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.trace_file import Table, blame, is_missing, number, read_table, whole
from edl.types import workers_said

__all__ = [
    "ModelRow",
    "Origin",
    "Speeds",
    "read_models",
    "read_origins",
    "read_profile",
    "read_speeds",
]

Speeds = dict[tuple[str, int], dict[tuple[int, int], float]]
COEFFICIENTS = ("a", "b", "c", "d", "e")
MODEL_COLUMNS = ("model", *COEFFICIENTS, "min_batch", "max_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """Seconds of a step at the aggregate batch B on p GPUs:

    a + b * B / p + c * [p > 1] + d * log2(p) + e * log2(machines)
    """

    a: float
    b: float
    c: float
    d: float
    e: float
    min_batch: int  # the smallest and the largest aggregate batch that were measured
    max_batch: int
    batch_per_gpu: int  # of a job that says nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who measured, and on what; both are empty where the table does not say."""

    source: str
    gpu: str
    models: tuple[str, ...]
    rows: int
    each: float  # numbers of GPUs for each model and batch

    @property
    def name(self) -> str:
        return " on ".join(part for part in (self.source, self.gpu) if part)


def read_profile(path: str | Path) -> dict[int, float]:
    """The table of `edl profile --csv`: workers -> samples a second of the whole job."""
    table = read_table(path)
    table.need(("workers", "throughput"), "a table of `edl profile --csv`")
    found: dict[int, float] = {}
    for line, row in table.rows():
        workers = _whole(table, line, row, "workers")
        if workers in found:
            twice = f"a row for {workers_said(workers)} is there twice; keep one"
            raise blame(table.path, line, twice)
        found[workers] = _positive(table, line, row, "throughput")
    _refuse_none(table, found)
    return dict(sorted(found.items()))


def read_models(path: str | Path) -> dict[str, ModelRow]:
    """Fitted step times, by model. Without a column `batch_per_gpu` it is `min_batch`, which was
    measured on one GPU too."""
    table = read_table(path)
    table.need(MODEL_COLUMNS, "a table of step times")
    found: dict[str, ModelRow] = {}
    for line, row in table.rows():
        model = _name(table, line, row, "model")
        if model in found:
            raise blame(table.path, line, f"model {model!r} is there twice; keep one row")
        a, b, c, d, e = (_at_least_0(table, line, row, name) for name in COEFFICIENTS)
        if a + b == 0:
            raise blame(table.path, line, f"a and b of {model!r} are 0; a step takes some time")
        least, most = _whole(table, line, row, "min_batch"), _whole(table, line, row, "max_batch")
        if most < least:
            raise blame(
                table.path, line, f"max_batch is {most}; expected {least} (min_batch) or more"
            )
        said = not is_missing(table.cell(row, "batch_per_gpu"))
        batch = _whole(table, line, row, "batch_per_gpu") if said else least
        found[model] = ModelRow(
            a=a, b=b, c=c, d=d, e=e, min_batch=least, max_batch=most, batch_per_gpu=batch
        )
    _refuse_none(table, found)
    return found


def read_speeds(path: str | Path, *, source: str | None = None, gpu: str | None = None) -> Speeds:
    """Measured samples a second: (model, batch) -> (GPUs, nodes) -> speed.

    The model's column is `application` or `model`, the batch's `batch_size` or `batch`; 0 is a
    batch that the file does not say. `source` and `gpu` take the rows that have these in the
    columns of that name. Rows that differ only in how GPUs lie on their nodes are averaged, and
    those without a number of nodes left out.
    """
    table = read_table(path)
    model, batch = _speed_columns(table)
    measured: dict[tuple[str, int], dict[tuple[int, int], list[float]]] = {}
    origins: dict[tuple[str, int, int, int], tuple[str, str]] = {}
    for line, row in table.rows():
        origin = table.cell(row, "source"), table.cell(row, "gpu")
        if (source or origin[0], gpu or origin[1]) != origin:
            continue
        if is_missing(table.cell(row, "num_nodes")):
            continue
        name = _name(table, line, row, model)
        size = 0 if is_missing(table.cell(row, batch)) else _whole(table, line, row, batch)
        gpus, nodes = _whole(table, line, row, "num_gpus"), _whole(table, line, row, "num_nodes")
        if origins.setdefault((name, size, gpus, nodes), origin) != origin:
            raise blame(
                table.path,
                line,
                f"{name} with batch {size} on {gpus} GPUs was measured on {origin[1]} by "
                f"{origin[0]} and elsewhere too; choose one by source= or gpu=",
            )
        speed = _positive(table, line, row, "samples_per_sec")
        measured.setdefault((name, size), {}).setdefault((gpus, nodes), []).append(speed)
    _refuse_none(table, measured)
    return {
        key: {place: sum(speeds) / len(speeds) for place, speeds in places.items()}
        for key, places in measured.items()
    }


def read_origins(path: str | Path) -> list[Origin]:
    """Whose rows a table of speeds has, in the order in which they come."""
    table = read_table(path)
    model, batch = _speed_columns(table)
    curves: dict[tuple[str, str], dict[tuple[str, str], set[str]]] = {}
    rows: Counter[tuple[str, str]] = Counter()
    for line, row in table.rows():
        if is_missing(table.cell(row, "num_nodes")):
            continue
        origin = table.cell(row, "source"), table.cell(row, "gpu")
        rows[origin] += 1
        key = _name(table, line, row, model), table.cell(row, batch)
        found = curves.setdefault(origin, {}).setdefault(key, set())
        found.add(table.cell(row, "num_gpus"))
    _refuse_none(table, curves)
    return [
        Origin(
            source=origin[0],
            gpu=origin[1],
            models=tuple(sorted({name for name, _ in found})),
            rows=rows[origin],
            each=sum(map(len, found.values())) / len(found),
        )
        for origin, found in curves.items()
    ]


def _speed_columns(table: Table) -> tuple[str, str]:
    """Of the model and of the batch."""
    model = "application" if "application" in table.columns else "model"
    batch = "batch_size" if "batch_size" in table.columns else "batch"
    table.need((model, batch, "num_gpus", "num_nodes", "samples_per_sec"), "a table of speeds")
    return model, batch


def _name(table: Table, line: int, row: list[str], name: str) -> str:
    text = table.cell(row, name).strip()
    if not text:
        raise blame(table.path, line, f"{name} is empty; expected a name")
    return text


def _whole(table: Table, line: int, row: list[str], name: str) -> int:
    return whole(table.path, line, name, table.cell(row, name), at_least=1)


def _at_least_0(table: Table, line: int, row: list[str], name: str) -> float:
    text, expected = table.cell(row, name), "a number, 0 or more"
    value = number(table.path, line, name, text, expected=expected)
    if value < 0:
        raise blame(table.path, line, f"{name} is {text!r}; expected {expected}")
    return value


def _positive(table: Table, line: int, row: list[str], name: str) -> float:
    value = _at_least_0(table, line, row, name)
    if value == 0:
        raise blame(table.path, line, f"{name} is 0; expected a number above 0")
    return value


def _refuse_none(table: Table, found: Sized) -> None:
    if not found:
        raise UsageError(f"{table.path}: no row is left under its header; expected at least one")
