"""Judge a job's committed logs: was each sample of each epoch used exactly once?

Owns: how the logs of several workers become one history, and the verdict on it. A step counts in
the latest generation in which anybody committed it; what an earlier one had done from that step on
is void. Holds: nothing here asks the ledger: ranges are laid side by side and counted, so that a
mistake of the ledger's would show.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from edl.errors import UsageError
from edl.protocol.permutation import Permutation
from edl.runtime.audit import AUDIT
from edl.runtime.auditlog import Entry, Kind, Torn, entries

__all__ = ["Audit", "EpochAudit", "audit_folder"]

# Shorter stretches are read faster than they are looked up.
_STRETCH = 64

# What a step used: (start, length) in one line of samples; partitions lie one after another.
_Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class EpochAudit:
    """One epoch. `state` is complete, left early by the script, running, or unfinished if the job
    has ended in it."""

    epoch: int
    state: str
    steps: int
    samples: int
    used: int
    twice: int
    never: int
    earlier: int  # used before the job's log begins: it went on from a checkpoint
    unused: int  # what the epoch had left when the script, or the job, ended it; 0 while it runs
    fault: str


@dataclass(frozen=True, slots=True)
class Audit:
    """The verdict on a job's data. `fault` names the first sample that is wrong; empty: none."""

    epochs: tuple[EpochAudit, ...]
    steps: int
    logs: tuple[str, ...]
    torn: tuple[str, ...]
    fault: str

    @property
    def exact(self) -> bool:
        """No sample was used twice, and none was passed over."""
        return not self.fault

    @property
    def unused(self) -> int:
        """How many samples were left when epochs ended early."""
        return sum(epoch.unused for epoch in self.epochs)


@dataclass(slots=True)
class _Step:
    place: tuple[int, int]  # run and generation
    epoch: int
    ranges: _Ranges
    log: str


@dataclass(slots=True)
class _History:
    """What all logs together tell."""

    data: dict[str, Any] = field(default_factory=dict)
    partitions: list[tuple[str, int, int]] = field(default_factory=list)  # of shards only
    starts: list[int] = field(default_factory=list)  # where each of them begins
    steps: dict[int, _Step] = field(default_factory=dict)
    places: dict[tuple[int, int], int] = field(default_factory=dict)  # the first step of each
    ends: dict[int, int] = field(default_factory=dict)  # epoch: how many samples were left
    earlier: dict[int, tuple[int, int]] = field(default_factory=dict)  # epoch: step, used before
    torn: list[str] = field(default_factory=list)
    fault: str = ""


class _Here(NamedTuple):
    """Where a log is: what the next entry will be about."""

    place: tuple[int, int]  # run and generation
    step: int
    epoch: int
    position: int


class _Told:
    """Stretches of logs that were read, each from a PLACE on. Workers of a generation write the
    same, so of the logs of a thousand workers all but one are mostly passed over."""

    def __init__(self) -> None:
        self._known: dict[bytes, list[tuple[bytes, _Here]]] = {}

    def add(self, stretch: bytes, after: _Here) -> None:
        if len(stretch) > _STRETCH:
            self._known.setdefault(stretch[:_STRETCH], []).append((stretch, after))

    def find(self, content: bytes, at: int) -> tuple[int, _Here] | None:
        """The longest one that lies at this place: its length, and where a log is after it."""
        found = [
            (len(stretch), after)
            for stretch, after in self._known.get(content[at : at + _STRETCH], ())
            if content.startswith(stretch, at)
        ]
        return max(found, default=None)


