"""Commands about a job that runs or has run: parse, call the client, print."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.console import Console

from edl.cli.say import say
from edl.cli.table import (
    adjustment_line,
    event_line,
    jobs_table,
    lasting_fields,
    lasting_line,
    loss_lines,
    result_line,
    slot_name,
    slots_text,
    status_fields,
    status_view,
    store_line,
    told_failures,
    transient_line,
)
from edl.client import Job, parse_slots
from edl.errors import EdlError, UsageError
from edl.launch.jobs import JobFolder, all_jobs
from edl.launch.seen import Seen
from edl.launch.slot_locks import HeldSlot, Holder, directory_of, held_slots
from edl.protocol.messages import AdjustmentRecord

__all__ = ["events", "logs", "migrate", "ps", "scale_in", "scale_out", "status", "stop"]

PS_TIMEOUT_S = 1.0
# So many workers a core may be meant, such as ones that mostly wait; more is rather a slip.
CROWD = 4


def ps(options: argparse.Namespace) -> int:
    held = held_slots(directory_of(os.environ))
    rows = []
    for folder in all_jobs(earlier=options.all):
        row = _row(folder)
        if row is not None:
            # A job that starts has slots before it has members that could name them.
            row["slots"] = row["slots"] or _slots_of(held, row)
            rows.append(row)
    rows.sort(key=lambda row: (not row["running"], -float(str(row["created"]))))
    if options.json:
        _print_json(rows)
    elif rows:
        _console().print(jobs_table(rows))
    else:
        print("no jobs; start one with `edl run SCRIPT`")
    if not options.json:
        _print_others(held, rows)
    return 0


def _slots_of(held: Sequence[HeldSlot], row: Mapping[str, object]) -> list[str]:
    mine = (row["job"], row["pid"])
    return [slot_name(each.slot) for each in held if (each.holder.job, each.holder.pid) == mine]


def _print_others(held: Sequence[HeldSlot], rows: Sequence[Mapping[str, object]]) -> None:
    """Slots of this machine that jobs hold which are not in the table: other users' jobs."""
    listed = {(row["job"], row["pid"]) for row in rows}
    others: dict[Holder, list[str]] = {}
    for each in held:
        if (each.holder.job, each.holder.pid) not in listed:
            others.setdefault(each.holder, []).append(slot_name(each.slot))
    for holder, slots in others.items():
        print(f"also in use: {slots_text(slots)} by {holder}")


def status(options: argparse.Namespace) -> int:
    job = Job(options.job)
    now = job.status()
    result = None if job.running() else job.result()
    restarts, noted, lent = job.restarts(), job.checkpoint(), job.transients()
    waiting = job.waiting()
    silent_s, failures = job.store_silence(), job.failures()
    if options.json:
        fields = {
            **status_fields(job.name, now),
            **lasting_fields(restarts, noted),
            "transient": {worker: round(left, 1) for worker, left in lent.items()},
            "waiting": waiting,
            "failures": [asdict(each) for each in failures],
            "store_silent_s": None if silent_s is None else round(silent_s, 1),
        }
        if result is not None:
            fields["result"] = asdict(result)
        _print_json(fields)
        return 0
    lasting = lasting_line(restarts, noted)
    if result is None:
        _console().print(status_view(job.name, now))
        if silent_s is not None:
            print(store_line(job.store, silent_s, now.state))
    else:
        print(result_line(job.name, result))
    if waiting:
        print(waiting)
    if lasting:
        print(lasting)
    if lent:
        print(transient_line(lent))
    if result is None or result.first_failure is None:
        for line in loss_lines(failures):
            print(line)
    if result is None:
        return 0
    for failure in told_failures(result) if result.first_failure else ():
        order = "first failure" if failure == result.first_failure else "then"
        print(f"{order}: worker {failure.worker}, {failure.reason}; log: {failure.log}")
        print(failure.traceback.rstrip())
    return 0


def logs(options: argparse.Namespace) -> int:
    for line in Job(options.job).logs(options.worker, follow=options.follow):
        print(line, flush=options.follow)
    return 0


def events(options: argparse.Namespace) -> int:
    known = False
    for event in Job(options.job).events(options.since, follow=options.follow):
        if options.request and event.request_id != options.request:
            continue
        known = True
        print(json.dumps(asdict(event)) if options.json else event_line(event), flush=True)
    if options.request and not known:
        raise UsageError(
            f"job {options.job} tells nothing of request {options.request}; `edl events "
            f"{options.job}` shows what it tells"
        )
    return 0


