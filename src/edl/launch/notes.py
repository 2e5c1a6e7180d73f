"""What a script that failed left about it, beside its traceback: failures/WORKER.json.

Written by `boot.py` in the worker's process, read by the launcher: whether the same would happen
again is judged by it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from edl.launch.jobs import JobFolder

__all__ = ["Note", "read_note"]

# Epoch, partition, offset and length.
Piece = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Two that are equal are one failure seen twice."""

    kind: str  # the exception's class
    message: str
    step: int | None  # steps done when it failed; None: training had not begun there
    own: bool  # the script's own fault, not that of a peer that went away
    # Of the batch in hand; another worker may come to the same samples in another step.
    pieces: tuple[Piece, ...] = field(default=(), compare=False)

    @property
    def diverged(self) -> bool:
        """Every worker has stopped, or will, since replicas differ."""
        return self.kind == "Diverged"

    @property
    def headline(self) -> str:
        """What happened, without what to do about it."""
        return self.message.partition("\n")[0]

    def same_batch(self, other: Note) -> bool:
        """Whether both failed in one step, or with some of the same samples."""
        if self.step is None or other.step is None:
            return False
        if not (self.step or other.step or self.pieces or other.pieces):
            return False  # neither had a batch yet
        return self.step == other.step or any(
            _overlap(mine, its) for mine in self.pieces for its in other.pieces
        )


def read_note(folder: JobFolder, worker: str) -> Note | None:
    """None where the process left none: a signal does not wait for one to be written."""
    try:
        fields = json.loads(folder.note_file(worker).read_text(encoding="utf-8"))
        step = fields["step"]
        return Note(
            kind=str(fields["kind"]),
            message=str(fields["message"]),
            step=None if step is None else int(step),
            own=bool(fields["own"]),
            pieces=tuple((int(e), int(p), int(o), int(n)) for e, p, o, n in fields["pieces"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _overlap(one: Piece, other: Piece) -> bool:
    return one[:2] == other[:2] and max(one[2], other[2]) < min(
        one[2] + one[3], other[2] + other[3]
    )
