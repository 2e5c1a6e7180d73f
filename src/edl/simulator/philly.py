"""The public log of Microsoft's Philly cluster, `cluster_job_log`: one JSON list of jobs.

A job ran in attempts, each with its times and its GPUs by machine. Its duration is the sum of those
that have both times; its GPUs are those of the first attempt. Jobs of every status count, for a
failed one held its GPUs as well.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from edl.errors import UsageError
from edl.simulator.jobs import TraceJob
from edl.simulator.trace_csv import NO_DURATION, NO_GPUS, NO_SUBMISSION, ZERO
from edl.simulator.trace_file import Found, blame, is_missing

__all__ = ["NO_ATTEMPTS", "read_philly"]

NO_ATTEMPTS = "without attempts"
FORM = "YYYY-MM-DD HH:MM:SS"


class Fault(Exception):
    """What is wrong with one job; whoever knows its line says the rest."""


def read_philly(path: str, text: str) -> Found:
    """Jobs in the file's order, with seconds since 1970."""
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise blame(
            path, error.lineno, f"broken JSON: {error.msg} (column {error.colno}); is it complete?"
        ) from None
    except (RecursionError, ValueError) as error:
        raise UsageError(f"{path}: broken JSON: {error}") from None
    if not isinstance(entries, list):
        raise blame(path, 1, "the JSON is no list; expected a list of jobs, as in cluster_job_log")
    if not entries:
        raise UsageError(f"{path}: the list of jobs is empty")
    found, backward = Found(), 0
    seen: dict[str, int] = {}
    for place, entry in enumerate(entries):
        try:
            job_id = _text(entry, "jobid")
            if seen.setdefault(job_id, place) != place:
                raise Fault(f"jobid {job_id!r} is that of job {seen[job_id] + 1} too; expected one")
            job, reversed_attempts = _read_job(job_id, entry)
        except Fault as fault:
            line = _line_of(text, place)
            raise blame(path, line, f"job {place + 1} of the list: {fault}") from None
        backward += reversed_attempts
        if isinstance(job, str):
            found.skipped[job] += 1
        else:
            found.jobs.append(job)
    if backward:
        found.notes.append(f"attempts that end before they start, left out: {backward}")
    return found


def _read_job(job_id: str, entry: dict[str, Any]) -> tuple[TraceJob | str, int]:
    """The job, or the reason to leave it out; and how many of its attempts run backwards."""
    submit_s = _seconds(entry, "submitted_time")
    attempts = entry.get("attempts")
    if not isinstance(attempts, list):
        raise Fault(f"attempts is {_short(attempts)}; expected a list")
    if not attempts:
        return NO_ATTEMPTS, 0
    duration_s, timed, backward = 0.0, False, 0
    for attempt in attempts:
        if not isinstance(attempt, dict):
            raise Fault(f"an attempt is {_short(attempt)}; expected its times and its detail")
        start_s, end_s = _seconds(attempt, "start_time"), _seconds(attempt, "end_time")
        if start_s is None or end_s is None:
            continue
        if end_s < start_s:
            backward += 1
            continue
        duration_s, timed = duration_s + end_s - start_s, True
    gpus = _gpus(attempts[0].get("detail"))
    if submit_s is None:
        return NO_SUBMISSION, backward
    if not gpus:
        return NO_GPUS, backward
    if not duration_s:
        return (ZERO if timed else NO_DURATION), backward
    user = str(entry.get("user") or entry.get("vc") or "")
    job = TraceJob(id=job_id, submit_s=submit_s, gpus=gpus, duration_s=duration_s, user=user)
    return job, backward


def _gpus(detail: Any) -> int:
    """Of all machines of an attempt. One that never got a machine has none."""
    if detail is None:
        return 0
    try:
        return sum(len(machine["gpus"]) for machine in detail)
    except (KeyError, TypeError, IndexError):
        raise Fault(f"detail is {_short(detail)}; expected a list of ip and gpus") from None


def _text(entry: object, name: str) -> str:
    if not isinstance(entry, dict):
        raise Fault(f"it is {_short(entry)}; expected an object with jobid and attempts")
    text = entry.get(name)
    if not isinstance(text, str) or not text:
        raise Fault(f"{name} is {_short(text)}; expected a text")
    return text


def _seconds(entry: dict[str, Any], name: str) -> float | None:
    """The log names no zone; all its times are of one."""
    text = entry.get(name)
    if text is None or (isinstance(text, str) and is_missing(text)):
        return None
    try:
        if len(text) == len(FORM):
            return datetime.fromisoformat(text + "+00:00").timestamp()
    except (TypeError, ValueError):
        pass
    raise Fault(f"{name} is {_short(text)}; expected {FORM}, or None where it is not known")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _line_of(text: str, place: int) -> int:
    """Of a job in the list. Sought again, for only errors want it."""
    decoder, end = json.JSONDecoder(), text.index("[") + 1
    begin = end
    for _ in range(place + 1):
        begin = end
        while text[begin] in " \t\r\n,":
            begin += 1
        _, end = decoder.raw_decode(text, begin)
    return text.count("\n", 0, begin) + 1
