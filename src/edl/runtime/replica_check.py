"""One worker's side of the check that all replicas are equal.

Owns: the digests that this worker puts into its next record, and the values behind them, which an
explanation needs. A digest is taken at the commit of a step, on the training thread: there all
workers are at the same place of the same script, and no update is under way. What follows from a
round of digests is decided in `protocol/divergence.py`.

The settings' digest goes into the very next record. A part of the state is digested at each
boundary, in turn, so that `steps` boundaries cover everything; its digest goes into the record
after the next one, so that a GPU has a whole step to compute it and nobody waits for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from edl.config import Settings
from edl.protocol.divergence import Divergence, Items, Subject, choose_resync, explain
from edl.runtime.digests import combined
from edl.runtime.framework import Framework, Group
from edl.types import WorkerId

__all__ = ["ReplicaCheck"]

# So much of a worker's values is exchanged to explain a divergence.
_MOST_BYTES = 1 << 18
# And so many of them are shown where the others could not be asked.
_SHOWN = 20

Sums = Callable[[], list[tuple[str, str]]]

_ADVICE = (
    "A new worker starts with the job's state, but not with the script's own variables: compute "
    "schedules from edl.step() instead of a counter of your own, and pass other objects that "
    "change during training to edl.register(obj), or to edl.register(obj, same=False) where their "
    "values may differ between workers. With --on-divergence warn the job goes on, with "
    "resync it also copies the state of {source} to the workers that differ"
)


class ReplicaCheck:
    """What this worker knows of its own replica."""

    def __init__(self, framework: Framework, settings: Settings) -> None:
        self._framework = framework
        policy = settings.on_divergence
        if settings.approximate_recovery and policy == "stop":
            # Replicas may differ after a failure, by the user's own choice.
            policy = "warn"
        # The same on all workers: a new one takes over what the job has (`shared`, `adopt`).
        self.steps = settings.digest_steps
        self.policy = policy
        # What was reported already. Changed with commits only, as the ledger is, so that all agree
        # on whether a divergence is explained once more.
        self.seen: set[Subject] = set()
        self.closed_step = -1  # everything was digested when a loop was closed after this step
        self._step = -1  # the boundary of `_settings`
        self._settings: Items = ()
        self._taken: Sums | None = None  # of the last boundary
        self._lagged: Sums | None = None  # of the one before it, or everything as of the last one
        self._state: Items = ()
        self._closing: tuple[int, Items, Items] | None = None

    # -- what all workers have in common ---------------------------------------------------

    def shared(self) -> dict[str, list[int | str]]:
        """For a new worker, beside the job's state."""
        return {"check": [self.steps, self.policy, *sorted(self.seen)]}

    def adopt(self, snapshot: Mapping[str, object]) -> None:
        """Check as the job does, whatever this worker's environment says."""
        found = snapshot.get("check")
        if isinstance(found, list):
            self.steps, self.policy = int(found[0]), str(found[1])
            self.seen = {Subject(name) for name in found[2:]}

    # -- digests ---------------------------------------------------------------------------

    def reset(self) -> None:
        """The state was replaced, or its history is another: what is known of it is void."""
        self._step, self._taken, self._lagged, self._closing = -1, None, None, None

    def boundary(self, step: int, *, everything: bool) -> None:
        """A step is committed here; `step` is how many are.

        `everything`: all workers digest all of their state now, since a checkpoint is taken.
        """
        if not self.steps:
            return
        self._step, self._settings = step, self._framework.settings()
        if everything:
            self._lagged = _now(self._framework.digests(0, 1))
        else:
            self._lagged = self._taken
        self._taken = self._framework.digests(step % self.steps, self.steps)

    def in_step(self, step: int) -> tuple[int, int]:
        """Digests of settings and state for the record of this step."""
        if not self.steps or self._step != step:
            return 0, 0
        self._state = self._lagged() if self._lagged is not None else ()
        return combined(self._settings), combined(self._state) if self._state else 0

    def leave_loop(self, step: int) -> None:
        """The script leaves its loop here; the closing round may come later."""
        if self.steps and (self._closing is None or self._closing[0] != step):
            everything = self._framework.digests(0, 1)()
            self._closing = step, self._framework.settings(), everything

    def at_end(self, step: int) -> tuple[int, int]:
        """Digests of everything, for the round that closes a loop, or ends the job."""
        if not self.steps:
            return 0, 0
        self.leave_loop(step)
        assert self._closing is not None
        _, self._settings, self._state = self._closing
        return combined(self._settings), combined(self._state) if self._state else 0

    # -- explaining ------------------------------------------------------------------------

    def explained(self, found: Divergence, workers: Sequence[WorkerId], group: Group) -> str:
        """What differs. Every member of the group calls this."""
        mine = self._settings if found.subject is Subject.SETTINGS else self._state
        texts = _all_texts(group, json.dumps(mine))
        items: dict[WorkerId, Items] = {
            worker: [(str(name), str(value)) for name, value in json.loads(text or "[]")]
            for worker, text in zip(workers, texts, strict=True)
        }
        return explain(found, items)

    def unexplained(self, found: Divergence) -> str:
        """The same where the others' values could not be had: with this worker's own."""
        mine = self._settings if found.subject is Subject.SETTINGS else self._state
        values = "; ".join(f"{name} = {value}" for name, value in mine[:_SHOWN])
        return f"{explain(found, {})}; this worker has {values or 'none'}"

    @staticmethod
    def advice(diverged: Sequence[Divergence]) -> str:
        """What to do about it."""
        return _ADVICE.format(source=choose_resync(diverged).source)


def _now(sums: Sums) -> Sums:
    found = sums()
    return lambda: found


def _all_texts(group: Group, text: str) -> list[str]:
    """Everybody's text, in rank order; a text that is too long counts as none."""
    row = text.encode()
    row = row if len(row) <= _MOST_BYTES else b""
    lengths = [length for (length,) in group.exchange([len(row)]).result()]
    words = -(-max(lengths) // 8)
    if not words:
        return [""] * len(lengths)
    padded = row.ljust(words * 8, b"\0")
    values = [
        int.from_bytes(padded[at : at + 8], "little", signed=True)
        for at in range(0, len(padded), 8)
    ]
    rows = group.exchange(values).result()
    return [
        b"".join(value.to_bytes(8, "little", signed=True) for value in its)[:length].decode()
        for its, length in zip(rows, lengths, strict=True)
    ]
