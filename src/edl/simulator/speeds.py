"""Which speed each job of a trace has: from a file of curves, or from models of our own.

A trace seldom says what a job trains. Jobs that name no model, or one that nobody knows, get one
of the models at hand: drawn by the seed, and for a name always the same one. The built-in models
are made up, in the range that published strong-scaling measurements show (one that hardly scales
past what its user asked for, one that scales well within a machine and badly across, ...); with
measured ones, results are yours.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from zlib import crc32

from edl.errors import UsageError
from edl.policy.throughput import Curve, StepModel
from edl.simulator.formats import read_models, read_profile, read_speeds
from edl.simulator.jobs import TraceJob
from edl.simulator.trace_file import read_table

__all__ = ["BUILT_IN", "Speeds"]

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
    """`curve(job)` for every job; jobs of one model, batch and number of GPUs share it."""

    def __init__(self, *, models: str | None, seed: int, gpus_per_node: int, capacity: int) -> None:
        self.gpus_per_node = gpus_per_node
        self.capacity = capacity
        self.fitted = dict(BUILT_IN)
        self.measured: dict[tuple[str, int], dict[int, float]] = {}
        self.anybody: dict[int, float] = {}  # one profile, for every job
        if models is not None:
            self.fitted = {}
            self._read(models)
        self.names = sorted(self.fitted) or sorted({name for name, _ in self.measured})
        self.unknown: dict[str, int] = {}
        self._random = Random(seed)
        self._curves: dict[tuple[str, int, int], Curve] = {}

    def _read(self, models: str) -> None:
        columns = set(read_table(models).columns)
        if {"model", "a", "b"} <= columns:
            for name, row in read_models(models).items():
                model = StepModel(row.a, row.b, row.c, row.d, row.e)
                self.fitted[name] = (model, row.batch_per_gpu)
        elif {"workers", "throughput"} <= columns:
            self.anybody = read_profile(models)
        elif "samples_per_sec" in columns:
            for key, rates in read_speeds(models).items():
                packed: dict[int, float] = {}
                nodes: dict[int, int] = {}
                for (gpus, count), rate in rates.items():
                    if count <= nodes.get(gpus, count):
                        nodes[gpus], packed[gpus] = count, rate
                self.measured[key] = packed
        else:
            raise UsageError(
                f"{Path(models).name} has the columns {', '.join(sorted(columns))}; expected a "
                "table of step times (model,a,b,c,d,e,...), of throughputs (application or model, "
                "batch, num_gpus, samples_per_sec) or of `edl profile --csv`"
            )

    def curve(self, job: TraceJob) -> Curve:
        if self.anybody:
            return self._one("profile", 0, job.gpus)
        name = job.model
        if not name:
            name = self._random.choice(self.names)
        elif name not in self.fitted and (name, job.batch) not in self.measured:
            self.unknown[name] = self.unknown.get(name, 0) + 1
            name = self.names[crc32(name.encode()) % len(self.names)]
        return self._one(name, job.batch, job.gpus)

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
        known = self.measured.get((name, batch))
        if known is None:
            # A model that was measured with other batches: the nearest one.
            batches = [size for model_name, size in self.measured if model_name == name]
            known = self.measured[name, min(batches, key=lambda size: abs(size - batch))]
        return Curve.measured(known, least=gpus, most=most, label=name)
