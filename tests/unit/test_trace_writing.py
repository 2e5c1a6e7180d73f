"""What is written as a trace is read again as it was."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.simulator.jobs import Trace, TraceJob
from edl.simulator.trace import read_trace, write_trace

# What separates cells, lines and words anywhere.
TEXTS = st.text(st.sampled_from("aZ0 ,;\"'\n\r\t\f\x85\u2028\ufeff#ä語🙂"), max_size=6)
SECONDS = st.floats(min_value=0, max_value=1e9)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    names = draw(st.lists(TEXTS.filter(bool), min_size=1, max_size=4, unique=True))
    jobs = []
    for name, submit_s in zip(
        names, sorted([0.0, *(draw(SECONDS) for _ in names[1:])]), strict=True
    ):
        gpus = draw(st.integers(1, 2000))
        job = TraceJob(
            id=name,
            submit_s=submit_s,
            gpus=gpus,
            duration_s=draw(SECONDS.filter(bool)),
            model=draw(TEXTS),
            batch=draw(st.integers(0, 10**6)),
            min_gpus=draw(st.integers(1, gpus)),
            max_gpus=draw(st.just(0) | st.integers(gpus, 4000)),
            elastic=draw(st.booleans()),
            user=draw(TEXTS),
        )
        jobs.append(job)
    return Trace(name="a", jobs=tuple(jobs))


@settings(max_examples=20, deadline=None)
@given(trace=traces(), packed=st.booleans())
def test_a_trace_survives_being_written(
    trace: Trace, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / ("a.csv.gz" if packed else "a.csv")
    write_trace(path, trace)
    assert read_trace(path) == trace


def test_a_trace_is_written_for_people_to_read(tmp_path: Path) -> None:
    jobs = (
        TraceJob(id="a", submit_s=0.0, gpus=1, duration_s=0.1),
        TraceJob(id='b, the "2nd"', submit_s=90.0, gpus=8, duration_s=1e6, user=" x"),
    )
    write_trace(tmp_path / "a.csv", Trace(name="a", jobs=jobs))
    assert (tmp_path / "a.csv").read_text() == (
        'id,submit_s,gpus,duration_s,user\na,0,1,0.1,\n"b, the ""2nd""",90,8,1000000," x"\n'
    )


def test_columns_that_say_nothing_are_not_written(tmp_path: Path) -> None:
    job = TraceJob(id="a", submit_s=0.0, gpus=1, duration_s=1.0)
    write_trace(tmp_path / "a", Trace(name="a", jobs=(job,)))
    assert (tmp_path / "a").read_text().startswith("id,submit_s,gpus,duration_s\n")


def test_equal_traces_are_equal_files(tmp_path: Path) -> None:
    trace = Trace(name="a", jobs=(TraceJob(id="a", submit_s=0.0, gpus=1, duration_s=1.0),))
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(tmp_path / name, trace)
    packed = (tmp_path / "a.csv.gz").read_bytes()
    assert packed == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress(packed) == b"id,submit_s,gpus,duration_s\na,0,1,1\n"


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_names_that_are_no_text_are_refused(tmp_path: Path, name: str) -> None:
    trace = Trace(name="a", jobs=(TraceJob(id=name, submit_s=0.0, gpus=1, duration_s=1.0),))
    with pytest.raises(UsageError, match=r"a\.csv cannot be written: '.*' in a name is no text"):
        write_trace(tmp_path / "a.csv", trace)
    assert not (tmp_path / "a.csv").exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    trace = Trace(name="a", jobs=(TraceJob(id="a", submit_s=0.0, gpus=1, duration_s=1.0),))
    with pytest.raises(UsageError, match=r"cannot be written: No such file or directory"):
        write_trace(tmp_path / "absent" / "a.csv", trace)
    with pytest.raises(UsageError, match=r"cannot be written: Is a directory"):
        write_trace(tmp_path, trace)
