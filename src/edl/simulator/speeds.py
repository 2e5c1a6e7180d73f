"""Which speed each job of a trace has: from a file of curves, or from models of our own.

A trace seldom says what a job trains. Jobs that name no model, or one that nobody knows, get one
of the models at hand: drawn by the seed, and for a name always the same one. The built-in models
are made up, in the range that published strong-scaling measurements show (one that hardly scales
past what its user asked for, one that scales well within a machine and badly across, ...); with
measured ones, results are yours.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from zlib import crc32

from edl.errors import UsageError
from edl.policy.throughput import Curve, StepModel
from edl.simulator.formats import read_models, read_profile
from edl.simulator.jobs import TraceJob
from edl.simulator.measured import Measured, describe, gpus_text, read_measured
from edl.simulator.trace_file import read_table

__all__ = ["BUILT_IN", "Speeds", "describe_models"]

PROFILE = "profile"  # the label of everybody's speed
NAMED = 8  # models that are not known and told one by one

# Seconds of a step, see StepModel; and the batch of one GPU.
BUILT_IN: dict[str, tuple[StepModel, int]] = {
    "convnet": (StepModel(0.015, 0.0020, 0.001, 0.005, 0.002), 64),
    "deep-convnet": (StepModel(0.025, 0.0030, 0.000, 0.008, 0.003), 64),
    "wide-convnet": (StepModel(0.004, 0.0030, 0.012, 0.003, 0.006), 64),
    "transformer": (StepModel(0.030, 0.0012, 0.002, 0.005, 0.003), 96),
    "large-transformer": (StepModel(0.050, 0.0016, 0.000, 0.006, 0.004), 64),
    "recurrent": (StepModel(0.060, 0.0080, 0.002, 0.001, 0.001), 32),
}


class Speeds:
    """`curve(job)` for every job; jobs of one model, batch and number of GPUs share it.

    `source` and `gpu` choose rows of a table of measured speeds. `notes()`, when all jobs had
    their curve, is what a person should know of them.
    """

    def __init__(
        self,
        *,
        models: str | None,
        seed: int,
        gpus_per_node: int,
        capacity: int,
        source: str | None = None,
        gpu: str | None = None,
    ) -> None:
        self.gpus_per_node = gpus_per_node
        self.capacity = capacity
        self.fitted = dict(BUILT_IN)
        self.measured = Measured({})
        self.anybody: dict[int, float] = {}  # one profile, for every job
        if models is None and (source or gpu):
            raise UsageError("there are no rows to choose from: give a table of speeds (--models)")
        if models is not None:
            self.fitted = {}
            self._read(models, source, gpu)
        self.names = sorted(self.fitted) or sorted(self.measured.models)
        self._unknown: Counter[str] = Counter()
        self._elsewhere: Counter[str] = Counter()  # by model: jobs whose batch was not measured
        self._ends: dict[str, set[int]] = {}  # by model: the most GPUs that were measured
        self._beyond: Counter[str] = Counter()  # jobs that ask for more than that
        self._random = Random(seed)
        self._rates: dict[tuple[str, int], tuple[dict[int, float], int]] = {}  # and the most GPUs
        self._curves: dict[tuple[str, int, int], Curve] = {}

    def _read(self, models: str, source: str | None, gpu: str | None) -> None:
        columns = set(read_table(models).columns)
        measured = "samples_per_sec" in columns and not {"model", "a", "b"} <= columns
        if (source or gpu) and not measured:
            raise UsageError(
                f"{Path(models).name} is no table of measured throughputs, which alone has sources "
                "and kinds of GPU to choose from; leave --models-source and --models-gpu out"
            )
        if measured:
            self.measured = read_measured(models, source=source, gpu=gpu)
        elif {"model", "a", "b"} <= columns:
            for name, row in read_models(models).items():
                model = StepModel(row.a, row.b, row.c, row.d, row.e)
                self.fitted[name] = (model, row.batch_per_gpu)
        elif {"workers", "throughput"} <= columns:
            self.anybody = read_profile(models)
        else:
            raise UsageError(
                f"{Path(models).name} has the columns {', '.join(sorted(columns))}; expected a "
                "table of step times (model,a,b,c,d,e,...), of throughputs (application or model, "
                "batch, num_gpus, samples_per_sec) or of `edl profile --csv`"
            )

    def curve(self, job: TraceJob) -> Curve:
        if self.anybody:
            self._reaches(PROFILE, max(self.anybody), job)
            return self._one(PROFILE, 0, job.gpus)
        name = job.model
        if not name:
            name = self._random.choice(self.names)
        elif name not in self.fitted and name not in self.measured.models:
            self._unknown[name] += 1
            name = self._like(name)
        if name not in self.measured.models:
            return self._one(name, job.batch, job.gpus)
        batch, near = self._measured_batch(name, job)
        if not near:
            self._elsewhere[name] += 1
        self._reaches(name, self._rates[name, batch][1], job)
        return self._one(name, batch, job.gpus)

    def _like(self, unknown: str) -> str:
        return self.names[crc32(unknown.encode()) % len(self.names)]

    def _measured_batch(self, name: str, job: TraceJob) -> tuple[int, bool]:
        """The job's, or the nearest one if nothing is known of it."""
        model = self.measured.models[name]
        batch = job.batch or model.batch_for(job.gpus)
        if self._known(name, batch):
            return batch, True
        nearest = model.nearest(batch)
        self._known(name, nearest)
        # A model of which no batch is told was not measured with others.
        return nearest, not model.batches[-1]

    def _known(self, name: str, batch: int) -> bool:
        """Whether there are speeds with this batch; worked out once."""
        if (name, batch) not in self._rates:
            rates = self.measured.models[name].rates(batch)
            self._rates[name, batch] = rates, max(rates, default=0)
        return bool(self._rates[name, batch][0])

    def _reaches(self, name: str, end: int, job: TraceJob) -> None:
        most = min(job.max_gpus or self.capacity, self.capacity) if job.elastic else job.gpus
        if end < most and job.gpus <= self.capacity:
            self._ends.setdefault(name, set()).add(end)
            self._beyond[name] += job.gpus > end

    def _one(self, name: str, batch: int, gpus: int) -> Curve:
        key = (name, batch, gpus)
        found = self._curves.get(key)
        if found is None:
            found = self._curves[key] = self._make(name, batch, gpus)
        return found

    def _make(self, name: str, batch: int, gpus: int) -> Curve:
        most = self.capacity
        if self.anybody:
            return Curve.measured(self.anybody, least=gpus, most=most, label=name)
        if name in self.fitted:
            model, each = self.fitted[name]
            whole = batch or each * gpus
            node = self.gpus_per_node
            return Curve.fitted(model, whole, gpus_per_node=node, least=gpus, most=most, label=name)
        return Curve.measured(self._rates[name, batch][0], least=gpus, most=most, label=name)

    # -- what to know of them ------------------------------------------------------------------

    def notes(self) -> tuple[str, ...]:
        found = list(self.measured.notes)
        unknown = sorted(self._unknown.items())
        found += [
            f"model {name!r} of {count:,} jobs is not known: they go like {self._like(name)!r}"
            for name, count in unknown[:NAMED]
        ]
        if len(unknown) > NAMED:
            rest = sum(count for _, count in unknown[NAMED:])
            found.append(f"nor are {len(unknown) - NAMED} other models of {rest:,} jobs")
        if self._elsewhere:
            each = ", ".join(f"{name} {count:,}" for name, count in self._elsewhere.items())
            found.append(
                f"jobs with a batch outside of those measured: {each}; they go as with the nearest"
            )
        if self._ends:
            each = ", ".join(self._end_of(name) for name in sorted(self._ends))
            found.append(
                f"measured speeds end at {each}; on more a job is taken to be no faster, so nobody "
                "gets more unless its user asked for them"
            )
        return tuple(found)

    def _end_of(self, name: str) -> str:
        ends = self._ends[name]
        whose = "" if name == PROFILE else f" for {name}"
        details = ["by batch"] * (len(ends) > 1)
        if self._beyond[name]:
            details.append(f"jobs that ask for more: {self._beyond[name]:,}")
        return gpus_text(ends) + whose + (f" ({', '.join(details)})" if details else "")


def describe_models(models: str | None) -> list[tuple[str, str]]:
    """A model and a line about its speed, for the eye: of a table, or those built in (on machines
    of 8 GPUs)."""
    if models is not None and "samples_per_sec" in read_table(models).columns:
        return describe(models)
    speeds = Speeds(models=models, seed=0, gpus_per_node=8, capacity=64)
    if speeds.anybody:
        most = max(speeds.anybody)
        return [("(every job)", f"a profile of up to {most} workers, whatever model a job names")]
    lines = []
    for name, (model, batch) in speeds.fitted.items():
        curve = Curve.fitted(model, 8 * batch, gpus_per_node=8, least=64, most=64)
        on_8, on_16, on_64 = (f"{curve.rate[p] / curve.rate[1]:.1f}" for p in (8, 16, 64))
        how = f"{on_8} x as fast on 8 as on 1, {on_16} x on 16, {on_64} x on 64"
        lines.append((name, f"batch {batch} a GPU; a job for 8 GPUs: {how}"))
    return lines
