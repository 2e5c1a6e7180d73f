"""The public log of the Philly cluster, as JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.trace import read_trace

DETAIL = [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu3"]}]


def attempt(begin: str | None, end: str | None, detail: Any = DETAIL) -> dict[str, Any]:
    """On one day, if only the time of day is given."""
    times = [f"2017-10-09 {time}" if time and len(time) == 8 else time for time in (begin, end)]
    return {"start_time": times[0], "end_time": times[1], "detail": detail}


def job(name: str, *attempts: Any, **changes: Any) -> dict[str, Any]:
    return {
        "status": "Killed",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": "2017-10-09 07:00:00",
        "user": "ce2f4c",
    } | changes


def read(tmp_path: Path, *jobs: Any) -> Trace:
    path = tmp_path / "cluster_job_log"
    path.write_text(json.dumps(jobs, indent=1))
    return read_trace(path)


def test_a_job_is_the_sum_of_its_attempts(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        job(
            "a",
            attempt("07:00:10", "07:01:10"),
            attempt("07:02:00", "None"),
            attempt(None, "07:30:00"),
            attempt("2017-10-09 23:59:59", "2017-10-10 00:00:01", []),
        ),
        job("b", attempt("08:00:00", "08:00:05"), submitted_time="2017-10-09 07:30:00", user=None),
    )
    assert trace == Trace(
        name="cluster_job_log",
        jobs=(
            TraceJob(id="a", submit_s=0.0, gpus=3, duration_s=62.0, user="ce2f4c"),
            TraceJob(id="b", submit_s=1800.0, gpus=3, duration_s=5.0, user="ee9e8c"),
        ),
        notes=("the first submission, at 1507532400 s, is now at 0, the others likewise",),
    )


def test_jobs_that_never_ran_are_left_out_and_counted(tmp_path: Path) -> None:
    whole = attempt("08:00:00", "08:00:05")
    trace = read(
        tmp_path,
        job("kept", whole),
        job("1"),
        job("2", whole, submitted_time="None"),
        job("3", whole, submitted_time=None),
        job("4", attempt("08:00:00", "None"), attempt("None", "None")),
        job("5", attempt("08:00:00", "08:00:05", []), whole),
        job("6", attempt("08:00:00", "08:00:05", None)),
        job("7", attempt("08:00:00", "08:00:05", [{"ip": "m1", "gpus": []}])),
        job("8", attempt("08:00:00", "08:00:00")),
    )
    assert [each.id for each in trace.jobs] == ["kept"]
    assert trace.skipped == {
        "without attempts": 1,
        "without a submission time": 2,
        "without a duration": 1,
        "without GPUs": 3,
        "of zero duration": 1,
    }


def test_attempts_that_run_backwards_are_told(tmp_path: Path) -> None:
    backward = attempt("08:00:05", "08:00:00")
    trace = read(tmp_path, job("a", backward, attempt("08:00:00", "08:00:05")), job("b", backward))
    assert [(each.id, each.duration_s) for each in trace.jobs] == [("a", 5.0)]
    assert trace.skipped == {"without a duration": 1}
    assert trace.notes[0] == "attempts that end before they start, left out: 2"


def test_a_log_may_be_packed(tmp_path: Path) -> None:
    path = tmp_path / "log.json.gz"
    path.write_bytes(
        gzip.compress(json.dumps([job("a", attempt("08:00:00", "08:00:05"))]).encode())
    )
    assert read_trace(path).name == "log"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (7, "it is 7; expected an object with jobid and attempts"),
        (job("a", attempt("08:00:00", "08:00:05")), "jobid 'a' is that of job 1 too"),
        (job(""), "jobid is ''; expected a text"),
        (job("b", jobid=None), "jobid is None; expected a text"),
        (job("b", attempts=None), "attempts is None; expected a list"),
        (job("b", 5), "an attempt is 5; expected its times and its detail"),
        (job("b", attempt("8 o'clock", None)), 'start_time is "8 o\'clock"; expected YYYY-MM-DD'),
        (job("b", attempt(None, "2017-10-09 25:00:00")), "end_time is '2017-10-09 25:00:00'; exp"),
        (job("b", submitted_time=12), "submitted_time is 12; expected YYYY-MM-DD HH:MM:SS, or N"),
        (job("b", attempt(None, None, 5)), "detail is 5; expected a list of ip and gpus"),
        (job("b", attempt(None, None, [{"ip": "m"}])), "detail is [{'ip': 'm'}]; expected a list"),
        (job("b", attempts="x" * 99), f"attempts is '{'x' * 56}...; expected a list"),
    ],
)
def test_a_job_that_is_not_what_the_log_has(tmp_path: Path, broken: Any, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, job("a", attempt("08:00:00", "08:00:05")), broken)
    lines = (tmp_path / "cluster_job_log").read_text().splitlines()
    line = next(n for n, text in enumerate(lines, start=1) if n > 2 and text[:2] in (" {", " 7"))
    place = f"{tmp_path / 'cluster_job_log'}:{line}: job 2 of the list: "
    assert str(error.value).startswith(place + said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[\n{"jobid": "a",\n', r":3: broken JSON: .* \(column 1\); is it complete\?"),
        ("[1 2]", r":1: broken JSON: "),
        ("[]", r": the list of jobs is empty"),
        (
            '{"jobs": []}',
            r":1: the JSON is no list; expected a list of jobs, as in cluster_job_log",
        ),
        ("[" * 100_000, r"broken JSON: "),
        (f"[{'9' * 5000}]", r": broken JSON: "),
    ],
)
def test_json_that_is_no_log(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_trace(tmp_path / "log")
