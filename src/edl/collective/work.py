"""Operations of a group that are under way, and how to wait for them.

Owns: nothing; the group tells its operations through `Fate` when it is broken. Holds: nobody waits
in a broken group for ever.
"""

from __future__ import annotations

import re
import threading
from datetime import timedelta
from typing import Any

from edl.errors import GroupBroken

__all__ = ["Fate", "Move", "Rows", "Work", "reason_of"]

# How long a wait lasts before it looks up.
GLANCE = timedelta(seconds=0.2)


# Where in Gloo's source an error was raised, as it puts before its text.
_PLACE = re.compile(r"\[[^\[\]]*\.(?:cc|cpp|h):\d+\]:?\s*")
_REASON_CHARS = 100


def reason_of(error: Exception) -> str:
    """What Gloo says, for events and logs: its first sentence, in plain characters."""
    text = _PLACE.sub("", str(error)).strip()
    sentence = re.split(r"\.\s|\n|!", text, maxsplit=1)[0]
    plain = "".join(each for each in sentence if " " <= each <= "~").strip()
    return plain[:_REASON_CHARS] or "no reason given"


class Fate:
    """What became of a group, as its operations see it."""

    __slots__ = ("broken", "stuck")

    def __init__(self) -> None:
        self.broken = ""
        self.stuck = False  # one of its operations never ended


class Work:
    """One operation under way. The tensors stay referenced until it is over.

    Breaking a group's connections ends its operations, but not every one: if a peer asked for data
    and the connection broke as it was being written, Gloo forgets that operation, and whoever waits
    for it waits for ever. So a wait looks up now and then, and gives up in a group that is broken.
    """

    __slots__ = ("_fate", "_kept", "_work")

    def __init__(self, fate: Fate, work: Any, kept: Any) -> None:
        self._fate = fate
        self._work = work
        self._kept = kept

    def wait(self) -> None:
        while not self._over():
            if self._fate.broken:
                self._fate.stuck = True
                raise GroupBroken(self._fate.broken)

    def _over(self) -> bool:
        """Whether it ended, looking for a moment; GroupBroken if it failed."""
        try:
            self._work.wait(GLANCE)
        except RuntimeError as error:
            if not self._work.is_completed():
                return False
            self._end(error)
        return True

    def _end(self, seen: RuntimeError) -> None:
        """It is complete: in the last instant, perhaps, or it failed."""
        try:
            self._work.wait()
        except RuntimeError as error:
            raise GroupBroken(f"a collective failed: {reason_of(error)}") from seen


class Move(Work):
    """A message between two members. Gloo ends one that is waited for in vain; a thread waits."""

    __slots__ = ("_done", "_errors")

    def __init__(self, fate: Fate, work: Any, kept: Any) -> None:
        super().__init__(fate, work, kept)
        self._done = threading.Event()
        self._errors: list[RuntimeError] = []
        threading.Thread(target=self._stand_by, name="edl-move", daemon=True).start()

    def _stand_by(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._errors.append(error)
        self._done.set()

    def _over(self) -> bool:
        if not self._done.wait(GLANCE.total_seconds()):
            return False
        if self._errors:
            raise GroupBroken(
                f"a collective failed: {reason_of(self._errors[0])}"
            ) from self._errors[0]
        return True


class Rows(Work):
    """An all-gather of integers under way."""

    def result(self) -> list[list[int]]:
        self.wait()
        return [row.tolist() for row in self._kept]

    def ready(self) -> bool:
        return bool(self._work.is_completed())
