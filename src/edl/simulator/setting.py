"""What a simulation is asked to do, beside its trace and policy. Values only, checked when made.

Prices are seconds, and say what a mechanism costs a job (see docs/scheduling.md for where the
defaults come from):

- `stop_s`: everybody of the job stands still when its number of GPUs grows;
- `shrink_s`: the same when it falls;
- `prepare_s`: new GPUs are held and do nothing yet, while the others train on;
- `start_s`: from getting its first GPUs, or getting them again, to the first step;
- `preempt_s`: so many seconds of training before it was preempted are lost to a job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from edl.errors import UsageError

__all__ = ["MECHANISMS", "PLACEMENTS", "Prices", "Setting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    stop_s: float
    shrink_s: float
    prepare_s: float
    start_s: float
    preempt_s: float

    def __post_init__(self) -> None:
        for name in ("stop_s", "shrink_s", "prepare_s", "start_s", "preempt_s"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise UsageError(
                    f"the price {name} is {value}; it is a number of seconds, 0 or more"
                )


MECHANISMS = {
    "edl": Prices(stop_s=1.0, shrink_s=0.0, prepare_s=20.0, start_s=20.0, preempt_s=0.0),
    "stop-resume": Prices(stop_s=40.0, shrink_s=40.0, prepare_s=0.0, start_s=20.0, preempt_s=0.0),
    "ideal": Prices(stop_s=0.0, shrink_s=0.0, prepare_s=0.0, start_s=0.0, preempt_s=0.0),
}
PLACEMENTS = ("counts", "consolidated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    nodes: int
    gpus_per_node: int
    mechanism: str = "edl"
    prices: Prices = field(default_factory=lambda: MECHANISMS["edl"])
    placement: str = "counts"  # which GPUs does not matter; or a job's lie together
    seed: int = 0  # of the models drawn for jobs that name none
    models: str | None = None  # a file of speed curves; None: the built-in ones
    models_source: str | None = None  # whose rows of that file, and on which GPU; None: see there
    models_gpu: str | None = None
    window_s: tuple[float, float] | None = None  # of the Gantt chart; None: the busiest
    bins: int = 400  # of the timeline
    knob: float = 0.0  # of Tiresias' starvation rule, which is off at 0
    round_s: float = 0.0  # the policy is asked at multiples of this only; 0: at every event

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "bins"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; at least 1 is needed")
        if not (isfinite(self.round_s) and self.round_s >= 0):
            raise UsageError(f"round_s is {self.round_s}; it is a number of seconds, 0 or more")
        if not (isfinite(self.knob) and self.knob >= 0):
            raise UsageError(f"knob is {self.knob}; it is a number, 0 or more")
        if self.mechanism not in (*MECHANISMS, "custom"):
            known = ", ".join(MECHANISMS)
            raise UsageError(f"there is no mechanism {self.mechanism!r}; choose one of {known}")
        if self.placement not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise UsageError(f"there is no placement {self.placement!r}; choose one of {known}")

    @property
    def capacity(self) -> int:
        return self.nodes * self.gpus_per_node
