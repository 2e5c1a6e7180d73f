"""A stranger's file as text and as a table, with the line that is to blame.

Traces come from many hands: packed or not, cut off, in another encoding, or no trace at all. All of
that ends here in a `UsageError` that begins with `FILE:LINE:`, so that the readers of the single
formats see clean rows only. Holds: every row of a `Table` is as wide as its header, and its line is
the one that an editor shows.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from edl.errors import UsageError
from edl.simulator.jobs import TraceJob

__all__ = [
    "Found",
    "Table",
    "blame",
    "is_missing",
    "number",
    "read_table",
    "read_text",
    "table_of",
    "whole",
]

GZIP = b"\x1f\x8b"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
# How the logs of real clusters write what they do not know.
MISSING = frozenset({"", "none", "null"})


@dataclass(slots=True)
class Found:
    """What a reader of one format makes of a file: jobs in the file's order and its own time."""

    jobs: list[TraceJob] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    speeds: str | None = None  # a table with its models' speeds


def blame(path: str, line: int, what: str) -> UsageError:
    return UsageError(f"{path}:{line}: {what}")


# -- text --------------------------------------------------------------------------------------


def read_text(path: str | Path) -> str:
    """The whole file, unpacked if it begins as gzip does, whatever its name says."""
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: this is a folder; give a file in it") from None
    except OSError as error:
        raise UsageError(f"{path}: it cannot be read: {error.strerror}") from error
    if content.startswith(GZIP):
        content = _unpacked(str(path), content)
    if not content.strip():
        raise UsageError(f"{path}: the file is empty; see docs/traces.md")
    return _decoded(str(path), content)


def _unpacked(path: str, packed: bytes) -> bytes:
    try:
        return gzip.decompress(packed)
    except EOFError:
        why = "the gzip file is cut off here"
    except (OSError, zlib.error) as error:
        why = f"the gzip file is damaged ({error})"
    # As far as it goes, only to say where it ends.
    try:
        rest = zlib.decompressobj(wbits=31).decompress(packed)
    except zlib.error:
        rest = b""
    raise blame(path, rest.count(b"\n") + 1, f"{why}; copy or download it again")


def _decoded(path: str, content: bytes) -> str:
    if content.startswith(UTF_16):
        raise blame(path, 1, "the text is UTF-16; save it as UTF-8")
    zero = content.find(b"\0")
    if zero >= 0:
        line = content.count(b"\n", 0, zero) + 1
        raise blame(path, line, "a zero byte: this is no text; a trace is CSV or JSON")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise blame(
            path, line, f"the byte {content[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from None


# -- tables ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """A CSV file with a header. `rows` can be walked once."""

    path: str
    columns: Mapping[str, int]  # name, in small letters: its place
    header_line: int
    _reader: Any  # csv's own type has no public name

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and cells of every row that is not blank."""
        reader, width = self._reader, len(self.columns)
        try:
            for row in reader:
                if not any(row):
                    continue
                if len(row) != width:
                    raise blame(
                        self.path,
                        reader.line_num,
                        f"cells: {len(row)}, columns of the header: {width}; expected as many",
                    )
                yield reader.line_num, row
        except csv.Error as error:
            raise _no_csv(self.path, reader.line_num, error) from None

    def need(self, names: Sequence[str], what: str) -> None:
        """Refuse a table that lacks one of these columns."""
        absent = [name for name in names if name not in self.columns]
        if absent:
            raise blame(
                self.path,
                self.header_line,
                f"missing columns: {', '.join(absent)}; {what} has {', '.join(names)}, and this "
                f"file {', '.join(self.columns)}",
            )

    def cell(self, row: Sequence[str], name: str) -> str:
        """Empty where there is no such column."""
        place = self.columns.get(name)
        return "" if place is None else row[place]


def read_table(path: str | Path) -> Table:
    return table_of(str(path), read_text(path))


def table_of(path: str, text: str) -> Table:
    # `strict` finds the end of the file within quotes; spaces after commas are a hand's.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, skipinitialspace=True)
    header: list[str] = []
    try:
        while not any(header):
            header = next(reader)
    except StopIteration:
        raise UsageError(f"{path}: the file is empty; see docs/traces.md") from None
    except csv.Error as error:
        raise _no_csv(path, reader.line_num, error) from None
    names = [name.strip().lower() for name in header]
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if twice:
        raise blame(path, reader.line_num, f"column {twice[0]!r} is there twice; name each once")
    columns = {name: place for place, name in enumerate(names)}
    return Table(path, columns, reader.line_num, reader)


def _no_csv(path: str, line: int, error: csv.Error) -> UsageError:
    return blame(path, line, f"this is no CSV: {error}; docs/traces.md tells what is expected")


# -- cells -------------------------------------------------------------------------------------


def is_missing(text: str) -> bool:
    return text.strip().lower() in MISSING


def number(path: str, line: int, name: str, text: str, *, expected: str) -> float:
    """A finite one, of any sign."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    # Python reads 1_000, which a table does not mean.
    if not isfinite(value) or "_" in text:
        raise blame(path, line, f"{name} is {text!r}; expected {expected}")
    return value


def whole(path: str, line: int, name: str, text: str, *, at_least: int) -> int:
    """`8` and `8.0` are; `8.5` is not."""
    expected = f"a whole number, {at_least} or more"
    value = number(path, line, name, text, expected=expected)
    if value != int(value) or value < at_least:
        raise blame(path, line, f"{name} is {text!r}; expected {expected}")
    return int(value)
