"""Files that are no trace, or a broken one, are refused with their line."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.simulator.trace import read_trace

HEADER = "id,submit_s,gpus,duration_s"
SHORT = f"{HEADER}\na,0,1,1\n"


def refused(tmp_path: Path, content: str | bytes, name: str = "a.csv") -> str:
    """What is said, with the folder taken off."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UsageError) as error:
        read_trace(path)
    return str(error.value).removeprefix(f"{tmp_path}{os.sep}")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("b,0,1,abc", "duration_s is 'abc'; expected a number of seconds, 0 or more"),
        ("b,0,1,1_000", "duration_s is '1_000'; expected a number of seconds, 0 or more"),
        ("b,0,1_0,5", "gpus is '1_0'; expected a whole number, 0 or more"),
        ("b,0,1,-1", "duration_s is '-1'; expected a number of seconds, 0 or more"),
        ("b,0,1,nan", "duration_s is 'nan'; expected a number of seconds, 0 or more"),
        ("b,0,1,inf", "duration_s is 'inf'; expected a number of seconds, 0 or more"),
        ("b,0,1,1e999", "duration_s is '1e999'; expected a number of seconds, 0 or more"),
        (
            "b,0,1,2e9",
            "duration_s is '2e9'; expected a number of seconds, 1e+09 (32 years) at the most",
        ),
        ("b,2e12,1,1", "submit_s is '2e12'; expected a number of seconds, 1e+12 at the most"),
        ("b,0,1,12 s", "duration_s is '12 s'; expected a number of seconds, 0 or more"),
        ("b,x,1,1", "submit_s is 'x'; expected a number of seconds"),
        ("b,nan,1,1", "submit_s is 'nan'; expected a number of seconds"),
        ("b,-inf,1,1", "submit_s is '-inf'; expected a number of seconds"),
        ("b,0,-1,1", "gpus is '-1'; expected a whole number, 0 or more"),
        ("b,0,1.5,1", "gpus is '1.5'; expected a whole number, 0 or more"),
        ("b,0,two,1", "gpus is 'two'; expected a whole number, 0 or more"),
        ("b,0,inf,1", "gpus is 'inf'; expected a whole number, 0 or more"),
        ("a,0,1,1", "id 'a' is line 2's too"),
        ("a,0,1,", "id 'a' is line 2's too"),
        (",0,1,1", "id is empty; expected a name for the job"),
        ("b,0,1", "cells: 3, columns of the header: 4; expected as many"),
        ("b,0,1,1,", "cells: 5, columns of the header: 4; expected as many"),
        ('"b,0,1,1', "this is no CSV: unexpected end of data; docs/traces.md tells what is"),
        ('"b"x,0,1,1', "this is no CSV: ',' expected after '\"'; docs/traces.md tells what is"),
    ],
)
def test_a_row_that_cannot_be_true(tmp_path: Path, row: str, said: str) -> None:
    assert refused(tmp_path, f"{SHORT}{row}\n").startswith(f"a.csv:3: {said}")


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("min_gpus", "0", "min_gpus is '0'; expected a whole number, 1 or more"),
        ("min_gpus", "3", "min_gpus is 3; expected 2 (gpus) or fewer"),
        ("max_gpus", "1", "max_gpus is 1; expected 2 (gpus) or more, or 0"),
        ("max_gpus", "-1", "max_gpus is '-1'; expected a whole number, 0 or more"),
        ("batch", "x", "batch is 'x'; expected a whole number, 0 or more"),
        ("elastic", "maybe", "elastic is 'maybe'; expected true or false"),
    ],
)
def test_an_optional_value_that_cannot_be_true(
    tmp_path: Path, column: str, value: str, said: str
) -> None:
    assert refused(tmp_path, f"{HEADER},{column}\na,0,2,1,{value}\n") == f"a.csv:2: {said}"


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    assert refused(tmp_path, f'\n{HEADER}\n\n"a\nb",0,1,1\n\nc,0,1,x\n').startswith("a.csv:7: ")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("id,submit_s,gpus", "missing columns: duration_s; EDL's own format has id, submit_s, "),
        ("job_id,submit_time,duration", "missing columns: num_gpus; a Philly CSV has job_id, "),
        ("job_id,submit_time,num_gpu", "missing columns: duration; a Tiresias trace has job_id, "),
        ("name,time,application", "missing columns: num_replicas, batch_size; a Pollux workload "),
        ("id,submit_s,gpus,gpus,duration_s", "column 'gpus' is there twice; name each once"),
        ("id;submit_s;gpus;duration_s", "no trace has the columns 'id;submit_s;gpus;duration_s'; "),
        ("duration", "no trace has the columns 'duration'; expected, with commas between them, "),
        ("a text", "no trace has the columns 'a text'; "),
    ],
)
def test_headers_that_are_no_traces(tmp_path: Path, header: str, said: str) -> None:
    assert refused(tmp_path, f"{header}\n1,2,3\n").startswith(f"a.csv:1: {said}")


