"""One simulation from a trace, the name of a policy and a setting; what the command line calls.

Owns the names of policies. Everything below is pure; this room reads the file of curves, and a
clock to tell how long it took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from edl.errors import UsageError
from edl.policy.base import Policy
from edl.policy.book import Book
from edl.policy.elastic_tiresias import ElasticTiresias
from edl.policy.fifo import Fifo
from edl.policy.gittins import Gittins
from edl.policy.optimus import Optimus
from edl.policy.rounds import Rounds
from edl.policy.srtf import Srtf
from edl.policy.static import Static
from edl.policy.tiresias import Tiresias
from edl.policy.together import Together
from edl.policy.uniform import Uniform
from edl.policy.water_filling import WaterFilling, WaterFillingBlind
from edl.simulator.busiest import busiest
from edl.simulator.engine import Arrival, Engine
from edl.simulator.generate import offered_load
from edl.simulator.jobs import Trace
from edl.simulator.outcome import Outcome
from edl.simulator.setting import Setting
from edl.simulator.speeds import Speeds
from edl.simulator.timeline import Recorder

__all__ = ["POLICIES", "QUEUED", "arrivals_of", "make_policy", "simulate"]

Progress = Callable[[int, int], None]

_MAKERS: Mapping[str, tuple[Callable[..., Policy], str]] = {
    "fifo": (Fifo, "first come, first served; nobody overtakes"),
    "srtf": (Srtf, "shortest remaining time first, by sizes nobody knows; a bound"),
    "tiresias": (Tiresias, "least attained service in three queues, all or nothing"),
    "tiresias-gittins": (Gittins, "Tiresias, by the Gittins index within its queues"),
    "optimus": (Optimus, "GPUs by marginal gain, every 10 minutes"),
    "static": (Static, "what users asked for, in order of arrival"),
    "uniform": (Uniform, "the least loaded machine, shared alike by its jobs"),
    "elastic-tiresias": (ElasticTiresias, "Tiresias with compaction and expansion"),
    "wf-las": (WaterFillingBlind, "water filling, sizes unknown"),
    "wf-srpt": (WaterFilling, "water filling by what jobs have left"),
}
QUEUED = ("tiresias", "tiresias-gittins", "elastic-tiresias")
POLICIES: dict[str, str] = {name: does for name, (_, does) in _MAKERS.items()}


def make_policy(name: str, *, knob: float = 0.0) -> Policy:
    """`knob` is for those with Tiresias' queues, and of no matter to others."""
    if name not in _MAKERS:
        raise UsageError(f"there is no policy {name!r}; choose from {', '.join(POLICIES)}")
    maker = _MAKERS[name][0]
    return maker(knob=knob) if name in QUEUED else maker()


def simulate(
    trace: Trace,
    policy: str | Policy,
    setting: Setting,
    *,
    progress: Progress | None = None,
    check: bool = False,
) -> Outcome:
    """Every job of the trace from its submission to its end.

    `policy` is a name from POLICIES, or a policy. `progress` hears of finished jobs and of all.
    With `check`, everything that must hold is looked at after every event, which is slow.
    """
    began = time.perf_counter()
    chosen = make_policy(policy, knob=setting.knob) if isinstance(policy, str) else policy
    if setting.placement == "consolidated" and not chosen.places:
        chosen = Together(chosen)
    if setting.round_s:
        chosen = Rounds(chosen, setting.round_s)
    arrivals, rejected, notes = arrivals_of(trace, setting)
    if not arrivals:
        raise UsageError(f"no job of {trace.name} fits into {setting.capacity} GPUs")
    book = Book(
        nodes=setting.nodes,
        gpus_per_node=setting.gpus_per_node,
        together=setting.placement == "consolidated",
    )
    last_s = arrivals[-1].submit_s
    recorder = Recorder(last_s, setting.bins)
    window_s = setting.window_s or busiest(arrivals, setting.capacity)
    engine = Engine(
        arrivals, chosen, book, setting.prices, recorder, window_s=window_s, check=check
    )
    engine.run(progress)
    end_s = max(job.end_s for _, job in engine.finished)
    return Outcome(
        policy=chosen.name,
        mechanism=setting.mechanism,
        trace=trace.name,
        nodes=setting.nodes,
        gpus_per_node=setting.gpus_per_node,
        seed=setting.seed,
        load=offered_load(trace, setting.capacity),
        jobs=tuple(job for _, job in sorted(engine.finished, key=lambda pair: pair[0])),
        timeline=recorder.timeline(end_s),
        spans=tuple(engine.spans),
        window_s=window_s,
        makespan_s=end_s,
        used_gpu_s=recorder.used_gpu_s,
        worth_gpu_s=recorder.worth_gpu_s,
        decisions=engine.decisions,
        events=engine.events,
        wall_s=time.perf_counter() - began,
        rejected=rejected,
        notes=notes,
    )


def arrivals_of(trace: Trace, setting: Setting) -> tuple[list[Arrival], int, tuple[str, ...]]:
    """The jobs with their speeds, how many are larger than the cluster, and notes on the speeds."""
    speeds = Speeds(
        models=setting.models,
        seed=setting.seed,
        gpus_per_node=setting.gpus_per_node,
        capacity=setting.capacity,
        source=setting.models_source,
        gpu=setting.models_gpu,
    )
    found, rejected = [], 0
    for job in trace.jobs:
        # Drawn for those that are left out too, so that others' models do not depend on them.
        curve = speeds.curve(job)
        if job.gpus > setting.capacity:
            rejected += 1
            continue
        found.append(
            Arrival(
                submit_s=job.submit_s,
                name=job.id,
                gpus=job.gpus,
                size_gpu_s=job.duration_s * job.gpus,
                curve=curve,
                least=job.min_gpus,
                most=min(job.max_gpus or setting.capacity, setting.capacity),
                elastic=job.elastic,
            )
        )
    return found, rejected, speeds.notes()
