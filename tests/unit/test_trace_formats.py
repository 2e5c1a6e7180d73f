"""Traces of every format become the same jobs; the format is told by what is inside."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.trace import read_trace

STANDALONE = """\
application,batch_size,num_gpus,num_nodes,samples_per_sec,seconds_alone
bert,12,1,1,10,400
bert,12,2,1,20,200
bert,12,4,1,40,100
bert,12,4,4,20,150
"""


def read(
    tmp_path: Path, content: str | bytes, name: str = "a.csv", capacity: int | None = None
) -> Trace:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_trace(path, capacity=capacity)


def test_our_own_format_with_every_column(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "id,submit_s,gpus,duration_s,model,batch,min_gpus,max_gpus,elastic,user\n"
        "a,0,4,60.5,bert,64,2,8,true,ann\n"
        "b,1.5,1,10,,,,,no,\n",
    )
    assert trace == Trace(
        name="a",
        jobs=(
            TraceJob(
                id="a",
                submit_s=0.0,
                gpus=4,
                duration_s=60.5,
                model="bert",
                batch=64,
                min_gpus=2,
                max_gpus=8,
                user="ann",
            ),
            TraceJob(id="b", submit_s=1.5, gpus=1, duration_s=10.0, elastic=False),
        ),
    )


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "traces.md"
    [example] = re.findall(r"```\n(id,submit_s,.*?)```", page.read_text(), re.DOTALL)
    trace = read(tmp_path, example)
    assert [(job.id, job.gpus, job.elastic) for job in trace.jobs] == [
        ("night-run", 8, True),
        ("try-1", 1, True),
        ("try-2", 1, True),
        ("fixed", 4, False),
    ]
    assert not trace.notes


def test_columns_may_stand_in_any_order_with_spaces_and_capitals(tmp_path: Path) -> None:
    trace = read(tmp_path, "GPUs, Duration_s, id, submit_s\n\n 2, 30, one job, 0\n,,,\n\n")
    assert trace.jobs == (TraceJob(id="one job", submit_s=0.0, gpus=2, duration_s=30.0),)


def test_columns_that_mean_nothing_are_told(tmp_path: Path) -> None:
    trace = read(tmp_path, "id,submit_s,gpus,duration_s,max_gpu\na,0,1,1,8\n")
    assert trace.notes == ("columns that mean nothing here: max_gpu",)
    assert trace.jobs[0].max_gpus == 0


@pytest.mark.parametrize("word", ["true", "Yes", "1", ""])
def test_elastic_is_what_is_not_denied(tmp_path: Path, word: str) -> None:
    trace = read(tmp_path, f"id,submit_s,gpus,duration_s,elastic\na,0,1,1,{word}\nb,0,1,1,False\n")
    assert [job.elastic for job in trace.jobs] == [True, False]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_byte_order_marks_of_other_systems(
    tmp_path: Path, end: str, mark: bytes
) -> None:
    text = end.join(["id,submit_s,gpus,duration_s", "a,0,1,1", "b,2,1,1", ""])
    assert [job.submit_s for job in read(tmp_path, mark + text.encode()).jobs] == [0, 2]


@pytest.mark.parametrize("name", ["jobs.csv.gz", "jobs.csv", "jobs", "jobs.txt"])
@pytest.mark.parametrize("packed", [True, False])
def test_gzip_is_told_by_the_file_and_not_by_its_name(
    tmp_path: Path, name: str, packed: bool
) -> None:
    content = b"id,submit_s,gpus,duration_s\na,0,1,1\n"
    trace = read(tmp_path, gzip.compress(content) if packed else content, name)
    assert trace.name == "jobs"
    assert len(trace.jobs) == 1


def test_a_file_that_is_packed_in_two_pieces_is_one(tmp_path: Path) -> None:
    pieces = b"id,submit_s,gpus,duration_s\na,0,1,1\n", b"b,1,1,1\n"
    assert len(read(tmp_path, b"".join(map(gzip.compress, pieces))).jobs) == 2


def test_a_philly_csv(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "job_id,submit_time,timestamp,num_gpus,duration,gpu_time,vc\n"
        "0,0,2017-09-04 10:30:41,8,2240194,17921552,7f04ca\n"
        "1,235696,2017-09-07 03:58:57,1.0,12.25,12.25,6214e9\n",
    )
    assert trace.jobs == (
        TraceJob(id="0", submit_s=0.0, gpus=8, duration_s=2240194.0, user="7f04ca"),
        TraceJob(id="1", submit_s=235696.0, gpus=1, duration_s=12.25, user="6214e9"),
    )
    assert not trace.notes


def test_a_tiresias_trace(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
        "0,1,0,606,vgg19,164,30\n",
    )
    assert trace.jobs == (TraceJob(id="0", submit_s=0.0, gpus=1, duration_s=164.0, model="vgg19"),)


# -- Pollux ------------------------------------------------------------------------------------


def workload(gpus: object, batch: object = 12, application: str = "bert") -> str:
    return f"name,time,application,num_replicas,batch_size\nj,0,{application},{gpus},{batch}\n"


@pytest.mark.parametrize(
    ("gpus", "seconds", "measured"),
    [
        (1, 400.0, True),
        # Of the two placements the packed one.
        (4, 100.0, True),
        # Speed 3 / 400 lies halfway between 1 / 200 and 1 / 100.
        (3, 1 / (0.5 / 200 + 0.5 / 100), False),
        # Beyond what was measured nothing is promised.
        (64, 100.0, False),
        ("2.0", 200.0, True),
    ],
)
def test_a_pollux_job_takes_what_it_took_alone(
    tmp_path: Path, gpus: int, seconds: float, measured: bool
) -> None:
    (tmp_path / "standalone.csv").write_text(STANDALONE)
    trace = read(tmp_path, workload(gpus))
    assert trace.jobs == (
        TraceJob(
            id="j",
            submit_s=0.0,
            gpus=int(float(gpus)),
            duration_s=seconds,
            model="bert",
            batch=12,
        ),
    )
    assert trace.notes[0] == f"durations are those of {tmp_path / 'standalone.csv'}"
    assert len(trace.notes) == (1 if measured else 2)


def test_below_the_measured_numbers_the_nearest_counts(tmp_path: Path) -> None:
    lines = STANDALONE.splitlines(keepends=True)
    (tmp_path / "standalone.csv").write_text("".join(lines[:1] + lines[2:]))
    assert read(tmp_path, workload(1)).jobs[0].duration_s == 200


def test_the_times_alone_may_lie_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "times").write_text(STANDALONE)
    (tmp_path / "a.csv").write_text(workload(2))
    trace = read_trace(tmp_path / "a.csv", standalone=tmp_path / "times")
    assert trace.jobs[0].duration_s == 200
    with pytest.raises(UsageError, match=r"a\.csv: a Pollux workload does not say how long"):
        read_trace(tmp_path / "a.csv")
    with pytest.raises(UsageError, match="there is no such file"):
        read_trace(tmp_path / "a.csv", standalone=tmp_path / "absent")


def test_a_pollux_job_that_nobody_measured_is_refused(tmp_path: Path) -> None:
    (tmp_path / "standalone.csv").write_text(STANDALONE)
    with pytest.raises(UsageError, match=r"a\.csv:2: 'bert' with batch 13 was not measured; exp"):
        read(tmp_path, workload(1, 13))
    with pytest.raises(UsageError, match=r"a\.csv:2: 'gpt' with batch 12 was not measured"):
        read(tmp_path, workload(1, 12, "gpt"))
    with pytest.raises(UsageError, match=r"a\.csv:2: batch_size is ''; expected a whole number"):
        read(tmp_path, workload(1, ""))
    with pytest.raises(UsageError, match=r"a\.csv:2: num_replicas is '1\.5'; expected a whole"):
        read(tmp_path, workload(1.5))


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", ""])
def test_times_alone_that_are_no_times(tmp_path: Path, seconds: str) -> None:
    (tmp_path / "standalone.csv").write_text(STANDALONE + f"bert,12,8,2,20,{seconds}\n")
    with pytest.raises(UsageError, match=r"standalone\.csv:6: seconds_alone is '.*'; expected a n"):
        read(tmp_path, workload(1))


# -- what every format has in common -----------------------------------------------------------


def test_jobs_are_sorted_and_the_first_comes_at_zero(tmp_path: Path) -> None:
    trace = read(
        tmp_path, "id,submit_s,gpus,duration_s\na,12,1,1\nb,10,1,1\nc,12,1,1\nd,10.5,1,1\n"
    )
    assert [(job.id, job.submit_s) for job in trace.jobs] == [
        ("b", 0.0),
        ("d", 0.5),
        ("a", 2.0),
        ("c", 2.0),
    ]
    assert trace.notes == (
        "sorted by submission: 2 jobs stood behind a later one",
        "the first submission, at 10 s, is now at 0, the others likewise",
    )


def test_times_before_zero_are_times(tmp_path: Path) -> None:
    trace = read(tmp_path, "id,submit_s,gpus,duration_s\na,-10,1,1\nb,0,1,1\n")
    assert [job.submit_s for job in trace.jobs] == [0, 10]


def test_jobs_larger_than_the_cluster_are_left_out(tmp_path: Path) -> None:
    text = "id,submit_s,gpus,duration_s\na,0,9,1\nb,1,8,1\nc,2,10,1\n"
    assert read(tmp_path, text).skipped == {}
    trace = read(tmp_path, text, capacity=8)
    assert [job.id for job in trace.jobs] == ["b"]
    assert trace.skipped == {"larger than the cluster of 8 GPUs": 2}
    with pytest.raises(UsageError, match=r"no job is left of 3: 3 larger than the cluster of 7"):
        read(tmp_path, text, capacity=7)
    with pytest.raises(UsageError, match="the capacity is 0 GPUs; at least 1 is needed"):
        read(tmp_path, text, capacity=0)


def test_what_real_traces_lack_is_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "job_id,submit_time,num_gpus,duration\n"
        "kept,5,1,1\n"
        "1,5,1,\n"
        "2,5,1,None\n"
        "3,5,1, null \n"
        "4,5,1,0\n"
        "5,5,1,0.0\n"
        "6,,1,1\n"
        "7,5,0,1\n"
        "8,5,None,1\n",
    )
    assert [job.id for job in trace.jobs] == ["kept"]
    assert trace.skipped == {
        "without a duration": 3,
        "of zero duration": 2,
        "without a submission time": 1,
        "without GPUs": 2,
    }


def test_a_trace_of_which_nothing_is_left(tmp_path: Path) -> None:
    text = "id,submit_s,gpus,duration_s\na,0,1,\nb,0,1,0\n"
    with pytest.raises(
        UsageError, match="no job is left of 2: 1 without a duration, 1 of zero duration"
    ):
        read(tmp_path, text)
