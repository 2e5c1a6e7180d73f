"""`edl clean`: remove the folders of jobs that are over."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from edl.cli.table import duration_text
from edl.errors import Refused, UsageError
from edl.launch.cleaning import EndedJob, ended_jobs, named_jobs, remove_job, remove_leftovers

__all__ = ["clean"]


def clean(options: argparse.Namespace) -> int:
    """0 if everything that was asked for is removed, 1 if something is not."""
    running = 0
    if options.jobs:
        found = named_jobs(options.jobs)
    else:
        found, busy, kept = ended_jobs()
        running = len(busy)
        for why in kept:
            print(f"edl: {why}", file=sys.stderr)
    if options.older_than is not None:
        found = [job for job in found if job.age_s > options.older_than]
    found.sort(key=lambda job: job.folder.name)
    if not options.dry_run:
        remove_leftovers()
    if found and not options.dry_run and not options.yes and not _confirmed(found):
        print("edl: nothing is removed", file=sys.stderr)
        return 1
    removed = [] if options.dry_run else [job for job in found if _removed(job)]
    if options.json:
        print(json.dumps([_fields(job, job in removed) for job in found], indent=2))
    elif not found:
        print(_nothing(options.older_than))
    else:
        verb = "would remove" if options.dry_run else "removed"
        for job in found if options.dry_run else removed:
            print(f"{verb} {_line(job)}")
        _print_sum(found if options.dry_run else removed, running, dry_run=options.dry_run)
    return 0 if options.dry_run or len(removed) == len(found) else 1


def _confirmed(found: Sequence[EndedJob]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{_sum(found)} to remove, and no terminal to ask at; give --yes, or --dry-run to see "
            "which"
        )
    for job in found:
        print(_line(job), file=sys.stderr)
    print(f"remove {_sum(found)}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _removed(job: EndedJob) -> bool:
    try:
        remove_job(job.folder)
    except (Refused, OSError) as error:
        print(f"edl: job {job.folder.name} is not removed: {error}", file=sys.stderr)
        return False
    return True


def _nothing(older_than: float | None) -> str:
    if older_than is None:
        return "no job is over; there is nothing to remove"
    return f"no job ended more than {duration_text(older_than)} ago; there is nothing to remove"


def _line(job: EndedJob) -> str:
    age = f"{duration_text(job.age_s)} ago"
    return f"{job.folder.name} ({job.state}, {age}, {_size_text(job.size)}): {job.folder.path}"


def _print_sum(jobs: Sequence[EndedJob], running: int, *, dry_run: bool) -> None:
    many = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    size = _size_text(sum(job.size for job in jobs))
    line = f"{many} would be removed, {size}" if dry_run else f"{many} removed, {size}"
    if running:
        line += f"; {running} running job{'' if running == 1 else 's'} kept"
    print(line)


def _sum(jobs: Sequence[EndedJob]) -> str:
    many = f"{len(jobs)} job{'' if len(jobs) == 1 else 's'}"
    return f"{many}, {_size_text(sum(job.size for job in jobs))},"


def _size_text(size: int) -> str:
    if size < 1_000_000:
        return f"{size / 1000:.1f} kB"
    return f"{size / 1e6:.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


def _fields(job: EndedJob, removed: bool) -> dict[str, object]:
    return {
        "job": job.folder.name,
        "state": job.state,
        "path": str(job.folder.path),
        "age_s": round(job.age_s, 1),
        "bytes": job.size,
        "removed": removed,
    }
