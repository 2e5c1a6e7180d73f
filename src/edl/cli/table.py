"""Tables and lines that tell of a job: the only place that knows how they look."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from edl.client import Event
from edl.launch.jobs import Failure, Result
from edl.protocol.messages import AdjustmentRecord, Happened, Status, WorkerStatus
from edl.runtime.standing import Noted
from edl.types import WorkerId, workers_said

__all__ = [
    "adjustment_line",
    "brief_event_line",
    "duration_text",
    "event_line",
    "jobs_table",
    "lasting_fields",
    "lasting_line",
    "live_view",
    "loss_lines",
    "notable",
    "result_line",
    "slot_name",
    "slots_text",
    "status_fields",
    "status_view",
    "store_line",
    "told_failures",
    "transient_line",
]

# How many lost workers `edl status` lists.
LOSSES_SHOWN = 5

NOTABLE = {
    "job.started",
    "job.stopping",
    "adjust.accepted",
    "adjust.complete",
    "adjust.undone",
    "worker.cold_start",
    "worker.lost",
    "leader.changed",
    "job.contested",
    "job.recovered",
    "job.restarting",
    "job.resumed",
    "job.short",
    "job.waiting",
    "job.answered",
    "replicas.diverged",
    "replicas.resynced",
    "checkpoint.failed",
    "checkpoint.passed_over",
    "straggler.found",
    "straggler.gone",
    "straggler.kept",
    "straggler.removed",
    "straggler.replaced",
    "straggler.weighed",
    "transient.begins",
    "transient.ends",
    "transient.late",
    "transient.over",
    "transient.vain",
    "transient.waits",
    "worker.responsive",
    "worker.unresponsive",
}

# Fields of `adjust.complete` that are shown where the job runs.
ADJUSTMENT = {"kind", "joined", "left", "workers", "total_s", "stop_s"}


def status_fields(job: str, status: Status) -> dict[str, object]:
    """`edl status --json`."""
    adjustment = status.adjustment
    return {
        "job": job,
        "state": status.state,
        "step": status.step,
        "epoch": status.epoch,
        "epochs": status.epochs,
        "generation": status.generation,
        "batch": status.batch,
        "throughput": status.throughput,
        "step_s": status.step_s,
        "switch_steps": status.switch_steps,
        "report": status.report,
        "workers": [
            {
                "id": worker.id,
                "rank": worker.rank,
                "pid": worker.pid,
                "host": worker.host,
                "slot": worker.slot,
                "address": str(worker.address),
                "leader": worker.leader,
                "state": worker.state,
                "samples": worker.samples,
                "compute_s": worker.compute_s,
                "slowness": worker.slowness,
                "straggler": worker.straggler,
                "silent_s": worker.silent_s,
                "process_runs": worker.process_runs,
            }
            for worker in status.workers
        ],
        "adjustment": None
        if adjustment is None
        else {
            "request_id": adjustment.request_id,
            "kind": adjustment.kind,
            "phase": adjustment.phase,
            "detail": adjustment.detail,
            "age_s": adjustment.age_s,
            "workers": list(adjustment.workers),
        },
        "adjustments": status.adjustments,
        "stragglers": status.stragglers,
    }


def lasting_fields(restarts: int, noted: Noted | None) -> dict[str, object]:
    """What `edl status --json` adds: restarts, and how it stands with checkpoints."""
    checkpoint: dict[str, object] | None = None
    if noted is not None:
        age_s = round(max(0.0, time.time() - noted.saved_at), 1) if noted.step is not None else None
        checkpoint = {
            "step": noted.step,
            "age_s": age_s,
            "error": noted.error,
            "failed_step": noted.failed_step if noted.error else None,
            "resumed_from": noted.resumed,
            "passed_over": [{"path": path, "why": why} for path, why in noted.passed_over_why],
        }
    return {"restarts": restarts, "checkpoint": checkpoint}


def lasting_line(restarts: int, noted: Noted | None) -> str:
    """The same for the eye; empty where there is nothing to tell."""
    parts: list[str] = []
    if noted is not None and noted.step is not None:
        age = duration_text(max(0.0, time.time() - noted.saved_at))
        parts.append(f"checkpoint of step {noted.step}, {age} old")
    if noted is not None and noted.resumed is not None:
        parts.append(f"resumed from step {noted.resumed}")
        parts += [f"passed over {path}: {why}" for path, why in noted.passed_over_why]
    if restarts:
        parts.append(f"{restarts} restart{'s' if restarts > 1 else ''}")
    if noted is not None and noted.error:
        parts.append(f"CHECKPOINTS FAIL since step {noted.failing_since}: {noted.error}")
    return "; ".join(parts)


def store_line(url: str, silent_s: float, state: str) -> str:
    """What a store that is away means for a job in this state."""
    means = (
        "training continues; membership cannot change until it is back"
        if state == "training"
        else "the job cannot elect a leader or change its workers until it is back"
    )
    return f"store {url} has not answered for {silent_s:.0f} s; {means}"


def transient_line(lent: Mapping[WorkerId, float]) -> str:
    """Who leaves again by itself, the next one first."""
    each = sorted(lent.items(), key=lambda item: item[1])
    return "; ".join(
        f"{worker} is gone in {duration_text(left)}" if left else f"{worker} is late to leave"
        for worker, left in each
    )


def headline(job: str, status: Status) -> Text:
    parts = [f"step {status.step}", epoch_text(status)]
    if status.throughput:
        parts.append(f"{status.throughput:,.0f} samples/s")
    if status.step_s:
        parts.append(f"{status.step_s * 1000:.1f} ms/step")
    if status.batch:
        parts.append(f"batch {status.batch}")
    parts += [f"{name} {value:.4g}" for name, value in sorted(status.report.items())]
    line = Text(job, style="bold")
    line.append(f"  {status.state}", style=_colour(status.state))
    line.append("  " + "  ".join(parts), style="not bold")
    return line


def epoch_text(status: Status) -> str:
    """The epoch as people count, from 1; JSON and scripts (`edl.epoch()`) count from 0."""
    if not status.epochs:
        return f"epoch {status.epoch + 1}"
    # After the last epoch the ledger already stands at the one that would follow.
    return f"epoch {min(status.epoch + 1, status.epochs)}/{status.epochs}"


def workers_table(status: Status) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for name in ("worker", "rank", "slot", "pid", "state", "samples/step", "compute"):
        right = name in {"rank", "pid", "samples/step", "compute"}
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for worker in status.workers:
        table.add_row(
            f"{worker.id} *" if worker.leader else worker.id,
            str(worker.rank) if worker.rank >= 0 else "-",
            worker.slot,
            str(worker.pid),
            _worker_state(worker),
            str(worker.samples),
            f"{worker.compute_s * 1000:.1f} ms",
        )
    return table


def _worker_state(worker: WorkerStatus) -> Text | str:
    if worker.silent_s:
        runs = " (process runs)" if worker.process_runs else ""
        return Text(f"no heartbeat for {worker.silent_s:.0f} s{runs}", style="yellow")
    if not worker.straggler:
        return worker.state
    return Text(f"{worker.state}, {worker.slowness:.2f}x the median per sample", style="yellow")


def status_view(job: str, status: Status) -> RenderableType:
    """A job for the eye: the headline, its workers (* leads), and an adjustment in flight."""
    parts: list[RenderableType] = [headline(job, status)]
    if status.workers:
        parts.append(workers_table(status))
    slow = [worker.id for worker in status.workers if worker.straggler]
    if slow:
        verb = "is a straggler" if len(slow) == 1 else "are stragglers"
        parts.append(
            Text(f"{', '.join(slow)} {verb} (--stragglers {status.stragglers})", style="yellow")
        )
    adjustment = status.adjustment
    if adjustment is not None:
        names = ", ".join(adjustment.workers)
        parts.append(
            Text(
                f"{adjustment.kind} {_printable(adjustment.request_id)}: {adjustment.phase} "
                f"({names}; {adjustment.age_s:.1f} s)",
                style="yellow",
            )
        )
    return Group(*parts)


def live_view(job: str, status: Status | None, *, starting: int, seconds: float) -> RenderableType:
    """What stays at the bottom of the terminal while a job runs."""
    if status is None:
        waiting = f"  starting {workers_said(starting)} ({seconds:.0f} s)"
        return Text.assemble((job, "bold"), (waiting, "yellow"))
    return status_view(job, status)


def jobs_table(rows: Iterable[dict[str, object]]) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False)
    for name in ("job", "state", "workers", "slots", "step", "age", "pid", "script"):
        table.add_column(name, no_wrap=name != "script")
    for row in rows:
        age_s = time.time() - float(str(row["created"]))
        table.add_row(
            str(row["job"]),
            Text(str(row["state"]), style=_colour(str(row["state"]))),
            str(row["workers"]),
            slots_text(row["slots"]),
            str(row["step"]),
            duration_text(age_s),
            str(row["pid"]),
            str(row["script"]),
        )
    return table


def slot_name(lock: str) -> str:
    """A slot by the name of its lock: `localhost:3` for cpu-3; a GPU goes by its lock's name."""
    kind, _, index = lock.rpartition("-")
    return f"localhost:{index}" if kind == "cpu" and index.isdecimal() else lock


