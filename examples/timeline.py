"""Draw a job's throughput, workers and loss over time, from what its workers logged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from edl.client import Event
from edl.protocol.tale import AdjustmentRecord

INK, SOFT, BLUE, ORANGE, GREEN = "#24292f", "#6e7781", "#0969da", "#d9730d", "#1a7f37"
WINDOW_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step that counted, all workers together."""

    time: float
    samples: int
    workers: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One adjustment: when it was asked for, when it happened, and what to write there."""

    asked: float
    switched: float
    text: str


def steps_of(logs: Iterable[list[dict[str, Any]]]) -> list[Step]:
    """The counted steps in order; the loss is the mean over the whole aggregate batch."""
    rows: dict[tuple[int, int], int] = {}
    ends: dict[int, list[tuple[dict[str, Any], int]]] = defaultdict(list)
    for worker, log in enumerate(logs):
        for line in log:
            if line["what"] == "began":
                rows[worker, line["step"]] = len(line["indexes"])
            elif line["what"] == "ended" and line["advanced"]:
                ends[line["step"]].append((line, rows[worker, line["step"]]))
    steps = []
    for _, lines in sorted(ends.items()):
        samples = sum(count for _, count in lines)
        steps.append(
            Step(
                time=max(line["time"] for line, _ in lines),
                samples=samples,
                workers=len(lines),
                loss=sum(line["loss"] * count for line, count in lines) / samples,
            )
        )
    return steps


def marks_of(events: Iterable[Event], records: Iterable[AdjustmentRecord]) -> list[Mark]:
    """When each adjustment was asked for and when it happened."""
    events = list(events)
    times = {(event.what, event.request_id): event.time for event in events}
    handed = {event.generation for event in events if event.what == "leader.changed"}
    marks = []
    for record in records:
        who = [f"+{worker}" for worker in record.joined] + [f"-{worker}" for worker in record.left]
        led = ", the leader" if record.generation in handed else ""
        text = f"{' '.join(who)}{led}\nstop {1000 * record.parts.stop_s:.0f} ms"
        asked = times["adjust.accepted", record.request_id]
        switched = times["adjust.switching", record.request_id]
        marks.append(Mark(asked=asked, switched=switched, text=text))
    return marks


def throughput(steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """Samples per second around each step, over a window short enough to show a stop."""
    times, rates = [], []
    for middle in steps[1:]:
        near = [s for s in steps if abs(s.time - middle.time) <= WINDOW_S / 2]
        if len(near) > 1:
            times.append(mean((near[0].time, near[-1].time)))
            rates.append(sum(s.samples for s in near[1:]) / (near[-1].time - near[0].time))
    return times, rates


def draw(path: Path, elastic: Sequence[Step], static: Sequence[Step], marks: list[Mark]) -> None:
    plt.rcParams.update({"text.color": INK, "axes.edgecolor": SOFT, "axes.labelcolor": INK})
    figure, (speed, workers, loss) = plt.subplots(
        3, 1, figsize=(10, 8), height_ratios=[3, 1.3, 2], layout="constrained"
    )
    start = elastic[0].time
    times, rates = throughput(elastic)
    at = [time - start for time in times]
    speed.plot(at, rates, color=BLUE, linewidth=2)
    speed.set_ylim(0, max(rates) * 1.35)
    speed.set_ylabel("samples per second")
    speed.set_title("Workers join and leave; training goes on", loc="left", weight="bold", pad=10)
    for mark in marks:
        _mark(speed, workers, mark, start)
    at = [step.time - start for step in elastic]
    count = [step.workers for step in elastic]
    workers.step(at, count, where="post", color=GREEN, linewidth=2)
    workers.fill_between(at, count, step="post", color=GREEN, alpha=0.15)
    workers.set_yticks(range(max(count) + 1))
    workers.set_ylim(0, max(count) + 0.6)
    workers.set_ylabel("workers")
    workers.set_xlabel("seconds of training")
    workers.sharex(speed)
    speed.tick_params(labelbottom=False)
    speed.set_xlim(0, at[-1])
    loss.plot([s.loss for s in static], color=ORANGE, linewidth=3.5, alpha=0.55, label="left alone")
    loss.plot([s.loss for s in elastic], color=BLUE, linewidth=1, label="scaled while it trained")
    loss.set_yscale("log")
    loss.set_xlim(0, len(elastic))
    loss.set_ylabel("training loss")
    loss.set_xlabel("step")
    loss.legend(frameon=False, loc="upper right", title="the same model, step for step")
    for axes in (speed, workers, loss):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color=SOFT, alpha=0.25, linewidth=0.8)
        axes.set_axisbelow(True)
    figure.savefig(path, dpi=130, facecolor="white")


def _mark(speed: Axes, workers: Axes, mark: Mark, start: float) -> None:
    """A shade while the adjustment is prepared, a line where it happens."""
    asked, switched = mark.asked - start, mark.switched - start
    for axes in (speed, workers):
        axes.axvspan(asked, switched, color=SOFT, alpha=0.15, linewidth=0)
        axes.axvline(switched, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    top = speed.get_ylim()[1]
    _write(speed, mark.text, switched, top, INK)
    if switched - asked > 3.0:
        _write(speed, "new workers start up,\ntraining goes on", asked, top, SOFT)


def _write(axes: Axes, text: str, x: float, y: float, color: str) -> None:
    """To the right of a point, and below it."""
    where, unit = (7, -6), "offset points"
    axes.annotate(text, (x, y), xytext=where, textcoords=unit, va="top", color=color)
