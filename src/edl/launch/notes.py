"""What a script that failed left about it, beside its traceback: failures/WORKER.json.

Written by `boot.py` in the worker's process, read by the launcher: whether the same would happen
again is judged by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from edl.launch.jobs import JobFolder

__all__ = ["Note", "read_note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Two that are equal are one failure seen twice."""

    kind: str  # the exception's class
    message: str
    step: int | None  # steps done when it failed; None: training had not begun there
    own: bool  # the script's own fault, not that of a peer that went away


def read_note(folder: JobFolder, worker: str) -> Note | None:
    """None where the process left none: a signal does not wait for one to be written."""
    try:
        fields = json.loads(folder.note_file(worker).read_text())
        step = fields["step"]
        return Note(
            kind=str(fields["kind"]),
            message=str(fields["message"]),
            step=None if step is None else int(step),
            own=bool(fields["own"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