def slots_text(slots: object) -> str:
    """Slots in few characters: `localhost:0-3,7`; `-` for none."""
    by_host: dict[str, list[int]] = {}
    others: list[str] = []
    for slot in slots if isinstance(slots, list) else []:
        host, _, index = str(slot).rpartition(":")
        if host and index.isdecimal():
            by_host.setdefault(host, []).append(int(index))
        else:
            others.append(str(slot))
    texts = [f"{host}:{_ranges(sorted(set(found)))}" for host, found in sorted(by_host.items())]
    return " ".join([*texts, *others]) or "-"


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def adjustment_line(record: AdjustmentRecord) -> str:
    moved = [f"{', '.join(record.joined)} joined"] if record.joined else []
    moved += [f"{', '.join(record.left)} left"] if record.left else []
    parts = record.parts
    return (
        f"{record.kind}: {'; '.join(moved)}; {workers_said(record.size)} from step {record.step} "
        f"on ({record.total_s:.2f} s in all, training stopped {parts.stop_s * 1000:.0f} ms)"
    )


def notable(event: Happened) -> bool:
    """Whether the event is worth a line at the terminal."""
    return event.what in NOTABLE


def event_line(event: Event | Happened) -> str:
    """One event in one line, as `edl events` prints it."""
    clock = ""
    if isinstance(event, Event):
        moment = time.localtime(event.time)
        clock = time.strftime("%H:%M:%S", moment) + f".{int(event.time % 1 * 1000):03d} "
    fields = " ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in event.fields.items()
        if value != ""
    )
    request = f" request={event.request_id}" if event.request_id else ""
    line = f"{clock}{event.what} gen={event.generation} step={event.step}{request} {fields}".strip()
    return _printable(line)


