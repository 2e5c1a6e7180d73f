"""A policy that is asked at fixed times only, as schedulers are whose adjustments cost much.

What happens between two rounds waits for the next one: a job that arrives, GPUs that become free.
"""

from __future__ import annotations

from math import floor

from edl.policy.base import Policy
from edl.policy.decisions import Decision
from edl.policy.view import View

__all__ = ["Rounds"]

SLACK_S = 1e-6


class Rounds(Policy):
    """`inner` decides at every multiple of `round_s`."""

    def __init__(self, inner: Policy, round_s: float) -> None:
        self.inner = inner
        self.round_s = round_s
        self.name = inner.name

    def forget(self) -> None:
        self.inner.forget()

    def decide(self, view: View) -> list[Decision]:
        late = view.now - self.round_s * floor((view.now + SLACK_S) / self.round_s)
        return self.inner.decide(view) if late <= SLACK_S else []

    def wake(self, view: View) -> float | None:
        return self.round_s * (floor((view.now + SLACK_S) / self.round_s) + 1)
