"""The committed log as bytes: everything comes back, and a torn end costs one entry."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.runtime.auditlog import Entry, Kind, Torn, entries, header, pack
from tests.seeded.cast import drawn

HEAD = header({"worker": "w0", "data": {"kind": "map"}})


@drawn
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=9))
def test_pieces_come_back(numbers: list[int]) -> None:
    values = [n for n in numbers for _ in range(3)]
    (entry,) = entries(pack(Kind.PIECES, [len(numbers), *values]))
    assert (entry.kind, list(entry.values)) == (Kind.PIECES, values)


def test_a_step_takes_a_few_bytes() -> None:
    assert len(pack(Kind.RANGE, [100])) == 2
    assert len(pack(Kind.RANGE, [4096])) == 3


def test_a_log_that_ends_inside_an_entry_tells_everything_before_it() -> None:
    whole = HEAD + pack(Kind.PLACE, [0, 300, 200, 1, 70_000]) + pack(Kind.RANGE, [4096])
    known = list(entries(whole))
    assert [entry.kind for entry in known] == [Kind.OPEN, Kind.PLACE, Kind.RANGE]
    starts = [0, len(HEAD), len(whole) - 3, len(whole)]
    for end in range(1, len(whole)):
        if end in starts:
            assert list(entries(whole[:end])) == known[: starts.index(end)]
            continue
        read: list[Entry] = []
        with pytest.raises(Torn) as torn:
            collections.deque(map(read.append, entries(whole[:end])))
        assert torn.value.at == max(start for start in starts if start < end)
        assert read == known[: len(read)]


@pytest.mark.parametrize(
    "content",
    [b"\x09", b"\xff" * 12, pack(Kind.OPEN, [2]) + b"[]", pack(Kind.OPEN, [3]) + b"{{{"],
)
def test_what_is_no_log_is_told(content: bytes) -> None:
    with pytest.raises(Torn):
        list(entries(content))