def _printable(text: str) -> str:
    """The text with control characters escaped: a requester chooses its request's id."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def brief_event_line(event: Happened) -> str:
    """One event in one line of the terminal where a job runs; `edl events` has every field."""
    if event.what == "adjust.complete":
        brief = {name: value for name, value in event.fields.items() if name in ADJUSTMENT}
        event = replace(event, fields=brief)
    return event_line(event)


def result_line(job: str, result: Result) -> str:
    line = f"job {job} {result.state}: {result.steps} steps in {duration_text(result.seconds)}"
    if result.adjustments:
        many = len(result.adjustments)
        line += f", {many} adjustment{'s' if many > 1 else ''}"
    if result.restarts:
        line += f", {result.restarts} restart{'s' if result.restarts > 1 else ''}"
    return f"{line} ({result.why})" if result.why else line


def told_failures(result: Result) -> tuple[Failure, ...]:
    """The first failure, and the second where both raised on one batch."""
    failures = result.failures or ((result.first_failure,) if result.first_failure else ())
    both = len(failures) > 1 and failures[0].step is not None
    both = both and failures[0].step == failures[1].step
    return failures[: 2 if both else 1]


def loss_lines(failures: Sequence[Failure]) -> Iterator[str]:
    """The workers that a job has lost and goes on without, the latest ones."""
    if len(failures) > LOSSES_SHOWN:
        yield f"{len(failures) - LOSSES_SHOWN} earlier losses: `edl events` has them all"
    for failure in failures[-LOSSES_SHOWN:]:
        step = "" if failure.step is None else f" at step {failure.step}"
        why = failure.error or failure.reason
        yield f"lost worker {failure.worker}{step}: {why}; log: {failure.log}"


def _colour(state: str) -> str:
    good, bad = {"training", "finished", "running"}, {"failed", "killed"}
    return "green" if state in good else "red" if state in bad else "yellow"


def duration_text(seconds: float) -> str:
    """A time in its two largest units."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    seconds = round(seconds)
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    hours = seconds % 86_400 // 3600
    return f"{seconds // 86_400:.0f} d" + (f" {hours:.0f} h" if hours else "")