def audit_folder(folder: Path, *, steps: int = 0, ended: bool = False) -> Audit:
    """The verdict on the job whose folder this is; UsageError if it kept no log.

    `steps`: how many it did, if that is known from elsewhere. `ended`: it does no more.
    """
    paths = sorted((folder / AUDIT).glob("*.log"))
    if not paths:
        raise UsageError(
            f"no audit log in {folder / AUDIT}: the job was started with --no-audit, or "
            + ("never finished a step" if ended else "has not finished a step yet")
        )
    history, told = _History(), _Told()
    # The shorter ones first: what they tell is then found at the longer ones' beginning.
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        _read(path, history, told)
    _drop_void(history)
    epochs = tuple(_judge(history))
    if ended and epochs and epochs[-1].state == "running":
        last_epoch = epochs[-1]
        unused = max(0, last_epoch.samples - last_epoch.used - last_epoch.earlier)
        epochs = (*epochs[:-1], replace(last_epoch, state="unfinished", unused=unused))
    last = max(history.steps, default=-1) + 1
    silent = f"no log tells of step {last}, but the job did {steps} steps" if last < steps else ""
    faults = [history.fault, *(epoch.fault for epoch in epochs), silent]
    return Audit(
        epochs=epochs,
        steps=len(history.steps),
        logs=tuple(path.stem for path in paths),
        torn=tuple(history.torn),
        fault=next((fault for fault in faults if fault), ""),
    )


def _read(path: Path, history: _History, told: _Told) -> None:
    content = path.read_bytes()
    here = _Here((0, 0), 0, 0, 0)
    began = end = 0  # of the stretch since the last PLACE
    coming = entries(content)
    try:
        while (entry := next(coming, None)) is not None:
            if entry.kind is Kind.OPEN or entry.kind is Kind.PLACE:
                told.add(content[began:end], here)
                began = end = entry.began
            if entry.kind is Kind.OPEN:
                _open(path, entry.data or {}, history)
                continue
            here, end = _took(entry, here, history, path.stem), entry.ended
            known = told.find(content, began) if entry.kind is Kind.PLACE else None
            if known is not None:
                # Another log has told all of this, to the byte.
                end, here = began + known[0], known[1]
                coming = entries(content, end)
    except Torn as torn:
        history.torn.append(f"{path.name}: {torn}")
    except (IndexError, KeyError) as error:
        history.torn.append(f"{path.name}: it names what its head does not have ({error})")
    finally:
        told.add(content[began:end], here)


def _took(entry: Entry, here: _Here, history: _History, log: str) -> _Here:
    """Where the log is after this entry."""
    values = entry.values
    place, step, epoch, position = here
    if entry.kind is Kind.PLACE:
        place, step, epoch, position = (values[0], values[1]), *values[2:5]
        history.places[place] = min(step, history.places.get(place, step))
        known = history.earlier.get(epoch)
        if known is None or step < known[0]:
            history.earlier[epoch] = (step, position)
        return _Here(place, step, epoch, position)
    if entry.kind is Kind.EPOCH:
        history.ends[epoch] = values[0]
        return _Here(place, step, epoch + 1, 0)
    ranges: _Ranges
    if entry.kind is Kind.RANGE:
        ranges = ((position, values[0]),)
        position += values[0]
    else:
        ranges = tuple(_flat(values, history.starts))
    _add(history, step, _Step(place, epoch, ranges, log))
    return _Here(place, step + 1, epoch, position)


def _open(path: Path, head: dict[str, Any], history: _History) -> None:
    data = head["data"]
    absent = {"kind", "samples", *(["table"] if data["kind"] == "shards" else [])} - set(data)
    if absent:
        raise KeyError(min(absent))
    if history.data and history.data != data:
        history.fault = f"{path.name} is about other data than the other logs: {data}"
    if not history.data and data["kind"] == "shards":
        table = path.parent / f"{data['table']}.json.gz"
        try:
            with gzip.open(table, "rt", encoding="utf-8") as text:
                rows = json.load(text)
            history.partitions = [(str(name), int(at), int(length)) for name, at, length in rows]
        except (OSError, EOFError, ValueError, TypeError) as error:
            raise UsageError(
                f"{table} cannot be read ({error}); without the list of partitions nothing can be "
                "said of their samples"
            ) from error
        lengths = (length for _, _, length in history.partitions)
        history.starts = list(accumulate(lengths, initial=0))[:-1]
    history.data = history.data or data


