"""How it stands with a job's checkpoints, in a file of the job's folder: checkpoint.json.

Whoever writes the job's checkpoints writes it, and whoever asks about the job reads it: `edl
status`, and the launcher, which makes events of it. Holds: what one worker knows of the last good
checkpoint outlives it, for the next one only adds to it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

__all__ = ["Noted", "note_failed", "note_resumed", "note_saved", "read_noted"]

_log = logging.getLogger("edl.checkpoint")

FILE = "checkpoint.json"
MOST_REASONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """All that is known. Times are seconds since 1970."""

    step: int | None = None  # of the last good one
    saved_at: float = 0.0
    error: str = ""  # why the last attempt failed; empty once one has succeeded
    failed_step: int = 0
    failing_since: int = 0  # the first step of those that failed in a row
    resumed: int | None = None  # the step that the job went on from
    resumed_by: str = ""  # the worker that read it
    passed_over: int = 0  # newer ones that could not be used
    passed_over_why: tuple[tuple[str, str], ...] = ()  # path and reason of each; of many, the first


def read_noted(folder: Path) -> Noted | None:
    """None as long as nothing is known."""
    try:
        fields = json.loads((folder / FILE).read_text())
        why = tuple((str(path), str(why)) for path, why in fields.get("passed_over_why", ()))
        return Noted(**{**fields, "passed_over_why": why})
    except (OSError, ValueError, TypeError):
        return None


def note_saved(folder: Path, step: int, at: float) -> None:
    _write(folder, replace(_known(folder), step=step, saved_at=at, error=""))


def note_failed(folder: Path, step: int, error: str) -> None:
    known = _known(folder)
    since = known.failing_since if known.error else step
    _write(folder, replace(known, error=error, failed_step=step, failing_since=since))


def note_resumed(
    folder: Path, step: int, at: float, worker: str, *, passed_over: Sequence[tuple[str, str]]
) -> None:
    """`passed_over`: path and reason of each newer one that could not be used."""
    known = replace(
        _known(folder),
        resumed=step,
        resumed_by=worker,
        passed_over=len(passed_over),
        passed_over_why=tuple(passed_over[:MOST_REASONS]),
    )
    _write(folder, replace(known, step=step, saved_at=at, error=""))


def _known(folder: Path) -> Noted:
    return read_noted(folder) or Noted()


def _write(folder: Path, noted: Noted) -> None:
    part = folder / f"{FILE}.part"
    try:
        part.write_text(json.dumps(asdict(noted), indent=2) + "\n")
        part.replace(folder / FILE)
    except OSError as error:
        # It is only told; the checkpoint itself lies elsewhere.
        _log.warning("checkpoint.note %s not written: %s", folder / FILE, error)
