"""What every policy is: a pure function from a view of the cluster to decisions.

`decide` is asked at every arrival and completion, and at the time that `wake` named. A policy may
keep an index between calls, built from `View.news`; `Policy.forget` drops it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from edl.policy.decisions import Decision
from edl.policy.view import View

__all__ = ["Policy"]


class Policy(ABC):
    """Sizes, weights and the like are arguments of the constructor; there is no other state."""

    name: str
    places = False  # whether its decisions say on which machines by themselves
    resizes = False  # whether a job that was started with fewer GPUs may get the others later
    in_order = False  # whether nobody may pass one that cannot be placed

    @abstractmethod
    def decide(self, view: View) -> list[Decision]:
        """What to change now. Asked again in an unchanged view, it soon changes nothing more."""

    def wake(self, view: View) -> float | None:
        """When to be asked again if nothing else happens; None: no need. After `decide`."""
        return None

    def forget(self) -> None:
        """Drop what was kept between calls; the next decision is made from the view alone."""
        return