def test_missing_columns_are_told_with_those_that_are_there(tmp_path: Path) -> None:
    assert refused(tmp_path, "job_id,submit_time,duration\n0,0,1\n") == (
        "a.csv:1: missing columns: num_gpus; a Philly CSV has job_id, submit_time, num_gpus, "
        "duration, and this file job_id, submit_time, duration"
    )


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", gzip.compress(b"", mtime=0), b"\xef\xbb\xbf", b",,\n"]
)
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    assert refused(tmp_path, content) == "a.csv: the file is empty; see docs/traces.md"


@pytest.mark.parametrize("rest", ["", "\n", "\n\n\n", "\n,,,\n"])
def test_a_header_alone(tmp_path: Path, rest: str) -> None:
    said = "a.csv: there is a header and not a single job under it"
    assert refused(tmp_path, HEADER + rest) == said


def test_no_text(tmp_path: Path) -> None:
    assert refused(tmp_path, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR") == (
        "a.csv:3: a zero byte: this is no text; a trace is CSV or JSON"
    )
    assert refused(tmp_path, b"\x80\x81\x82") == (
        "a.csv:1: the byte 0x80 is not UTF-8; save the file as UTF-8"
    )


def test_text_in_another_encoding(tmp_path: Path) -> None:
    text = f"{SHORT}b\xe4r,0,1,1\n"
    said = "a.csv:3: the byte 0xe4 is not UTF-8; save the file as UTF-8"
    assert refused(tmp_path, text.encode("latin-1")) == said
    said = "a.csv:1: the text is UTF-16; save it as UTF-8"
    assert refused(tmp_path, text.encode("utf-16")) == said


def test_a_gzip_file_that_is_cut_off(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n * n * 7919 % 10007},1,{n * 31 % 997 + 1}\n" for n in range(2000))
    packed = gzip.compress(f"{HEADER}\n{rows}".encode())
    said = refused(tmp_path, packed[: len(packed) // 2])
    found = re.fullmatch(
        r"a\.csv:(\d+): the gzip file is cut off here; copy or download it again", said
    )
    assert found
    assert 500 < int(found.group(1)) < 1500


def test_a_gzip_file_that_is_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(SHORT.encode()))
    packed[-6] ^= 1
    assert refused(tmp_path, bytes(packed)).startswith("a.csv:1: the gzip file is damaged (CRC ")
    assert refused(tmp_path, b"\x1f\x8bnonsense").startswith("a.csv:1: the gzip file is damaged (")
    assert refused(tmp_path, b"\x1f\x8b").startswith("a.csv:1: the gzip file is ")


def test_a_cell_without_end(tmp_path: Path) -> None:
    said = refused(tmp_path, f"{SHORT}{'x' * 200_000},0,1,1\n")
    assert said.startswith("a.csv:3: this is no CSV: field larger than field limit")
    assert refused(tmp_path, "x" * 200_000).startswith("a.csv:1: this is no CSV: field larger")


@settings(max_examples=40, deadline=None)
@given(place=st.integers(0, 200), change=st.binary(max_size=4), packed=st.booleans())
def test_any_damage_is_read_or_refused(
    place: int, change: bytes, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = f'{HEADER},elastic\n"a",0,1,1,true\nb,0.5,8,1e3,false\n'.encode()
    content = gzip.compress(content, mtime=0) if packed else content
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[:place] + change + content[place + len(change) :])
    with contextlib.suppress(UsageError):
        assert read_trace(path).jobs


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent: there is no such file$"):
        read_trace(tmp_path / "absent")
    with pytest.raises(UsageError, match=r"this is a folder; give a file in it$"):
        read_trace(tmp_path)
    (tmp_path / "a.csv").write_text(SHORT)
    with pytest.raises(UsageError, match=r"a\.csv/b: it cannot be read: Not a directory$"):
        read_trace(tmp_path / "a.csv" / "b")