def scale_out(options: argparse.Namespace) -> int:
    job = Job(options.job, timeout_s=options.timeout)
    wish = options.add if options.add is not None else parse_slots(options.gpus)
    options.request_id = options.request_id or secrets.token_hex(4)
    _warn_of_crowding(job, wish if isinstance(wish, int) else len(wish))
    record = job.scale_out(
        wish,
        for_s=options.for_s,
        wait=not options.no_wait,
        request_id=options.request_id,
        progress=say,
    )
    return _print_adjustment(options, record)


def scale_in(options: argparse.Namespace) -> int:
    job = Job(options.job, timeout_s=options.timeout)
    wish: int | list[str]
    if options.remove is not None:
        wish = options.remove
    elif options.workers is not None:
        wish = _worker_ids(options.workers, instead="--gpus")
    else:
        wish = [str(slot) for slot in parse_slots(options.gpus)]
    options.request_id = options.request_id or secrets.token_hex(4)
    record = job.scale_in(
        wish, wait=not options.no_wait, request_id=options.request_id, progress=say
    )
    return _print_adjustment(options, record)


def migrate(options: argparse.Namespace) -> int:
    job = Job(options.job, timeout_s=options.timeout)
    if options.workers is not None:
        leave = _worker_ids(options.workers, instead="--from")
    else:
        leave = [str(slot) for slot in parse_slots(options.leave)]
    wish = options.add if options.add is not None else parse_slots(options.to)
    options.request_id = options.request_id or secrets.token_hex(4)
    record = job.migrate(
        leave, wish, wait=not options.no_wait, request_id=options.request_id, progress=say
    )
    return _print_adjustment(options, record)


def _worker_ids(text: str, *, instead: str) -> list[str]:
    ids = [name.strip() for name in text.split(",") if name.strip()]
    slots = [name for name in ids if ":" in name]
    if slots:
        raise UsageError(f"--workers takes ids such as w1, not {slots[0]!r}; see {instead}")
    return ids


def stop(options: argparse.Namespace) -> int:
    job = Job(options.job, timeout_s=options.timeout)
    result = job.stop(options.force, wait=not options.no_wait)
    if options.json:
        stopping: dict[str, object] = {"job": job.name, "state": "stopping"}
        _print_json({"job": job.name, **asdict(result)} if result else stopping)
    else:
        print(result_line(job.name, result) if result else f"job {job.name} is stopping")
    return 0


def _warn_of_crowding(job: Job, more: int) -> None:
    """Where there are no GPUs nothing limits the number of workers, but all share the cores."""
    try:
        workers = sum(worker.rank >= 0 for worker in job.status().workers) + more
    except EdlError:
        return  # whatever is wrong, the request itself tells
    cores = len(os.sched_getaffinity(0))
    if workers > CROWD * cores:
        print(
            f"edl: {workers} workers will share {cores} cores, and slow each other",
            file=sys.stderr,
        )


def _print_adjustment(options: argparse.Namespace, record: AdjustmentRecord | None) -> int:
    if options.json:
        accepted = {"accepted": True, "request_id": options.request_id}
        _print_json(asdict(record) if record else accepted)
    else:
        print(adjustment_line(record) if record else f"accepted (request {options.request_id})")
    return 0


def _row(folder: JobFolder) -> dict[str, object] | None:
    """One job in `edl ps`; a job that does not answer is still listed."""
    try:
        info, running = folder.info(), folder.running()
    except UsageError as error:
        print(f"edl: {error}", file=sys.stderr)
        return None
    row: dict[str, object] = {
        "job": folder.name,
        "state": "running" if running else "unknown",
        "running": running,
        "workers": info.workers,
        "slots": [],
        "store_silent_s": None,
        "step": 0,
        "created": info.created,
        "pid": info.pid,
        "script": info.script,
    }
    try:
        job = Job(folder.name, timeout_s=PS_TIMEOUT_S)
        now = job.status()
        silent_s = job.store_silence()
    except EdlError as error:
        print(f"edl: job {folder.name} does not answer: {error}", file=sys.stderr)
        return row
    members = sum(worker.rank >= 0 for worker in now.workers)
    if not running:
        members = Seen.read(folder).workers
    row["workers"] = members or row["workers"]
    row["slots"] = [worker.slot for worker in now.workers if worker.slot]
    row["state"], row["step"] = now.state, now.step
    if silent_s is not None:
        row["store_silent_s"] = round(silent_s, 1)
        print(
            f"edl: job {folder.name}: {store_line(info.store, silent_s, now.state)}",
            file=sys.stderr,
        )
    return row


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def _console() -> Console:
    # Not narrower than a job's line: a pipe has no width of its own.
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=160)
