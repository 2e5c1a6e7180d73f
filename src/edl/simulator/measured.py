"""Measured speeds of models: which rows of a table count, and S(p) of a job from them.

A table may hold what several sources measured on several kinds of GPU. Speeds of two of them are
not to be mixed within one model, so where two measured the same one, rows of one origin count.

A job keeps its aggregate batch on any number of GPUs. Where p GPUs were measured with this very
batch, that is S(p); where with a smaller and a larger one, the time of a step lies on the straight
line between the two. So tables with a fixed batch for each GPU serve as well. Every p counts on the
fewest machines on which it was measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.formats import Origin, read_origins, read_speeds

__all__ = ["Measured", "ModelSpeeds", "describe", "gpus_text", "read_measured"]


@dataclass(frozen=True, slots=True)
class ModelSpeeds:
    """Of one model: GPUs -> batch -> samples a second, packed and (by batch) however they lay."""

    packed: Mapping[int, Mapping[int, float]]
    exact: Mapping[int, Mapping[int, float]]
    batches: tuple[int, ...]

    @staticmethod
    def of(rows: Iterable[tuple[int, int, int, float]]) -> ModelSpeeds:
        """From (batch, GPUs, machines, samples a second)."""
        listed = sorted(rows, key=lambda row: row[2], reverse=True)
        fewest = {gpus: nodes for _, gpus, nodes, _ in listed}
        packed: dict[int, dict[int, float]] = {}
        exact: dict[int, dict[int, float]] = {}
        for batch, gpus, nodes, rate in listed:
            exact.setdefault(gpus, {})[batch] = rate
            if nodes == fewest[gpus]:
                packed.setdefault(gpus, {})[batch] = rate
        return ModelSpeeds(packed, exact, tuple(sorted({batch for batch, *_ in listed})))

    def batch_for(self, gpus: int) -> int:
        """Of a job that says none: for each GPU the largest of those measured on the fewest with
        which the whole was measured as well; the smallest if there is none."""
        fewest = min(self.exact)
        sizes = sorted(self.exact[fewest], reverse=True)
        wholes = [max(1, round(size / fewest * gpus)) if size else 0 for size in sizes]
        return next((whole for whole in wholes if self.rates(whole)), wholes[-1])

    def rates(self, batch: int) -> dict[int, float]:
        """Samples a second by GPUs; empty if nothing near enough to this batch was measured."""
        found: dict[int, float] = {}
        for gpus in sorted(self.packed):
            rate = _at(self.packed[gpus], batch) or self.exact[gpus].get(batch)
            if rate is not None:
                found[gpus] = rate
        return found

    def nearest(self, batch: int) -> int:
        return min(self.batches, key=lambda size: (abs(size - batch), size))


def _at(by_batch: Mapping[int, float], batch: int) -> float | None:
    if batch in by_batch:
        return by_batch[batch]
    sizes = sorted(size for size in by_batch if size)
    place = bisect_left(sizes, batch)
    if not 0 < place < len(sizes):
        return None
    low, high = sizes[place - 1], sizes[place]
    short, long = low / by_batch[low], high / by_batch[high]
    return batch / (short + (batch - low) / (high - low) * (long - short))


@dataclass(frozen=True, slots=True)
class Measured:
    """The models of a table, and what a person should know of which rows they are from."""

    models: Mapping[str, ModelSpeeds]
    notes: tuple[str, ...] = ()


def read_measured(path: str | Path, *, source: str | None, gpu: str | None) -> Measured:
    """The rows of `source` and of `gpu` where these are said, and of one origin in any case where
    two measured the same model: of the one with most numbers of GPUs for each model and batch,
    for those are the curves that a job which is resized goes along."""
    origins = read_origins(path)
    fitting = [
        origin
        for origin in origins
        if source in (None, origin.source) and gpu in (None, origin.gpu)
    ]
    if not fitting:
        asked = [f"source {source!r}"] * (source is not None) + [f"GPU {gpu!r}"] * (gpu is not None)
        raise UsageError(
            f"{Path(path).name} has no speeds of {' and '.join(asked)}; it has {_listed(origins)}"
        )
    chosen = fitting
    if not _apart(fitting):
        # A table with a fixed batch for each GPU has few numbers of GPUs for any one batch.
        chosen = [max(fitting, key=lambda each: (each.each, each.rows, each.source, each.gpu))]
    rows: dict[str, list[tuple[int, int, int, float]]] = {}
    for origin in chosen:
        found = read_speeds(path, source=origin.source or None, gpu=origin.gpu or None)
        for (model, batch), places in found.items():
            rows.setdefault(model, []).extend(
                (batch, gpus, nodes, rate) for (gpus, nodes), rate in places.items()
            )
    notes = [f"speeds are those of {_listed(chosen)}, from {Path(path).name}"]
    others = [origin for origin in origins if origin not in chosen]
    if others:
        notes[0] += f"; --models-source and --models-gpu choose others: {_listed(others)}"
    models = {model: ModelSpeeds.of(each) for model, each in sorted(rows.items())}
    return Measured(models, tuple(notes) if chosen[0].name else ())


def _apart(origins: Collection[Origin]) -> bool:
    models = [model for origin in origins for model in origin.models]
    return len(models) == len(set(models))


def _listed(origins: Iterable[Origin]) -> str:
    return ", ".join(f"{each.name or 'rows'} ({len(each.models)} models)" for each in origins)


def gpus_text(gpus: Collection[int]) -> str:
    """`1 GPU`, `8 GPUs`, `1 to 8 GPUs`."""
    least, most = min(gpus), max(gpus)
    many = "GPU" if most == 1 else "GPUs"
    return f"{most} {many}" if least == most else f"{least} to {most} {many}"


def describe(path: str | Path) -> list[tuple[str, str]]:
    """A model and what was measured of it, for the eye, origin by origin."""
    lines = []
    for origin in read_origins(path):
        found = read_speeds(path, source=origin.source or None, gpu=origin.gpu or None)
        for model in origin.models:
            batches = sorted(batch for name, batch in found if name == model)
            mine = [places for (name, _), places in found.items() if name == model]
            gpus = sorted({p for places in mine for p, _ in places})
            sizes = f"batches {batches[0]:,} to {batches[-1]:,}" if batches[-1] else "no batch told"
            name = f"{origin.name}, " if origin.name else ""
            lines.append((model, f"{name}{gpus_text(gpus)}, {sizes}"))
    return lines