def _flat(values: Sequence[int], starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    for at in range(0, len(values), 3):
        partition, offset, length = values[at : at + 3]
        yield starts[partition] + offset, length


def _add(history: _History, number: int, step: _Step) -> None:
    known = history.steps.get(number)
    if known is None or known.place < step.place:
        history.steps[number] = step
    elif known.place == step.place and (known.epoch, known.ranges) != (step.epoch, step.ranges):
        history.fault = history.fault or (
            f"the logs of {known.log} and {step.log} tell different samples of step {number} in "
            f"generation {step.place[1]}"
        )


def _drop_void(history: _History) -> None:
    """A later generation began anew at its first step, whatever earlier ones had done there."""
    firsts = sorted(history.places.items(), reverse=True)
    limit: int | None = None
    bounds: dict[tuple[int, int], int | None] = {}
    for place, first in firsts:
        bounds[place] = limit
        limit = first if limit is None else min(limit, first)
    for number, step in list(history.steps.items()):
        bound = bounds[step.place]
        if bound is not None and number >= bound:
            del history.steps[number]


def _judge(history: _History) -> Iterator[EpochAudit]:
    numbers = sorted(history.steps)
    gap = next((a for a, b in pairwise(numbers) if b != a + 1), None)
    if gap is not None:
        history.fault = history.fault or f"no log tells of step {gap + 1}"
    by_epoch: dict[int, list[tuple[int, _Ranges]]] = {}
    for number in numbers:
        step = history.steps[number]
        by_epoch.setdefault(step.epoch, []).append((number, step.ranges))
    last = max(by_epoch, default=0)
    for epoch, steps in sorted(by_epoch.items()):
        first = history.earlier.get(epoch, (0, 0))
        earlier = first[1] if first[0] == steps[0][0] else 0
        over = epoch in history.ends or epoch < last
        yield _judge_epoch(history, epoch, steps, earlier=earlier, over=over)


def _judge_epoch(
    history: _History,
    epoch: int,
    steps: list[tuple[int, _Ranges]],
    *,
    earlier: int,
    over: bool,
) -> EpochAudit:
    total = history.data.get("usable", history.data["samples"])
    laid = sorted((start, length, number) for number, ranges in steps for start, length in ranges)
    at, used, twice, fault = 0, 0, 0, ""
    holes: list[int] = []  # where each begins, and how long it is, by turns
    for start, length, number in laid:
        if start > at:
            holes += (at, start - at)
        elif start < at:
            twice += min(at, start + length) - start
            fault = (
                fault or f"{_name(history, epoch, start)} was used twice, again in step {number}"
            )
        if start + length > total:
            fault = fault or f"{_name(history, epoch, total)} is no sample of this epoch"
        used += length
        at = max(at, start + length)
    if at < total:
        holes += (at, total - at)
    missing = sum(holes[1::2])
    left = history.ends.get(epoch, 0)
    allowed = earlier + left
    never = max(0, missing - allowed) if over else 0
    if never and not fault:
        fault = f"{_name(history, epoch, _hole(holes, allowed))} was never used"
    state = "running" if not over else ("left early" if left else "complete")
    return EpochAudit(epoch, state, len(steps), total, used, twice, never, earlier, left, fault)


def _hole(holes: Sequence[int], allowed: int) -> int:
    """Where the first hole is that nothing explains; what was used before the log came first."""
    for at in range(0, len(holes), 2):
        begin, length = holes[at], holes[at + 1]
        if allowed < length:
            return begin + allowed
        allowed -= length
    raise AssertionError("there is a hole that nothing explains")


def _name(history: _History, epoch: int, position: int) -> str:
    """What a person would call the sample at this place."""
    data = history.data
    if data["kind"] == "shards" and position < data["samples"]:
        which = bisect_right(history.starts, position) - 1
        path, offset, length = history.partitions[which]
        sample = offset + position - history.starts[which]
        return f"sample {sample} of {path or f'partition {which}'} ({length} from {offset} on)"
    if position >= data["samples"] or data["kind"] == "shards":
        return f"position {position}"
    shuffled = Permutation(data["samples"], seed=data["seed"], epoch=epoch)
    index = shuffled[position] if data["shuffle"] else position
    return f"sample {index} of epoch {epoch + 1} (position {position})"
