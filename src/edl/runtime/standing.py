"""How it stands with a job's checkpoints, in a file of the job's folder: checkpoint.json.

Whoever writes the job's checkpoints writes it, and whoever asks about the job reads it: `edl
status`, and the launcher, which makes events of it. Holds: what one worker knows of the last good
checkpoint outlives it, for the next one only adds to it.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path

__all__ = ["Noted", "note_failed", "note_resumed", "note_saved", "read_noted"]

_log = logging.getLogger("edl.checkpoint")

FILE = "checkpoint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """All that is known. Times are seconds since 1970."""

    step: int | None = None  # of the last good one
    saved_at: float = 0.0
    error: str = ""  # why the last attempt failed; empty once one has succeeded
    failed_step: int = 0
    resumed: int | None = None  # the step that the job went on from
    resumed_by: str = ""  # the worker that read it


def read_noted(folder: Path) -> Noted | None:
    """None as long as nothing is known."""
    try:
        return Noted(**json.loads((folder / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def note_saved(folder: Path, step: int, at: float) -> None:
    _write(folder, replace(_known(folder), step=step, saved_at=at, error=""))


def note_failed(folder: Path, step: int, error: str) -> None:
    _write(folder, replace(_known(folder), error=error, failed_step=step))


def note_resumed(folder: Path, step: int, at: float, worker: str) -> None:
    known = replace(_known(folder), resumed=step, resumed_by=worker)
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
