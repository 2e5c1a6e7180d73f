"""Readers by themselves: what a sample is, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fsspec.registry import known_implementations

from edl.data import JsonLines, Lines, Parquet, Partition, Records, Shard, Source, Tar
from edl.errors import DataError, UsageError
from tests.unit.specimens import Write, as_number, numbers, parquet_bytes, read_all, tar_bytes

# -- what a sample is --------------------------------------------------------------------------


def test_records(write: Write) -> None:
    urls = [write("a", b"head" + numbers(1, 2, 3)), write("b", b"head" + numbers(4))]
    source = Records(urls, record_bytes=4, header_bytes=4, partition_samples=2, decode=as_number)
    assert read_all(source) == [1, 2, 3, 4]
    assert [part.length for part in source.partitions] == [2, 1, 1]
    assert read_all(Records(urls[1], record_bytes=8)) == [b"head" + numbers(4)]


@pytest.mark.parametrize(
    ("content", "samples"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\ntwo", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\r\ntwo", ["one", "two"]),
        (b"one\n\n\ntwo\n", ["one", "", "", "two"]),
        (b"\n", [""]),
        (b"one\n\n", ["one", ""]),
        (b"a line that is longer than a partition\nx\n" * 2, None),
        ("zwölf\n".encode(), ["zwölf"]),
    ],
)
@pytest.mark.parametrize("partition_bytes", [1, 5, 1 << 20])
def test_lines(
    write: Write, content: bytes, samples: list[str] | None, partition_bytes: int
) -> None:
    source = Lines(write("a.txt", content), partition_bytes=partition_bytes)
    assert read_all(source) == (samples or content.decode().splitlines())


def test_lines_that_are_decoded(write: Write) -> None:
    url = write("a.txt", "sech\xdf\n".encode("latin-1"))
    assert read_all(Lines(url, encoding="latin-1", decode=str.upper)) == ["SECHSS"]


@pytest.mark.parametrize("partition_bytes", [1, 4, 9, 1 << 20])
def test_blank_lines_are_no_json(write: Write, partition_bytes: int) -> None:
    content = b'\n{"x": 1}\r\n \t\n\r\n[2]\n\n\n3\n\n'
    source = JsonLines(write("a.jsonl", content), partition_bytes=partition_bytes)
    assert read_all(source) == [{"x": 1}, [2], 3]
    assert [part.offset for part in source.partitions] == sorted(
        {part.offset for part in source.partitions}
    )


def test_json_lines_with_a_byte_order_mark_and_a_decoder(write: Write) -> None:
    url = write("a.jsonl", b'\xef\xbb\xbf{"x": 1}\n{"x": 2}')
    assert read_all(JsonLines(url, decode=lambda value: value["x"])) == [1, 2]


def test_parquet(write: Write) -> None:
    url = write("a.parquet", parquet_bytes([1, 2, 3, 4]))
    assert read_all(Parquet(url, columns=["x"])) == [{"x": 1}, {"x": 2}, {"x": 3}, {"x": 4}]
    assert read_all(Parquet(url, columns=["y.z"]))[3] == {"y": {"z": 4}}
    assert read_all(Parquet(url, decode=lambda row: row["x"] * 10)) == [10, 20, 30, 40]
    assert [part.length for part in Parquet(url).partitions] == [3, 1]


def test_tar(write: Write) -> None:
    members = {
        "README": b"no sample: it has no extension",
        "sub/.hidden": b"nor has this a name",
        "000.jpg": b"picture",
        "000.seg.png": b"mask",
        "001.jpg": b"",
        "sub/001.jpg": b"other",
    }
    source = Tar(write("a.tar", tar_bytes(members)), partition_samples=2)
    assert read_all(source) == [
        {"__key__": "000", "jpg": b"picture", "seg.png": b"mask"},
        {"__key__": "001", "jpg": b""},
        {"__key__": "sub/001", "jpg": b"other"},
    ]
    assert read_all(Tar(write("b.tar", tar_bytes({"7.cls": b"3"})), decode=len)) == [2]


def test_an_empty_file_among_others_is_nothing(write: Write) -> None:
    empty, full = write("0.txt", b""), write("1.txt", numbers(7))
    assert read_all(Records([empty, full], record_bytes=4)) == [numbers(7)]
    assert read_all(Lines([empty, full])) == ["\x07\0\0\0"]
    no_rows = write("0.parquet", parquet_bytes([]))
    assert len(Parquet([no_rows, write("1.parquet", parquet_bytes([1]))])) == 1
    assert len(Tar([write("0.tar", tar_bytes({})), write("1.tar", tar_bytes({"a.x": b""}))])) == 1


def test_files_of_a_pattern_come_by_name(write: Write) -> None:
    last = write("b.txt", b"2\n")
    write("a.txt", b"1\n")
    write("c.csv", b"3\n")
    pattern = last.replace("b.txt", "*.txt")
    assert read_all(Lines(pattern)) == ["1", "2"]
    assert read_all(Lines(last.replace("b.txt", "?.txt"))) == ["1", "2"]
    assert read_all(Lines([last, last.replace("b.txt", "c*")])) == ["2", "3"]


def test_names_with_brackets_and_paths_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "data[1].txt"
    path.write_text("1\n")
    assert read_all(Lines(path)) == ["1"]
    assert read_all(Lines([str(path)])) == ["1"]


def test_a_chain_of_urls_keeps_its_links(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    cached = f"simplecache::file://{tmp_path}/*.txt"
    assert Lines(cached).partitions[0].path == f"simplecache::file://{tmp_path}/a.txt"
    assert read_all(Lines(cached)) == ["1"]


def test_an_index_spares_the_reading_and_is_made_anew_for_a_changed_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, place = write("a.jsonl", b"1\n\n2\n"), write("unused", b"") + ".idx"
    first = JsonLines(url, index=place)
    with monkeypatch.context() as patch:
        patch.setattr("edl.data.lines._cut", None)
        again = JsonLines(url, index=place)
    assert again.partitions == first.partitions
    assert read_all(again) == [1, 2]
    write("a.jsonl", b"1\n\n2\n3\n")
    assert read_all(JsonLines(url, index=place)) == [1, 2, 3]
    # Lines count differently, so the index of the one is none for the other.
    assert read_all(Lines(url, index=place)) == ["1", "", "2", "3"]


def test_json_that_a_reader_gives_is_what_json_gives(write: Write) -> None:
    values = [{"text": "ä\n", "n": [1, None, True, 1.5]}, "line", 0]
    content = "\n".join(json.dumps(value) for value in values).encode()
    assert read_all(JsonLines(write("a", content))) == values


# -- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "8"])
def test_sizes_that_are_no_sizes(write: Write, value: Any) -> None:
    url = write("a", numbers(1))
    for make in (
        lambda: Lines(url, partition_bytes=value),
        lambda: JsonLines(url, partition_bytes=value),
        lambda: Records(url, record_bytes=4, partition_samples=value),
        lambda: Records(url, record_bytes=value),
        lambda: Tar(url, partition_samples=value),
    ):
        with pytest.raises(UsageError, match=rf"={value!r}: give a whole number, at least 1"):
            make()


def test_records_that_do_not_fit(write: Write) -> None:
    url = write("a", numbers(1, 2))
    with pytest.raises(UsageError, match=r"8 bytes of records, which is no multiple of .*=3"):
        Records(url, record_bytes=3)
    with pytest.raises(UsageError, match="8 bytes, fewer than header_bytes=9"):
        Records(url, record_bytes=1, header_bytes=9)
    with pytest.raises(UsageError, match="header_bytes=-1"):
        Records(url, record_bytes=1, header_bytes=-1)


def test_files_without_a_sample(write: Write) -> None:
    for make in (
        lambda: Lines(write("a.txt", b"")),
        lambda: JsonLines(write("b.txt", b"\n \n")),
        lambda: Records(write("c", b""), record_bytes=4),
        lambda: Parquet(write("d", parquet_bytes([]))),
        lambda: Tar(write("e", tar_bytes({"README": b"text"}))),
    ):
        with pytest.raises(UsageError, match="there is not a single sample"):
            make()


def test_no_files(write: Write) -> None:
    url = write("a.txt", b"1\n")
    with pytest.raises(UsageError, match=r"no file matches '.*\*\.csv'"):
        Lines(url.replace("a.txt", "*.csv"))
    with pytest.raises(UsageError, match="no files are given"):
        Lines([])


def test_a_file_that_is_given_twice(write: Write) -> None:
    url = write("a.txt", b"1\n")
    with pytest.raises(UsageError, match=r"a\.txt' is given twice; its samples"):
        Lines([url, url])
    with pytest.raises(UsageError, match="given twice"):
        Lines([url, url.replace("a.txt", "*.txt")])


def test_a_file_that_is_given_in_two_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("1\n")
    for other in ("./a.txt", f"file://{tmp_path}/a.txt", "../" + tmp_path.name + "/a.txt", "*.txt"):
        with pytest.raises(UsageError, match=r"given twice, as 'a\.txt' too"):
            Lines(["a.txt", other])


@pytest.mark.parametrize("url", ["absent://bucket/a.txt", "nonsense://a.txt", "absent://*.txt"])
def test_a_driver_that_is_not_installed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = {"class": "edl_absent_driver.Files", "err": "pip install absent"}
    monkeypatch.setitem(known_implementations, "absent", driver)
    why = "pip install absent" if url.startswith("absent") else "Protocol not known: nonsense"
    for reader in (Lines, Parquet, Tar):
        with pytest.raises(UsageError, match=f"{re.escape(repr(url))} cannot be opened: {why}"):
            reader(url)


def test_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a folder; give its files, as in '.*/\*'"):
        Lines(tmp_path)


@pytest.mark.parametrize("columns", ["x", []])
def test_columns_that_are_no_list(write: Write, columns: Any) -> None:
    with pytest.raises(UsageError, match="give a list of names"):
        Parquet(write("a", parquet_bytes([1])), columns=columns)


def test_a_column_that_is_not_there(write: Write) -> None:
    with pytest.raises(UsageError, match="no column 'w'; it has x, y"):
        Parquet(write("a", parquet_bytes([1])), columns=["x", "w"])


@pytest.mark.parametrize(("encoding", "why"), [("utf-16", "one byte"), ("klingon", "not known")])
def test_encodings_that_have_no_lines(write: Write, encoding: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Lines(write("a", b"x"), encoding=encoding)


def test_a_reader_of_ones_own_is_held_to_what_it_says() -> None:
    class Short(Source):
        def read(self, shard: Shard) -> list[int]:
            return [1]

    with pytest.raises(DataError, match=r"Short\.read gave 1 samples of f, from 5 on, where 2"):
        read_all(Short([Partition("f", 5, 3)]))
    for bad in ([], [Partition("f", 0, 0)], [Partition("f", 0, 2), Partition("f", 1, 1)]):
        with pytest.raises(UsageError):
            Short(bad)
