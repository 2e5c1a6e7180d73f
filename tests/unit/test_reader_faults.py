"""Files that are missing, damaged, changed or out of reach: every error names the file."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from edl.data import JsonLines, Lines, Parquet, Records, Shard, Source, Tar
from edl.data import files as files_module
from edl.errors import DataError
from tests.unit.specimens import Write, numbers, parquet_bytes, read_all, tar_bytes


@pytest.mark.parametrize("reader", [Lines, JsonLines, Parquet, Tar])
def test_a_missing_file_is_named_at_once(reader: Any, tmp_path: Path) -> None:
    for url in (str(tmp_path / "gone"), "memory://gone"):
        with pytest.raises(DataError, match=f"{url} cannot be read: "):
            reader(url)
    with pytest.raises(DataError, match="gone cannot be read"):
        Records(str(tmp_path / "gone"), record_bytes=1)


def test_a_file_that_was_cut_off_after_it_was_indexed(write: Write, no_pause: None) -> None:
    whole = {
        "records": numbers(*range(8)),
        "lines": b"1\n2\n3\n4\n",
        "parquet": parquet_bytes(list(range(100))),
        "tar": tar_bytes({f"{n}.x": b"x" * 600 for n in range(4)}),
    }
    urls = {name: write(name, content) for name, content in whole.items()}
    sources: list[Source] = [
        Records(urls["records"], record_bytes=4),
        Lines(urls["lines"]),
        Parquet(urls["parquet"]),
        Tar(urls["tar"]),
    ]
    for name, content in whole.items():
        write(name, content[: len(content) // 4])
    for source, url in zip(sources, urls.values(), strict=True):
        with pytest.raises(DataError, match=url):
            read_all(source)


def test_a_file_with_other_lines_of_the_same_size(write: Write) -> None:
    source = JsonLines(write("a", b"1\n2\n"))
    write("a", b"123\n")
    with pytest.raises(DataError, match="has 1 samples where it had 2 when it was indexed"):
        read_all(source)


def test_a_line_that_is_no_json_is_named(write: Write) -> None:
    url = write("a.jsonl", b'{"x": 1}\n\n\n{"x": \n')
    with pytest.raises(DataError, match=rf"{url}, line 4: Expecting value"):
        read_all(JsonLines(url, partition_bytes=4))


def test_a_bad_line_spoils_no_other(write: Write) -> None:
    source = JsonLines(url := write("a.jsonl", b"1\n2\n{\n"))
    assert source.read(Shard(path=url, offset=0, length=2, epoch=0, index=0)) == [1, 2]
    with pytest.raises(DataError, match="line 3"):
        source.read(Shard(path=url, offset=2, length=1, epoch=0, index=0))


def test_a_line_that_is_no_text_is_named(write: Write) -> None:
    url = write("a.txt", b"fine\n\xff\xfe\n")
    with pytest.raises(DataError, match=rf"{url}, line 2: 'utf-8' codec can't decode"):
        read_all(Lines(url))


def test_a_decoder_that_raises_is_told_the_line(write: Write) -> None:
    url = write("a.jsonl", b'{"x": 1}\n{"y": 2}\n')
    with pytest.raises(KeyError) as raised:
        read_all(JsonLines(url, decode=lambda value: value["x"]))
    assert raised.value.__notes__ == [f"This was {url}, line 2."]


@pytest.mark.parametrize("damage", [b"", b"no such thing", parquet_bytes([1])[:-20]])
def test_what_is_no_parquet_file(write: Write, no_pause: None, damage: bytes) -> None:
    url = write("a.parquet", damage)
    with pytest.raises(DataError, match=url):
        Parquet(url)


def test_a_parquet_file_with_a_damaged_page(write: Write, no_pause: None) -> None:
    content = bytearray(parquet_bytes(list(range(1000)), group=1000))
    source = Parquet(url := write("a.parquet", bytes(content)))
    content[4:400] = b"\xff" * 396
    write("a.parquet", bytes(content))
    with pytest.raises(DataError, match=url):
        read_all(source)


def damaged_header(content: bytes) -> bytes:
    return content[:1024] + b"\x01" * 512 + content[1536:]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: b"no tar file" * 100,
        lambda content: content[:700],
        lambda content: content[:1300],
        damaged_header,
    ],
    ids=["empty", "other", "in the data", "in a header", "a header"],
)
def test_what_is_no_tar_file(write: Write, damage: Callable[[bytes], bytes]) -> None:
    content = tar_bytes({"0.x": b"x" * 300, "1.x": b"y" * 300})
    url = write("a.tar", damage(content))
    with pytest.raises(DataError, match=rf"{url} is no readable tar file: "):
        Tar(url)


def test_a_member_that_is_there_twice(write: Write) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("0.x"), io.BytesIO())
    with pytest.raises(DataError, match=r"0\.x is in .* twice"):
        Tar(write("a.tar", sink.getvalue()))


class Flaky(MemoryFileSystem):  # type: ignore[misc]
    """Memory that fails now and then."""

    protocol = "flaky"
    cachable = False
    left: ClassVar[int] = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("flaky://", "memory://")))

    def _may_fail(self) -> None:
        if Flaky.left:
            Flaky.left -= 1
            raise ConnectionResetError("the network hiccups")

    def info(self, path: str, **options: Any) -> Any:
        self._may_fail()
        return super().info(path, **options)

    def cat_file(self, path: str, *args: Any, **options: Any) -> Any:
        self._may_fail()
        return super().cat_file(path, *args, **options)

    def open(self, path: str, *args: Any, **options: Any) -> Any:
        self._may_fail()
        return super().open(path, *args, **options)


@pytest.fixture
def flaky(no_pause: None) -> Iterator[type[Flaky]]:
    fsspec.register_implementation("flaky", Flaky, clobber=True)
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/flaky/lines", b"1\n2\n")
    memory.pipe_file("/flaky/parquet", parquet_bytes([1, 2]))
    memory.pipe_file("/flaky/tar", tar_bytes({"1.x": b"1"}))
    memory.pipe_file("/flaky/records", numbers(1, 2))
    yield Flaky
    Flaky.left = 0
    memory.store.clear()


READERS: dict[str, Callable[[], Source]] = {
    "lines": lambda: Lines("flaky://flaky/lines"),
    "parquet": lambda: Parquet("flaky://flaky/parquet"),
    "tar": lambda: Tar("flaky://flaky/tar"),
    "records": lambda: Records("flaky://flaky/records", record_bytes=4),
}


@pytest.mark.parametrize("kind", READERS)
def test_what_fails_twice_is_tried_again(flaky: type[Flaky], kind: str) -> None:
    flaky.left = 2
    source = READERS[kind]()
    assert flaky.left == 0
    flaky.left = 2
    assert read_all(source)
    assert flaky.left == 0


@pytest.mark.parametrize("kind", READERS)
def test_what_fails_for_good_is_named(flaky: type[Flaky], kind: str) -> None:
    source = READERS[kind]()
    for attempt in (READERS[kind], lambda: read_all(source)):
        flaky.left = 1000
        with pytest.raises(DataError, match=rf"flaky://flaky/{kind} cannot be read after 5 tries"):
            attempt()
        assert flaky.left == 1000 - files_module.TRIES
