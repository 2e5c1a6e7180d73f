"""The cluster as a policy sees it: machines, and every job that is not over.

The book owns these values and changes them; a policy only reads. `View.news` names the jobs that
changed since the policy was last asked, so that a policy may keep an index of its own and bring
it up to date instead of reading thousands of jobs at every event. Such an index is a shortcut and
no memory: a policy that was made a moment ago decides the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.policy.decisions import Where
from edl.policy.throughput import Curve

__all__ = ["Job", "View"]


class Job:
    """One job, waiting or running. Service counts since its last promotion, as Tiresias has it."""

    __slots__ = (
        "as_of",
        "curve",
        "done_gpu_s",
        "elastic",
        "front",
        "gpus",
        "has_run",
        "held",
        "key",
        "kind",
        "least",
        "left_gpu_s",
        "most",
        "name",
        "over",
        "pace",
        "queue",
        "ran_s",
        "requeued_s",
        "service_gpu_s",
        "since_s",
        "submitted_s",
        "told_gpu_s",
        "total_gpu_s",
        "turn",
        "waited_s",
        "where",
    )

    def __init__(
        self,
        key: int,
        name: str,
        *,
        gpus: int,
        curve: Curve,
        submitted_s: float,
        least: int = 1,
        most: int = 0,
        elastic: bool = True,
        left_gpu_s: float | None = None,
    ) -> None:
        self.key = key
        self.name = name
        self.gpus = gpus  # what the user asked for
        self.elastic = elastic
        self.least = min(least, gpus) if elastic else gpus
        # At most what makes it faster, unless the user asked for more than that.
        limit = max(gpus, min(curve.limit, most) if most else curve.limit)
        self.most = limit if elastic else gpus
        self.curve = curve
        self.submitted_s = submitted_s
        self.kind = -1  # a number that a policy gives to jobs alike, for its own use
        self.held = 0
        self.where: Where = ()
        self.over = False
        # Tiresias' account, up to `since_s`.
        self.since_s = submitted_s
        self.service_gpu_s = 0.0  # since the last promotion
        self.total_gpu_s = 0.0  # in all
        self.ran_s = 0.0
        self.waited_s = 0.0  # counted once it has run
        self.has_run = False
        # Its place: queue, and the order in it. See `edl.policy.book`.
        self.queue = 0
        self.turn = 0
        self.front = 0
        self.requeued_s = -1.0
        # What its leader tells of its progress: GPU seconds of work left (at the user's number of
        # GPUs) at `as_of`, done at `pace` of them a second since. None: it tells nothing.
        self.left_gpu_s = left_gpu_s
        self.told_gpu_s = left_gpu_s  # what it had left when it was first told
        self.as_of = submitted_s
        self.pace = 0.0
        # Work done up to its last word since its promotion, less what was lost. None: no word.
        self.done_gpu_s: float | None = None

    def service_at(self, now: float) -> float:
        """GPU seconds held since the last promotion."""
        return self.service_gpu_s + self.held * (now - self.since_s)

    def total_at(self, now: float) -> float:
        """GPU seconds held in all."""
        return self.total_gpu_s + self.held * (now - self.since_s)

    def ran_at(self, now: float) -> float:
        return self.ran_s + (now - self.since_s) if self.held else self.ran_s

    def waited_at(self, now: float) -> float:
        if self.held or not self.has_run:
            return self.waited_s
        return self.waited_s + (now - self.since_s)

    def left_at(self, now: float) -> float | None:
        """GPU seconds of work left, at the user's number of GPUs; None if nobody knows."""
        if self.left_gpu_s is None:
            return None
        return max(0.0, self.left_gpu_s - self.pace * max(0.0, now - self.as_of))

    def __repr__(self) -> str:
        return f"Job({self.key}, {self.name!r}, {self.held}/{self.gpus} GPUs, queue {self.queue})"


@dataclass(slots=True)
class View:
    """`together`: a job's GPUs are to lie on as few machines as hold them."""

    nodes: int
    gpus_per_node: int
    together: bool = False
    now: float = 0.0
    jobs: dict[int, Job] = field(default_factory=dict)  # by key, in the order of submission
    free: int = 0
    free_on: list[int] = field(default_factory=list)  # by machine; empty where numbers suffice
    news: list[Job] = field(default_factory=list)  # changed since the last decision, maybe twice
    # Of the longest job that was ever told of, on what its user asked for.
    longest_s: float = 0.0

    @property
    def capacity(self) -> int:
        return self.nodes * self.gpus_per_node

    def take_news(self) -> list[Job]:
        """Those that changed since the last call; whoever keeps no index has no use for them."""
        news = self.news
        self.news = []
        return news
