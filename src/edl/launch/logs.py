"""Reading files that others still write: workers' logs and a job's events.

Owns: how far each file was read. Holds: no byte is read twice, and a character that was cut in two
by a write is put together again.
"""

from __future__ import annotations

import codecs
from pathlib import Path

__all__ = ["Tail"]

CHUNK_BYTES = 256 * 1024


class Tail:
    """One growing file; it need not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line = ""

    def text(self) -> str:
        """What was written since the last call, at most one chunk."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read(CHUNK_BYTES)
        except FileNotFoundError:
            return ""
        self._offset += len(data)
        return self._decoder.decode(data)

    def lines(self, *, rest: bool = False) -> list[str]:
        """The lines that are complete by now; `rest`: also one that nobody will complete."""
        found: list[str] = []
        while text := self.text():
            *whole, self._line = (self._line + text).split("\n")
            found += whole
        if rest and self._line:
            found.append(self._line)
            self._line = ""
        return found
