"""Whether the replicas of a job are still equal, by the digests in a round of step records.

Every worker puts two digests into its records: of its hyperparameters and small registered state
(`settings_digest`), and of a part of its parameters and optimizer state (`state_digest`). Owns: how
digests are compared, which workers count as the ones that differ, and the text that says so. Holds:
everything here is a function of what all workers have seen, so all draw the same conclusion at the
same step. A digest of 0 means "not known here" and is never compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edl.protocol.record import Kind, StepRecord
from edl.types import WorkerId

__all__ = [
    "Difference",
    "Divergence",
    "Items",
    "Resync",
    "Subject",
    "choose_resync",
    "differences",
    "explain",
    "find_divergence",
]

# Rounds in which digests are compared; the others carry none.
_COMPARED = (Kind.STEP, Kind.CLOSE, Kind.END, Kind.CHECK)
# How many differences an explanation lists.
_LISTED = 4

# One worker's values behind a digest: name and value, both as text.
Items = Sequence[tuple[str, str]]


class Subject(StrEnum):
    """What a digest is of."""

    SETTINGS = "settings"
    """Hyperparameters and small registered state."""
    STATE = "state"
    """Parameters and optimizer state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Replicas differ in a round. `reference` is the worker whose replica counts as right.

    `agreeing` and `differing` have every worker whose digest is known, in rank order.
    """

    subject: Subject
    step: int
    reference: WorkerId
    differing: tuple[WorkerId, ...]
    agreeing: tuple[WorkerId, ...] = ()  # with the reference, which is one of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Resync:
    """Who sends its whole replica to whom, so that all are equal again."""

    source: WorkerId
    targets: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One named value of one worker, and what the reference has under that name."""

    worker: WorkerId
    name: str
    value: str  # empty: this worker has none of that name
    expected: str  # empty: the reference has none of that name


def find_divergence(records: Mapping[WorkerId, StepRecord]) -> tuple[Divergence, ...]:
    """What differs in this round; `records` in rank order."""
    if not any(record.settings_digest or record.state_digest for record in records.values()):
        return ()
    found = []
    for subject in Subject:
        digests = {
            worker: getattr(record, f"{subject}_digest")
            for worker, record in records.items()
            if record.kind in _COMPARED
        }
        # One worker may be at its loop's end while another begins a step: not the same digests.
        kinds = {worker: records[worker].kind for worker in digests}
        most = max(kinds.values(), default=0)
        known = {w: d for w, d in digests.items() if d and kinds[w] == most}
        if len(set(known.values())) > 1:
            step = max(record.step for record in records.values())
            found.append(_divergence(subject, step, known))
    return tuple(found)


def _divergence(subject: Subject, step: int, known: Mapping[WorkerId, int]) -> Divergence:
    """The majority is right; without one, the lowest rank."""
    digest, count = Counter(known.values()).most_common(1)[0]
    if count * 2 <= len(known):
        digest = next(iter(known.values()))
    reference = next(worker for worker, its in known.items() if its == digest)
    differing = tuple(worker for worker, its in known.items() if its != digest)
    agreeing = tuple(worker for worker, its in known.items() if its == digest)
    return Divergence(
        subject=subject, step=step, reference=reference, differing=differing, agreeing=agreeing
    )


def choose_resync(diverged: Sequence[Divergence]) -> Resync:
    """One source for everything that differs, since a replica is sent as a whole.

    The source is right in every subject, and a reference if one of them is. Where nobody is right
    in every subject, the source is the reference of the state: the script sets hyperparameters
    again, but nobody else has those parameters. All who differ from the source are targets.
    """
    candidates = [found.reference for found in diverged]
    candidates += [worker for found in diverged for worker in found.agreeing]
    right = [w for w in candidates if all(w in found.agreeing for found in diverged)]
    most_lasting = max(diverged, key=lambda found: found.subject is Subject.STATE)
    source = right[0] if right else most_lasting.reference
    targets: list[WorkerId] = []
    for found in diverged:
        targets += found.differing
        if source not in found.agreeing:
            targets += found.agreeing
    others = tuple(dict.fromkeys(worker for worker in targets if worker != source))
    return Resync(source=source, targets=others)


def differences(found: Divergence, items: Mapping[WorkerId, Items]) -> list[Difference]:
    """Which values differ; empty where the workers' values are not known."""
    expected = dict(items.get(found.reference, ()))
    result = []
    for worker in found.differing:
        mine = dict(items.get(worker, ()))
        if not mine or not expected:
            continue
        names = [*expected, *(name for name in mine if name not in expected)]
        result += [
            Difference(
                worker=worker,
                name=name,
                value=mine.get(name, ""),
                expected=expected.get(name, ""),
            )
            for name in names
            if mine.get(name) != expected.get(name)
        ]
    return result


def explain(found: Divergence, items: Mapping[WorkerId, Items]) -> str:
    """One sentence: which workers differ from which one, and in what."""
    what = differences(found, items)
    who = ", ".join(found.differing)
    verb = "differ" if len(found.differing) > 1 else "differs"
    text = f"replicas diverged at step {found.step}: {who} {verb} from {found.reference} in "
    if not what:
        general = {
            Subject.SETTINGS: "hyperparameters or registered objects",
            Subject.STATE: "parameters or optimizer state",
        }
        return text + general[found.subject]
    if found.subject is Subject.STATE:
        names = list(dict.fromkeys(each.name for each in what))
        return text + _list(names)
    return text + _list(
        [
            f"{each.name} ({each.value or 'none'} on {each.worker}, "
            f"{each.expected or 'none'} on {found.reference})"
            for each in what
        ]
    )


def _list(texts: Sequence[str]) -> str:
    rest = len(texts) - _LISTED
    return "; ".join(texts[:_LISTED]) + (f"; and {rest} more" if rest > 0 else "")
